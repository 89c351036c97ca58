"""Garbage collections that hold one rank up while others wait: mostly over before anything need be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.incidents.evidence import of_judged
from guardrun.supervisor.engine.incidents.sentences import hang_sentence, who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RankView, RunView
from guardrun.supervisor.engine.model.verdicts import Changed, Detected, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.hang_finding import Finding, LookJudged
from guardrun.supervisor.engine.observation.rank_activity import RankActivity

GC_LOOK_S = 5.0
"""One that ends is reported by its rank, from a second on (the contract's `gc_pause`), which knows what it cost."""
MIN_SHARE = 0.1
"""Of the gap in which its rank advanced no further, once that has ended, and waiting for a core counted in both: a
second of collections, here and there in a long piece of work, held nobody up."""
_KEPT = 50
SHARE = 0.75
"""Of the collection that the gap of one that waited covers at least: its last advance may lie within the pause."""
CAUSE = "gc_pause"
CONFIDENCE = 0.95


class HeldStep(msgspec.Struct, kw_only=True):
    """A step of a rank that collections took part of, and that is not over yet."""

    event: ev.GcHeld
    waited: list[int]
    """Ranks that could not go on meanwhile."""
    began_s: float
    progress: int
    """The rank's."""


class GcPause(msgspec.Struct, kw_only=True):
    """Whom a collection holds up. One incident a rank and attempt; later pauses of the rank are added to it."""

    observes: ClassVar[tuple[type, ...]] = (ev.GcHeld, ev.NodeReport, LookJudged)
    attempt: int = -1
    held: dict[int, HeldStep] = {}
    """Per rank."""
    reported: set[int] = set()
    """Ranks that have an incident in this attempt."""

    def observe(self, event: ev.GcHeld | ev.NodeReport | LookJudged, view: RunView, now_s: float) -> Sequence[Verdict]:
        """What a rank reports of its own collection, what shows that its step is over, and what a look shows."""
        if isinstance(event, ev.NodeReport) and not self.held:
            return ()
        attempt = view.attempt
        if attempt is None or (not isinstance(event, LookJudged) and event.attempt != attempt.number):
            return ()
        if self.attempt != attempt.number:
            self.attempt, self.held, self.reported = attempt.number, {}, set()
        if isinstance(event, ev.NodeReport):
            return self._on_progress(view, attempt)
        if isinstance(event, ev.GcHeld):
            return self._on_gc_held(view, attempt, event, now_s)
        return self._on_look(attempt, event, now_s)

    def key(self, attempt: int, rank: int) -> str:
        """Of the incident that reports a rank's collections in an attempt; empty: there is none."""
        return f"{CAUSE}/{attempt}/{rank}" if attempt == self.attempt and rank in self.reported else ""

    def look_due_s(self, attempt: AttemptView, silence_began_s: float, never_s: float) -> float:
        """When a collection deserves a look: it has gone on for GC_LOOK_S, and nobody has advanced meanwhile."""
        if not attempt.collecting or attempt.alive < 2 or not attempt.has_progress:
            return never_s
        known = self.reported if attempt.number == self.attempt else ()
        since_s = min((s for n, s in attempt.collecting.items() if n not in known), default=None)
        return never_s if since_s is None else max(since_s, silence_began_s) + GC_LOOK_S

    def _on_gc_held(self, view: RunView, attempt: AttemptView, event: ev.GcHeld, now_s: float) -> Sequence[Verdict]:
        """Told afterwards by the rank itself: an incident only if others waited for it meanwhile."""
        if event.global_rank not in attempt.ranks:
            return ()
        if event.global_rank in self.reported:
            return self._add(view, event)
        resumed_step = attempt.resumed_from.step if attempt.resumed_from else 0
        began_s = now_s - event.duration_s
        collected = {*attempt.collecting, *(number for number, at_s in attempt.collected_s.items() if at_s > began_s)}
        if event.step <= resumed_step or collected - {event.global_rank}:
            # Imports collect a lot, and before the first step nobody waits; those that collect too do not wait either.
            return ()
        others = [(n, r) for n, r in attempt.ranks.items() if n != event.global_rank and r.exitcode is None]
        # In step with it, and not past the step in which it collected (the edge samples before it tells this event).
        waited = [number for number, rank in others if rank.progress and _has_waited(rank, event)]
        if not waited:
            return ()
        rank = attempt.ranks[event.global_rank]
        began_s = max(began_s, 0.0)
        before = self.held.get(event.global_rank)
        if before is not None and before.event.step == event.step:
            began_s = min(began_s, before.began_s)
            if event.tracked < 0:
                event = msgspec.structs.replace(event, tracked=before.event.tracked)
        held = HeldStep(event=event, waited=waited, began_s=began_s, progress=rank.progress)
        if rank.step > event.step:
            return self._report(attempt, held, rank.gap_s)
        self.held[event.global_rank] = held
        return ()

    def _on_progress(self, view: RunView, attempt: AttemptView) -> Sequence[Verdict]:
        """Report those collections whose step is over now, if they were a good part of it."""
        verdicts: list[Verdict] = []
        for number, held in list(self.held.items()):
            rank = attempt.ranks[number]
            if rank.progress > held.progress:
                del self.held[number]
                is_known = number in self.reported
                verdicts += self._add(view, held.event) if is_known else self._report(attempt, held, rank.gap_s)
        return verdicts

    def _on_look(self, attempt: AttemptView, event: LookJudged, now_s: float) -> Sequence[Verdict]:
        """A collection that is seen to hold one rank while others wait is reported at once."""
        waiting = [j.global_rank for j in event.by_rank.values() if j.doing is RankActivity.WAITING]
        verdicts: list[Verdict] = []
        for look in event.looks:
            rank = look.global_rank
            is_long = look.gc_since_s and now_s - look.gc_since_s >= GC_LOOK_S
            if not is_long or not waiting or rank in self.reported:
                continue
            judgement = event.by_rank[rank]
            if judgement.doing is not RankActivity.COLLECTING or judgement.is_starved:
                continue  # what a starved one waits for is a core, as everything on this node may
            found = Finding(
                cause=CAUSE, culprits=[rank], waiting=waiting, confidence=CONFIDENCE, patience_s=0,
                doing=RankActivity.COLLECTING,
            )  # fmt: skip
            summary = hang_sentence(attempt, found, event.by_rank, now_s - look.gc_since_s)
            evidence: dict[str, Any] = {"waiting": waiting, "ranks": of_judged(attempt, event.by_rank, [rank])}
            verdicts.append(self._detected(rank, summary, look.gc_since_s, evidence, looks=event.folders[-2:]))
        return verdicts

    def _add(self, view: RunView, event: ev.GcHeld) -> Sequence[Verdict]:
        """One more of a rank of which one has been reported, or more of one that is known."""
        key = self.key(event.attempt, event.global_rank)
        known = view.incident_of(key)
        assert known is not None
        pauses = [pause for pause in known.evidence.get("pauses", []) if pause["step"] != event.step]
        pauses = [*pauses, _pause(event)][-_KEPT:]
        return [Changed(key=key, evidence={**known.evidence, "pauses": pauses})]

    def _report(self, attempt: AttemptView, held: HeldStep, gap_s: float) -> Sequence[Verdict]:
        event, waited = held.event, held.waited
        if max(event.duration_s, event.lasted_s) < MIN_SHARE * gap_s:
            return ()
        summary = (
            f"{who(attempt, [event.global_rank])} held the others up for {event.duration_s:.1f} s in a garbage "
            f"collection (generation {event.generation}{_objects(event)}) at step {event.step}; "
            f"{'rank' if len(waited) == 1 else 'ranks'} {rank_list(waited)} waited."
        )
        evidence = {"pauses": [_pause(event)], "waiting": waited}
        # By now the ranks may be some steps further.
        return [self._detected(event.global_rank, summary, held.began_s, evidence, step=event.step)]

    def _detected(
        self,
        rank: int,
        summary: str,
        onset_s: float,
        evidence: dict[str, Any],
        *,
        looks: Sequence[str] = (),
        step: int | None = None,
    ) -> Detected:
        self.reported.add(rank)
        return Detected(
            key=self.key(self.attempt, rank),
            kind="hang",
            cause=CAUSE,
            confidence=CONFIDENCE,
            summary=summary,
            culprits=[rank],
            onset_s=onset_s,
            evidence=evidence,
            looks=looks,
            step=step,
            ends_with_progress=True,
        )


def _has_waited(rank: RankView, event: ev.GcHeld) -> bool:
    """Whether a rank shows that it could not get past the step of the collection.

    Those that waited go on at once: by now it may have done that step, after a gap as long as the collection.
    """
    return rank.step <= event.step or (rank.step == event.step + 1 and rank.gap_s >= SHARE * event.duration_s)


def _objects(event: ev.GcHeld) -> str:
    """How many objects it looked at, and gave back, in words."""
    if event.tracked < 0:
        return f", {event.collected:,} objects collected" if event.collected else ""
    return f", {event.tracked + event.collected:,} objects, {event.collected:,} of them collected"


def _pause(event: ev.GcHeld) -> dict[str, Any]:
    return {
        "step": event.step,
        "duration_s": round(event.duration_s, 3),
        "generation": event.generation,
        "collected": event.collected,
        "tracked": event.tracked,
    }
