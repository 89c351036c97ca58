"""What looks say of a hang: the cause, who is to blame, who waits, and how patient to be."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.observation.rank_activity import RankActivity


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What the looks say, whether or not it is time to act on it."""

    cause: str
    culprits: list[int]
    waiting: list[int]
    confidence: float
    patience_s: float
    """Counted from the last progress (for a stopped process: from when it was seen stopped)."""
    is_proof: bool = False
    """Counts from when it was seen, and waits for no floor."""
    why_nobody: str = ""
    """Where no culprit can be told: why."""
    doing: RankActivity = RankActivity.WAITING
    """What the culprits do."""
    is_certain: bool = False
    """Shown by what the ranks recorded: waits for no floor either, but counts from the last progress."""
    is_alone: bool = False
    """Nobody is seen to wait for the culprits."""
    is_still: bool = False
    """Nothing of the culprits runs: they sleep, and do not wake up."""
    is_native: bool = False
    """What the culprits run is native code that computes: most likely work."""
    proof: str = ""
    """Why nothing is left that could end the culprits' wait, as a clause."""
    told: str = ""
    """What they recorded, in words: a clause with the culprits as its subject, a sentence where there are none."""
