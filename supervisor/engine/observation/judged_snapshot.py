"""Looks, judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from guardrun.supervisor.engine.model.events import LookTaken
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.collective_waits import Match
from guardrun.supervisor.engine.observation.rank_activity import Judgement


class JudgedSnapshot(NamedTuple):
    """What a verdict is about."""

    by_rank: Mapping[int, Judgement]
    event: LookTaken
    matched: Match


class LookJudged(NamedTuple):
    """Two looks in a row have been compared, rank by rank. A detector that does so answers with it."""

    by_rank: Mapping[int, Judgement]
    looks: Sequence[RankLook]
    """The later ones."""
    folders: Sequence[str]
    """Of both, and of those before."""
    event: LookTaken
    """The later look."""
