"""Steps that would be much shorter if data were there: `slowdown`, cause `dataloader_bound`.

What counts is what data adds to the slowest rank's step: a rank that waits for data while it would wait for others
anyway costs nothing. Reported once a run, after WINDOWS windows in a row that say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.incidents.sentences import seconds_text, who
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Detected, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.step_times import Window, high

LIMIT = 0.2
"""Share of the step."""
WINDOWS = 3
"""In a row."""
CULPRIT_SHARE = 0.5
"""Of what the rank that waits most waits."""
MAX_CULPRITS = 64
CONFIDENCE = 0.85
CAUSE = "dataloader_bound"


class DataloaderBound(msgspec.Struct, kw_only=True):
    """Whether data makes the run's steps longer."""

    observes: ClassVar[tuple[type, ...]] = (Window,)
    attempt: int = -1
    strikes: int = 0
    """Windows in a row."""

    def observe(self, event: Window, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Count a window, and report where it is one too many."""
        attempt, parts = running_attempt(view), event.parts
        if attempt is None:
            return ()
        if self.attempt != attempt.number:
            self.attempt, self.strikes = attempt.number, 0
        self.strikes = self.strikes + 1 if parts.data_s >= LIMIT * parts.step_s else 0
        if self.strikes < WINDOWS or view.incident_of(CAUSE) is not None:
            return ()
        return [_verdict(attempt, event, now_s)]


def _verdict(attempt: AttemptView, window: Window, now_s: float) -> Detected:
    parts, shares = window.parts, window.shares
    limit_s = CULPRIT_SHARE * high([share.data_s for share in shares.values()])
    waiting = sorted(rank for rank, share in shares.items() if share.data_s >= limit_s)
    are_some = len(waiting) <= len(shares) // 2
    are_named = are_some or len(shares) == 1
    lasted_s = WINDOWS * (now_s - window.began_s)
    subject = who(attempt, waiting) if are_named else "The ranks"
    verb = "waits" if len(waiting) == 1 else "wait"
    others = ", and the others for that" if are_some else ""
    summary = (
        f"{subject} {verb} for data{others}: {parts.data_s / parts.step_s:.0%} of the last {lasted_s:.0f} s; without, "
        f"a step would take {seconds_text(parts.step_s - parts.data_s)} instead of {seconds_text(parts.step_s)}."
    )
    evidence: dict[str, Any] = {
        "share": round(parts.data_s / parts.step_s, 3),
        "window_s": round(lasted_s, 1),
        "ranks": rank_list(waiting),
        "waited_s": {str(rank): round(shares[rank].data_s, 4) for rank in waiting[:MAX_CULPRITS]},
        "step_s": round(parts.step_s, 4),
        "place": "waiting for data",
    }
    return Detected(
        key=CAUSE,
        kind="slowdown",
        cause=CAUSE,
        confidence=CONFIDENCE,
        summary=summary,
        culprits=waiting[:MAX_CULPRITS] if are_named else [],
        onset_s=max(0.0, now_s - lasted_s),
        evidence=evidence,
    )
