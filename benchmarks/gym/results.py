"""The results file: a line of JSON for each case played, so that a run that was cut short goes on where it was."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.gym.observation import Observation
from benchmarks.machine import Machine

Key = tuple[str, str, int, int]
"""Case, launcher, repeat, seed."""


class Header(msgspec.Struct, kw_only=True):
    """The first line."""

    machine: Machine
    command: str


class Results:
    """A file of results; what is appended is there at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, header: Header) -> Header:
        """Begin the file, unless it is there; its header, whoever wrote it."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(msgspec.json.encode(header) + b"\n")
        return self.header()

    def header(self) -> Header:
        """Raises OSError; msgspec.DecodeError where it is no results file."""
        with self.path.open("rb") as file:
            return msgspec.json.decode(file.readline(), type=Header)

    def append(self, seen: Observation) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(seen) + b"\n")

    def read(self) -> list[Observation]:
        """All of them; of a case that was played again, the last. A line that was cut short is left out."""
        found: dict[Key, Observation] = {}
        for line in self.path.read_bytes().splitlines()[1:]:
            try:
                seen = msgspec.json.decode(line, type=Observation)
            except msgspec.DecodeError:
                continue
            found[key_of(seen)] = seen
        return list(found.values())


def key_of(seen: Observation) -> Key:
    return seen.case, seen.launcher, seen.repeat, seen.seed
