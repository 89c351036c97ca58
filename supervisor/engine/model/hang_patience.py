"""How long a stall may last before it is acted on, by the grounds that there are: one table, of which the docs tell.

With proof guardrun acts within seconds, however patient it is set. Without, what is seen of a stall fits a job that is
at work somewhere else as well (a remote judge, a licence that is waited for), so that time is what tells them apart.
`[hang] sensitivity` chooses a column.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Sensitivity = Literal["eager", "normal", "patient"]

NEVER_S = 1e9
"""Longer than any run: what is left is the hard limit."""


class Grounds(NamedTuple):
    """Why a stall may be one for ever, and how long it is waited for, in seconds."""

    name: str
    """Of the field of Settings that takes it."""
    words: str
    """For whom it is, as docs/policy.md says."""
    eager: float
    normal: float
    patient: float


PROOF = (
    Grounds(
        "stopped_patience_s", "a process stopped by a signal; a DataLoader worker that is dead or stopped", 3, 3, 3
    ),
    Grounds("traced_patience_s", "a process stopped by a debugger: somebody may be looking", 20, 20, 20),
    Grounds(
        "mismatch_patience_s", "ranks in calls that can never meet, or that wait for each other in a ring", 5, 5, 5
    ),
    Grounds("proof_patience_s", "a standstill that nothing is left to end", 15, 15, 15),
)
WITHOUT = (
    Grounds("idle_patience_s", "a rank asleep in one call, while others wait for it", 30, 300, NEVER_S),
    Grounds("awake_patience_s", "the same, but it wakes up: a poll, retries, an event loop", 30, 600, NEVER_S),
    Grounds("data_patience_s", "a silent source of data or file system; calls that seem not to meet", 60, 300, NEVER_S),
    Grounds("gil_patience_s", "the GIL held, or a garbage collection that does not end", 60, 600, NEVER_S),
    Grounds("native_patience_s", "native code that computes, called from the user's own line", 60, NEVER_S, NEVER_S),
    Grounds(
        "spin_patience_s", "a rank that runs in the same few lines; all ranks in one collective", 120, 600, NEVER_S
    ),
    Grounds(
        "save_patience_s",
        "any of these but silent data and a collection, while the rank saves or is in a phase that it has named",
        300,
        600,
        NEVER_S,
    ),
)


def patience(sensitivity: Sensitivity, scale: float = 1.0) -> dict[str, Any]:
    """The fields of Settings that say how patient to be. scale: of the times without proof."""
    times = {grounds.name: getattr(grounds, sensitivity) for grounds in PROOF}
    return times | {grounds.name: getattr(grounds, sensitivity) * scale for grounds in WITHOUT}
