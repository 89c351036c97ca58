"""What a verdict is about: one look, and what the core made of it."""

from __future__ import annotations

from typing import NamedTuple

from guardrun.supervisor.engine.model.events import LookTaken
from guardrun.supervisor.engine.observation.collective_waits import Match
from guardrun.supervisor.engine.observation.rank_activity import Judgement


class JudgedSnapshot(NamedTuple):
    """A look, judged."""

    by_rank: dict[int, Judgement]
    event: LookTaken
    matched: Match
