"""Checkpoints that ranks save one after another, and which of them are chosen."""

from __future__ import annotations

import os
from pathlib import Path

from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from tests.checkpoints.conftest import Write

BEGAN = 1_700_000_000


class Clock:
    """Gives files the times that a story needs: one second after another."""

    def __init__(self) -> None:
        self.now = float(BEGAN)

    def touch(self, *paths: Path) -> None:
        """The paths (folders with all they hold) were written now."""
        self.now += 1
        for path in paths:
            for each in [*path.rglob("*"), path] if path.is_dir() else [path]:
                os.utime(each, (self.now, self.now))


def taken(choice: Choice) -> str | None:
    """The name of what was chosen."""
    return os.path.basename(choice.checkpoint.path) if choice.checkpoint else None


def passed_over(choice: Choice) -> list[str]:
    """The names of what was skipped."""
    return [os.path.basename(skipped.path) for skipped in choice.skipped]


def save(chooser: Chooser, clock: Clock, write: Write, path: Path, *, kind: str = "@training", step: int = 0) -> None:
    """A rank saves and its hooks say so."""
    write(path.parent, {path.name: kind})
    clock.touch(path)
    chooser.saw_saved(str(path), step, clock.now)
