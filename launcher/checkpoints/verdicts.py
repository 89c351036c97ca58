"""Whole, or torn and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Whole:
    """Everything that a resume needs is there."""

    step: int | None = None
    """Where the checkpoint's own metadata tells."""


@dataclass(frozen=True)
class Torn:
    """Not to be resumed from."""

    reason: str
    """Completes "CHECKPOINT was skipped: …"."""


Verdict = Whole | Torn


def explain(error: OSError) -> str:
    """Say why the file system refused, without the path that the reader sees beside it."""
    return f"cannot be read: {error.strerror or error}"
