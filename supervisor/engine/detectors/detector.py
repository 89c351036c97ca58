"""What a detector is: it observes, and answers with verdicts (engine/model/verdicts.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from guardrun.supervisor.engine.model.run_view import RunView
from guardrun.supervisor.engine.model.verdicts import Verdict
from guardrun.supervisor.engine.observation.hang_finding import LookJudged


class Detector(Protocol):
    """One question about the run. Its fields are its memory: plain data, in every snapshot; nobody else writes them."""

    observes: ClassVar[tuple[type, ...]]
    """What it is asked about: events, or what the engine derives from them (LookJudged, step_times.Window)."""

    def observe(self, event: Any, view: RunView, now_s: float) -> Sequence[Verdict | LookJudged]:
        """Take one of these in, and say what follows."""
