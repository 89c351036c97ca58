"""What lies in the socket folder for warm processes (docs/warm-ranks.md), and of them.

How a node's is, its launcher leaves there for whoever asks; what to import, its ranks leave, or the head has it left.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from guardrun.hooks.wire.board import import_names
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log

WARM_FILE = "warm.json"
MAX_BYTES = 64 * 1024
MAX_IMPORTS_BYTES = 8 << 20
"""Of all that a node's ranks have left; 20,000 modules take less."""
MAX_SENT_BYTES = 1 << 20
"""Of that, compressed."""


class WarmState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one node."""

    state: str
    """importing, ready, given up."""
    why: str = ""
    """It was given up."""
    memory_mb: int = 0
    """Proportional set size once it was ready, in MiB."""
    modules: int = 0
    """That it has imported."""


def read_warm_state(sockets: Path) -> WarmState | None:
    """None: there is none, or it can't be read."""
    try:
        with (sockets / WARM_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=known_type(WarmState))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _Imports(msgspec.Struct):
    """As hooks/beat/imports_report.py writes it."""

    modules: list[tuple[str, str | None]]
    changed: list[str]


_NOTHING = msgspec.json.encode(_Imports([], []))


def read_imports(sockets: Path, ranks: int) -> bytes:
    """What a node's ranks import and set, all together, compressed; empty: not all have said it, or it is too much."""
    modules, changed, room = [], [], MAX_IMPORTS_BYTES
    try:
        for name in import_names(ranks):
            with (sockets / name).open("rb") as file:
                data = file.read(room + 1)
            room -= len(data)
            if room < 0:
                return b""
            one = msgspec.json.decode(data, type=known_type(_Imports))
            modules += one.modules
            changed += one.changed
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    told = zlib.compress(msgspec.json.encode(_Imports(modules, list(dict.fromkeys(changed)))), 1)
    return told if len(told) <= MAX_SENT_BYTES else b""


def keep_imports(sockets: Path, ranks: int, told: bytes) -> None:
    """Put beside the boards what other nodes' ranks import, where this one's have not said it. Never raises."""
    first, *others = (sockets / name for name in import_names(ranks))
    try:
        plain = zlib.decompressobj().decompress(told, MAX_IMPORTS_BYTES)
        data = msgspec.json.encode(msgspec.json.decode(plain, type=known_type(_Imports)))
        if first.exists():
            return
        for path in others:
            path.write_bytes(_NOTHING)
        first.with_suffix(".new").write_bytes(data)
        first.with_suffix(".new").replace(first)  # the last one: a launcher waits for all of them
    except (OSError, zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("not_warmed", error=str(error))
