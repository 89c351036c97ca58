"""What looks say of a hang: the cause, who is to blame, who waits, and how patient to be; and the look itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from guardrun.supervisor.engine.model.events import LookTaken
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.collective_waits import Match
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity


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
    is_on_devices: bool = False
    """All have issued their calls, and devices or links complete none."""
    is_in_driver: bool = False
    """All that may be to blame wait in a device's driver, and nothing that was recorded says for whom."""
    waits_for_device: bool = False
    """All that may be to blame are seen in their device's driver: they compute nothing, though their devices may."""
    sensors: str = ""
    """What has broken under the culprits, in its judges' words."""
    proof: str = ""
    """Why nothing is left that could end the culprits' wait, as a clause."""
    told: str = ""
    """What they recorded, in words: a clause with the culprits as its subject, a sentence where there are none."""


class JudgedSnapshot(NamedTuple):
    """What a verdict is about."""

    by_rank: Mapping[int, Judgement]
    event: LookTaken
    matched: Match

    def place_of(self, found: Finding) -> str:
        """Where the first culprit is, or who waits where nobody is to blame, as Judgement has it; empty: not known."""
        judged = (self.by_rank[rank] for rank in found.culprits or found.waiting if rank in self.by_rank)
        return next((judgement.place for judgement in judged if judgement.place), "")


class LookJudged(NamedTuple):
    """Two looks in a row have been compared, rank by rank. A detector that does so answers with it."""

    by_rank: Mapping[int, Judgement]
    looks: Sequence[RankLook]
    """The later ones."""
    folders: Sequence[str]
    """Of both, and of those before."""
    event: LookTaken
    """The later look."""
