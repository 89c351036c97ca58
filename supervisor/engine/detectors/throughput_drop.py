"""Steps that take longer than they used to, for everybody: `slowdown`, cause `throughput_drop`.

A change of the mean alone gives false alarms (Greyhound): what is reported is a shift of FACTOR or more, and of SPREADS
times what windows usually differ by, in each of LASTS windows in a row. Evaluations, saves and compilations are not in
the windows at all. What has been reported already, and explains it (a straggler, data, a throttled device), is not
reported twice.

The sentence says what the time goes to. A script that goes over to longer sequences, or larger batches, shows as the
own work of all ranks alike: that is said, and no fault is found with anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.detectors import dataloader_bound
from guardrun.supervisor.engine.incidents.sentences import seconds_text
from guardrun.supervisor.engine.model.run_view import RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.step_times import Parts, Window, middle

FACTOR = 1.2
SPREADS = 5
LASTS = 6
"""Windows: two minutes."""
BEFORE = 6
"""Windows at least that say what was usual."""
KEPT = 45
WELL = 3
WELL_FACTOR = 1.05
MOST_REPORTED = 3
"""In a run."""
CONFIDENCE = 0.8
CAUSE = "throughput_drop"
_WORDS = {
    "work": "the ranks' own work, of all alike",
    "uneven": "the own work of some ranks, for which the others wait",
    "data": "waiting for data",
    "gc": "garbage collection",
    "rest": "communication",
}
"""What the time may go to."""


class ThroughputDrop(msgspec.Struct, kw_only=True):
    """Whether the run is as fast as it was."""

    observes: ClassVar[tuple[type, ...]] = (Window,)
    world_size: int = 0
    parts: list[Parts] = []
    """What steps were made of, window by window, the last one last."""
    reported: str = ""
    """Key of the incident that steps take longer, for as long as they do."""
    count: int = 0
    """Incidents of this run."""
    usual_step_s: float = 0.0
    """Before the drop that is reported."""

    def observe(self, event: Window, view: RunView, now_s: float) -> Sequence[Verdict]:
        """A window is closed: is this still the speed that the run had?"""
        attempt = running_attempt(view)
        if attempt is None:
            return ()
        if self.world_size != len(attempt.ranks):
            self.world_size, self.parts, self.reported = len(attempt.ranks), [], ""
        self.parts = [*self.parts, event.parts][-KEPT:]
        if self.reported:
            return self._note_well()
        before, since = self.parts[:-LASTS], self.parts[-LASTS:]
        if len(before) < BEFORE or view.detectors.straggler.strikes or not _is_drop(before, since):
            return ()
        usual, now = typical(before), typical(since)
        self.parts = since
        if self.count >= MOST_REPORTED or _is_explained(view, part_of(usual, now)):
            return ()
        self.count += 1
        self.reported, self.usual_step_s = f"{CAUSE}/{self.count}", usual.step_s
        return [_verdict(self.reported, usual, now, LASTS * (now_s - event.began_s), now_s)]

    def _note_well(self) -> Sequence[Verdict]:
        """It is over when steps have been as short as before for a while."""
        limit_s = WELL_FACTOR * round(self.usual_step_s, 4)
        if any(parts.step_s > limit_s for parts in self.parts[-WELL:]):
            return ()
        key, self.reported = self.reported, ""
        self.parts = self.parts[-WELL:]
        return [Over(key=key, text="steps are as short as before")]


def _is_drop(before: list[Parts], since: list[Parts]) -> bool:
    steps_s = [parts.step_s for parts in before]
    usual_s = middle(steps_s)
    spread_s = middle([abs(step_s - usual_s) for step_s in steps_s])
    limit_s = usual_s + max((FACTOR - 1) * usual_s, SPREADS * spread_s)
    return all(parts.step_s >= limit_s for parts in since)


def typical(some: list[Parts]) -> Parts:
    """The median of each part."""
    return Parts(*(middle([parts[index] for parts in some]) for index in range(len(Parts._fields))))


def part_of(usual: Parts, now: Parts) -> str:
    """What most of the longer step goes to: a key of _WORDS."""
    more = {
        "work": now.work_s - usual.work_s,
        "data": now.data_s - usual.data_s,
        "gc": now.gc_s - usual.gc_s,
        "rest": now.rest_s - usual.rest_s,
    }
    part = max(more, key=lambda name: more[name])
    is_alike = now.median_work_s - usual.median_work_s >= more["work"] / 2
    return "uneven" if part == "work" and not is_alike else part


def _is_explained(view: RunView, part: str) -> bool:
    """Whether an incident that was opened says why."""
    if view.detectors.straggler.reported or (part == "data" and view.incident_of(dataloader_bound.CAUSE) is not None):
        return True
    reported = (view.incident_of(key) for key in view.detectors.node_health.reported.values())
    return any(incident is not None and incident.kind == "slowdown" for incident in reported)


def _verdict(key: str, usual: Parts, now: Parts, lasted_s: float, now_s: float) -> Detected:
    part = part_of(usual, now)
    summary = (
        f"Steps have taken {now.step_s / usual.step_s:.1f} times as long as before for {lasted_s:.0f} s: "
        f"{seconds_text(now.step_s)} each, before {seconds_text(usual.step_s)}; what has grown is {_WORDS[part]}."
    )
    evidence: dict[str, Any] = {
        "factor": round(now.step_s / usual.step_s, 3),
        "part": part,
        "usual": _as_dict(usual),
        "now": _as_dict(now),
        "place": f"throughput_drop: {part}",
    }
    return Detected(
        key=key,
        kind="slowdown",
        cause=CAUSE,
        confidence=CONFIDENCE,
        summary=summary,
        culprits=[],
        onset_s=max(0.0, now_s - lasted_s),
        evidence=evidence,
    )


def _as_dict(parts: Parts) -> dict[str, float]:
    return {name: round(value, 4) for name, value in parts._asdict().items()}
