"""Whole, or torn and why."""

from __future__ import annotations

from typing import NamedTuple

CPU_S = 10
"""Computing that a question about a file may take: an archive of 300,000 tensors takes three, on a machine of 2024."""
MEMORY_BYTES = 384 << 20
"""An archive of 300,000 tensors takes 240 MiB."""


class Whole(NamedTuple):
    """Everything that a resume needs is there."""

    step: int | None = None
    """Where the checkpoint's own metadata tells."""


class Torn(NamedTuple):
    """Not to be resumed from."""

    reason: str
    """Completes "CHECKPOINT was skipped: …"."""


class Unjudged(NamedTuple):
    """Nobody can tell: to look into it takes more than is given for it. Taken only where nothing whole is left."""

    reason: str
    is_final: bool = True
    """False: it may be judged another time; a file system was slow."""


Verdict = Whole | Torn | Unjudged


def within(name: str, verdict: Torn | Unjudged) -> Torn | Unjudged:
    """The verdict on what holds a file, for the file's sake."""
    return verdict._replace(reason=f"{name}: {verdict.reason}")


def explain(error: OSError) -> str:
    """Say why the file system refused, without the path that the reader sees beside it."""
    return f"cannot be read: {error.strerror or error}"
