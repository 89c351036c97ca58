"""What a verdict is about: one look, and what the core made of it."""

from __future__ import annotations

from typing import NamedTuple

from guardrun.supervisor.core.collectives import Match
from guardrun.supervisor.core.events import LookTaken
from guardrun.supervisor.core.judge import Judgement


class Seen(NamedTuple):
    """A look, judged."""

    by_rank: dict[int, Judgement]
    event: LookTaken
    matched: Match
