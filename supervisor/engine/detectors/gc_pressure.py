"""Garbage collections that each take little, and together hold the job up: `slowdown`, cause `gc_pressure`.

Ranks train in step: while one collects, all that share a collective with it wait. Collections at different steps add
up, those at the same step cost as much as the longest. A node's reports come once a second and say how long each of its
ranks has collected so far; of each the rank that collected longest counts, and of the nodes the one that comes to most.
So what is reported is the least that collections have cost, whoever waited for whom: several within a second count as
one.

Reported once a run, after two windows in a row that say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Detected, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list

LIMIT = 0.1
"""Share of the time."""
WINDOW_S = 30.0
WINDOW_STEPS = 20
WINDOWS = 2
"""In a row."""
SKEW = 1.25
"""What is lost is so much more than the rank that collects most spends: then they do not collect together."""
MAX_CULPRITS = 64
CULPRIT_SHARE = 0.5
"""Of what the rank that collects most spends."""
CAUSE = "gc_pressure"


class GcPressure(msgspec.Struct, kw_only=True):
    """What collections have cost since began_s."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeReport,)
    attempt: int = -1
    began_s: float = 0.0
    """0: no step has been done yet."""
    first_step: int = 0
    held_s: dict[str, float] = {}
    """Per node: of each of its reports what the rank that had collected longest meanwhile spent, summed."""
    spent_s: dict[int, float] = {}
    """Per rank."""
    totals_s: dict[int, float] = {}
    """Per rank, since it began: what the last report said."""
    strikes: int = 0
    is_reported: bool = False

    def observe(self, event: ev.NodeReport, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take the collectors' times of a node's ranks in."""
        attempt = running_attempt(view)
        if attempt is None or event.attempt != attempt.number or self.is_reported:
            return ()
        if self.attempt != attempt.number:
            self.attempt, self.began_s, self.totals_s, self.strikes = attempt.number, 0.0, {}, 0
        verdicts: Sequence[Verdict] = ()
        # Imports, compilation and the first step collect a lot, and nobody waits for it.
        is_first = not self.began_s and attempt.step > 0
        is_full = now_s - self.began_s >= WINDOW_S and attempt.step - self.first_step >= WINDOW_STEPS
        if is_first or (self.began_s and is_full):
            verdicts = self._close(view, attempt, now_s) if self.began_s else ()
            self.began_s, self.first_step = now_s, attempt.step
            self.held_s, self.spent_s = {}, {}
        self._add(event)
        return verdicts

    def _add(self, event: ev.NodeReport) -> None:
        worst_s = 0.0
        for report in event.ranks:
            number, total_s = report.global_rank, report.gc_total_s
            spent_s = total_s - self.totals_s.get(number, total_s)
            self.totals_s[number] = total_s
            if spent_s > 0 and self.began_s:
                self.spent_s[number] = self.spent_s.get(number, 0.0) + spent_s
                worst_s = max(worst_s, spent_s)
        if worst_s:
            self.held_s[event.node] = self.held_s.get(event.node, 0.0) + worst_s

    def _close(self, view: RunView, attempt: AttemptView, now_s: float) -> Sequence[Verdict]:
        """A window is full: count it, and report where it is one too many."""
        lasted_s = now_s - self.began_s
        share = min(1.0, max(self.held_s.values(), default=0.0) / lasted_s)
        self.strikes = self.strikes + 1 if share >= LIMIT else 0
        if self.strikes < WINDOWS:
            return ()
        self.is_reported = True
        return [self._verdict(view, attempt, share, lasted_s, now_s)]

    def _verdict(self, view: RunView, attempt: AttemptView, share: float, lasted_s: float, now_s: float) -> Detected:
        most_s = max(self.spent_s.values())
        culprits = sorted(rank for rank, seconds in self.spent_s.items() if seconds >= CULPRIT_SHARE * most_s)
        shown = culprits[:MAX_CULPRITS]
        is_skewed = len(attempt.ranks) > 1 and share * lasted_s >= SKEW * most_s
        how = "collects" if len(shown) == 1 else "collect"
        if is_skewed:
            how += ", each at steps of its own, and all wait for each"
        summary = (
            f"Garbage collections cost at least {share:.0%} of the last {lasted_s:.0f} s: {who(attempt, shown)} {how}."
        )
        evidence: dict[str, Any] = {
            "share": round(share, 3),
            "window_s": round(lasted_s, 1),
            "steps": attempt.step - self.first_step,
            "is_skewed": is_skewed,
            "ranks": rank_list(culprits),
            "spent_s": {str(rank): round(self.spent_s[rank], 1) for rank in shown},
            "policy": view.settings.gc_policy,
        }
        return Detected(
            key=CAUSE,
            kind="slowdown",
            cause=CAUSE,
            confidence=0.9,
            summary=summary,
            culprits=shown,
            onset_s=max(0.0, now_s - WINDOWS * lasted_s),
            evidence=evidence,
        )
