"""A mutation: a mistake that somebody could make in guardrun, as text to replace, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class StaleError(Exception):
    """The source is no longer what the table says: the mutation is to be planted elsewhere."""


@dataclass(frozen=True)
class Mutation:
    """One mistake."""

    name: str
    file: str
    """Relative to the project's root."""
    before: str
    """Occurs there exactly once."""
    after: str
    breaks: str
    """In one line: what goes wrong with it."""
    quick: tuple[str, ...] = ()
    """Tests that fail with it, by node id: without Slurm, systemd or a browser, and within some five seconds."""
    slow: tuple[str, ...] = ()
    """Likewise, those that need one of these, or longer."""

    @property
    def caught_by(self) -> tuple[str, ...]:
        """All of them, the quick ones first."""
        return (*self.quick, *self.slow)


def mutate(mutation: Mutation, text: str) -> str:
    """The file's text with the mistake in it. Raises StaleError where its place isn't there exactly once."""
    count = text.count(mutation.before)
    if count != 1:
        raise StaleError(f"{mutation.name}: {mutation.file} has {count} times, not once:\n{mutation.before}")
    return text.replace(mutation.before, mutation.after)
