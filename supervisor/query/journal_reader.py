"""The journal as a stream, for tables: line by line, each decoded no further than somebody asks, in bounded memory.

What is torn, strange, or far too long is passed over and counted. Lines of other versions are read as far as they are
like ours: their events say what happened, whatever an engine would make of them.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import open_own
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.rundir.journal_end import JOURNAL, KEPT

MAX_LINE = 128 << 20
"""Bytes; a snapshot of a job of thousands of ranks has some tens of millions."""
_SKIP = 1 << 20
_TYPES: dict[str, Any] = {str(kind.__struct_config__.tag): kind for kind in typing.get_args(ev.Event)}


class LateError(Exception):
    """Reading took too long."""


class _Head(msgspec.Struct):
    n: int = -1
    t: float = 0.0
    wall: str = ""
    event: msgspec.Raw = msgspec.Raw()
    actions: msgspec.Raw = msgspec.Raw()
    error: str = ""


class _Kind(msgspec.Struct):
    type: str = ""


_HEADS = msgspec.json.Decoder(known_type(_Head))
_KINDS = msgspec.json.Decoder(known_type(_Kind))
_LISTS = msgspec.json.Decoder(known_type(list[_Kind]))


class Entry:
    """One event of the journal. Its parts raise msgspec.DecodeError where they are not what they should be."""

    __slots__ = ("_decoded", "_head", "at_s", "kind", "number")

    def __init__(self, head: _Head, kind: str) -> None:
        self._head, self.kind = head, kind
        self.number, self.at_s = head.n, head.t
        self._decoded: Any = None

    @property
    def wall(self) -> str:
        """When, UTC, as the line has it."""
        return self._head.wall

    @property
    def error(self) -> str:
        """Why the engine could make nothing of it."""
        return self._head.error

    @property
    def raw(self) -> bytes:
        """The event as it stands there."""
        return bytes(self._head.event)

    @property
    def event(self) -> Any:
        """The event; None of a kind that is not known."""
        if self._decoded is None and self.kind in _TYPES:
            self._decoded = msgspec.json.decode(self._head.event, type=known_type(_TYPES[self.kind]))
        return self._decoded

    @property
    def actions(self) -> list[str]:
        """Kinds of the actions that it led to."""
        raw = bytes(self._head.actions)
        return [one.type for one in _LISTS.decode(raw)] if raw else []

    def actions_of(self, kind: str) -> list[dict[str, Any]]:
        """Those of one kind, as data."""
        raw = bytes(self._head.actions)
        if f'"{kind}"'.encode() not in raw:
            return []
        return [
            one for one in msgspec.json.decode(raw, type=known_type(list[dict[str, Any]])) if one.get("type") == kind
        ]


def parse_entry(line: bytes) -> Entry | None:
    """A line of the journal; None where it cannot be read. Its kind is empty where it is no event (a snapshot)."""
    try:
        head = _HEADS.decode(line)
        kind = _KINDS.decode(head.event).type if bytes(head.event) not in (b"", b"null") else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Entry(head, kind)


class JournalReader:
    """Reads once, from the first file that is kept to the last."""

    def __init__(self, run_dir: Path, deadline_s: float = float("inf")) -> None:
        """deadline_s: of time.monotonic()."""
        self._run_dir, self._deadline_s = run_dir, deadline_s
        self.unreadable = 0
        """Lines."""
        self.is_missing = False
        """There is none, or none that may be read."""
        self.is_from_start = True
        """Its beginning is kept."""

    def entries(self) -> Iterator[Entry]:
        """All events. Raises LateError."""
        names = [*(f"{JOURNAL}.{number}" for number in range(KEPT, 0, -1)), JOURNAL]
        is_first, self.is_missing = True, True
        for name in names:
            for line in self._lines(name):
                entry = parse_entry(line)
                if entry is None:
                    self.unreadable += 1
                    continue
                if is_first:
                    is_first, self.is_from_start = False, entry.number <= 0
                if entry.kind:
                    yield entry

    def _lines(self, name: str) -> Iterator[bytes]:
        try:
            file = open(open_own(self._run_dir / name, is_anybodys=True), "rb")  # noqa: SIM115
        except OSError:
            return
        self.is_missing = False
        with file:
            while line := file.readline(MAX_LINE):
                if time.monotonic() > self._deadline_s:
                    raise LateError
                if len(line) == MAX_LINE and not line.endswith(b"\n"):
                    self.unreadable += 1
                    self._skip_line(file)
                elif line.strip():
                    yield line

    def _skip_line(self, file: typing.IO[bytes]) -> None:
        while (part := file.readline(_SKIP)) and not part.endswith(b"\n"):
            if time.monotonic() > self._deadline_s:
                raise LateError
