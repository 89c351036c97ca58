"""What a detector is, and what it may answer: verdicts, which engine/recovery/decide.py alone acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.run_view import RunView
from guardrun.supervisor.engine.observation.rank_activity import Judgement


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """Something is wrong with the run: an incident."""

    key: str
    """Chosen by the detector, unique in the run: later verdicts on the same incident name it."""
    kind: str
    """One of docs/incidents.md, like `cause`, which a new detector adds there."""
    cause: str
    confidence: float
    """0 to 1."""
    summary: str
    """One sentence."""
    culprits: Sequence[int]
    """Global ranks."""
    onset_s: float
    """Since when, in the engine's seconds."""
    evidence: Mapping[str, Any]
    looks: Sequence[str] = ()
    """Folders of the looks that show it."""
    step: int | None = None
    """At which it happened; None: the attempt's furthest."""
    ends_with_progress: bool = False
    """It is over once training goes on; else when the detector says so (`Over`), or never."""
    node: str = ""
    """That is to blame and may be isolated, where the user's `[policy] responses` asks for it."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """More is known of an incident that was reported."""

    key: str
    evidence: Mapping[str, Any]
    """All of it, as it is now."""


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """What an incident reported is no more."""

    key: str
    text: str
    """What shows it: `rank 3 on node-b is as fast as before`."""


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Worth a line on the terminal, and no incident."""

    text: str


Verdict = Detected | Changed | Over | Remark


class LookJudged(NamedTuple):
    """Two looks in a row have been compared, rank by rank."""

    by_rank: Mapping[int, Judgement]
    looks: Sequence[RankLook]
    """The later ones."""
    folders: Sequence[str]
    """Of both, and of those before."""


class Detector(Protocol):
    """One question about the run. Its fields are its memory: plain data, in every snapshot; nobody else writes them."""

    observes: ClassVar[tuple[type, ...]]
    """What it is asked about: events, or what the engine derives from them (LookJudged, step_times.Window)."""

    def observe(self, event: Any, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take one of these in, and say what follows."""
