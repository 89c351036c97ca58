"""Ranks that have become slow, and for which all others wait: `slowdown`, cause `straggler`.

Who is suspected in a window is answered by engine/observation/rank_baseline.py; a rank is reported when it was so
WINDOWS times in a row, and is well again when it has come back to its place for as long as WELL. What its node's
sensors say, and do not say of the others, makes it more certain. One that takes about twice the others' time is told
sooner (engine/observation/far_behind.py), with less confidence, until it has been suspected as often.

A rank that has been slower from the start is no straggler to us: most such are uneven work. Only where its node's
sensors say what the others' don't it is reported, with low confidence; else once, as a remark.

Nothing is done about it, unless `[policy] responses` says `straggler = "isolate"`: then the node is kept from what
comes, once its rank has been suspected WINDOWS times. Training goes on; and where all ranks are on one node, there is
no other that it was slower than.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.incidents.sentences import seconds_text, who
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt, wrong_with
from guardrun.supervisor.engine.model.verdicts import Changed, Detected, Over, Remark, Verdict
from guardrun.supervisor.engine.observation.far_behind import FarBehind
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.rank_baseline import (
    EARLY,
    LOSS,
    RankBaseline,
    Suspect,
    excesses,
    steady,
    suspects,
)
from guardrun.supervisor.engine.observation.step_times import BriefWindow, Window

WINDOWS = 3
"""In a row: without continuity a third of such verdicts are wrong (Minder)."""
WELL = 2
MOST_REPORTED = 3
"""Incidents a rank; one that comes and goes is not reported for ever."""
MAX_CULPRITS = 64
CONFIDENCE = 0.75
SOON = 0.7
"""What brief windows say."""
WITH_SENSORS = 0.9
FROM_THE_START = 0.6
CAUSE = "straggler"


class Straggler(msgspec.Struct, kw_only=True):
    """Who slows the others down."""

    observes: ClassVar[tuple[type, ...]] = (Window, BriefWindow)
    attempt: int = -1
    windows: int = 0
    """Of this attempt, those of warm-up left out."""
    usual: RankBaseline = msgspec.field(default_factory=RankBaseline)
    strikes: dict[int, int] = {}
    """Per rank that is suspected: in how many windows in a row."""
    since_s: dict[int, float] = {}
    """Per such rank: since when."""
    far: FarBehind = msgspec.field(default_factory=FarBehind)
    told_soon: list[str] = []
    """Keys of incidents that brief windows alone speak for."""
    reported: dict[int, str] = {}
    """Per rank that is slow: the key of its incident."""
    well: dict[int, int] = {}
    """Per such rank: windows in a row in which it was well."""
    steady: list[int] = []
    """Ranks that have been slower from the start."""
    has_remarked: bool = False
    count: int = 0
    """Incidents of this run."""

    def observe(self, event: Window, view: RunView, now_s: float) -> Sequence[Verdict]:
        """A window is closed: who was slow in it, who has been slow for long enough, who is well again."""
        attempt = running_attempt(view)
        if attempt is None:
            return ()
        if self.attempt != attempt.number:
            self._begin(attempt)
        nodes = {rank: attempt.ranks[rank].rank.node for rank in event.shares if rank in attempt.ranks}
        if isinstance(event, BriefWindow):
            return self._observe_brief(view, attempt, event, nodes, now_s)
        self.windows += 1
        found = suspects(event, self.usual, nodes)
        self.strikes = {each.rank: self.strikes.get(each.rank, 0) + 1 for each in found}
        self.since_s = {each.rank: self.since_s.get(each.rank, event.began_s) for each in found}
        verdicts = self._note_well(attempt, event)
        was_learning = not self.usual.excess
        if not was_learning or not self.reported:  # what is slow must not be learned as usual
            self.usual.learn(event, {*self.strikes, *self.reported})
        if was_learning and self.usual.excess and self.windows == EARLY:
            verdicts += self._note_steady(attempt, steady(self.usual, event, nodes))
        verdicts += self._with_sensors(view, attempt, event, nodes, now_s)
        lasting = [each for each in found if self.strikes[each.rank] >= WINDOWS]
        verdicts += self._confirm(view, attempt, lasting, event, now_s)
        due = [each for each in lasting if self._is_new(view, each.rank)]
        return [*verdicts, self._verdict(view, attempt, due, event, now_s)] if due else verdicts

    def _begin(self, attempt: AttemptView) -> None:
        """Ranks of the same number have the same work, wherever they are: places stay, where as many train again."""
        self.attempt, self.windows = attempt.number, 0
        self.strikes, self.since_s, self.well = {}, {}, {}
        self.far.begin(len(attempt.ranks))
        if self.usual.world_size != len(attempt.ranks):
            self.usual.forget(len(attempt.ranks))
            self.reported, self.steady = {}, []

    def _is_new(self, view: RunView, rank: int, has_lasted: bool = True) -> bool:
        """Whether it is to be reported. What was told soon, and did not last, does not count against what does."""
        if rank in self.reported:
            return False
        soon = {incident.id for key in self.told_soon if has_lasted and (incident := view.incident_of(key))}
        before = [each for each in view.incidents.values() if each.cause == CAUSE and each.id not in soon]
        return sum(any(culprit.rank == rank for culprit in each.culprits) for each in before) < MOST_REPORTED

    def _observe_brief(
        self, view: RunView, attempt: AttemptView, window: BriefWindow, nodes: Mapping[int, str], now_s: float
    ) -> list[Verdict]:
        """Who is far behind is told; what follows from it waits until it has lasted."""
        far = self.far.observe(window, nodes, self.reported)
        due = [each for each in far if self._is_new(view, each.rank, has_lasted=False)]
        if not due:
            return []
        verdict = self._verdict(view, attempt, due, window, now_s)
        self.told_soon = [*self.told_soon, verdict.key]
        confidence = max(SOON, verdict.confidence if verdict.evidence["sensors"] else 0.0)
        return [msgspec.structs.replace(verdict, confidence=confidence, node="")]

    def _confirm(
        self, view: RunView, attempt: AttemptView, found: list[Suspect], window: Window, now_s: float
    ) -> list[Verdict]:
        """What was told soon has lasted."""
        verdicts: list[Verdict] = []
        for key in sorted({self.reported.get(each.rank, "") for each in found}.intersection(self.told_soon)):
            self.told_soon = [other for other in self.told_soon if other != key]
            same = [each for each in found if self.reported.get(each.rank) == key]
            now = self._verdict(view, attempt, same, window, now_s)
            verdicts.append(
                Changed(key=key, evidence=now.evidence, summary=now.summary, confidence=now.confidence, node=now.node)
            )
        return verdicts

    def _verdict(
        self, view: RunView, attempt: AttemptView, found: list[Suspect], window: Window, now_s: float
    ) -> Detected:
        """What is to be said of them: of an incident of its own, unless one reports them already."""
        ranks = [each.rank for each in found]
        began_s = self.far.since_s if isinstance(window, BriefWindow) else self.since_s
        since_s = min(began_s[rank] for rank in ranks)
        sensors = _sensors(view, ranks, window)
        text = (
            f"{who(attempt, ranks)} {'has' if len(ranks) == 1 else 'have'} become slow: {_compared(found, window)}, "
            f"for {now_s - since_s:.0f} s{_said(sensors)}."
        )
        if not (key := self.reported.get(ranks[0], "")):
            self.count += 1
            key = f"{CAUSE}/{self.count}"
            self.reported.update(dict.fromkeys(ranks, key))
            self.usual.doubted = []
        nodes = {attempt.ranks[rank].rank.node for rank in ranks}
        has_others = any(attempt.ranks[rank].rank.node not in nodes for rank in window.shares)
        return Detected(
            key=key,
            kind="slowdown",
            cause=CAUSE,
            confidence=WITH_SENSORS if sensors else CONFIDENCE,
            summary=text,
            culprits=ranks[:MAX_CULPRITS],
            onset_s=since_s,
            evidence=self._evidence(attempt, found, window, sensors),
            node=nodes.pop() if len(nodes) == 1 and has_others else "",
        )

    def _evidence(
        self, attempt: AttemptView, found: list[Suspect], window: Window, sensors: list[str]
    ) -> dict[str, Any]:
        ranks = [each.rank for each in found]
        nodes = sorted({attempt.ranks[rank].rank.node for rank in ranks})
        usual = self.far.usual if isinstance(window, BriefWindow) else self.usual
        excess = excesses(window)
        return {
            "ranks": rank_list(ranks),
            "nodes": nodes[:MAX_CULPRITS],
            "own_s": {str(each.rank): round(each.own_s, 4) for each in found[:MAX_CULPRITS]},
            "others_own_s": round(found[0].others_own_s, 4),
            "waited_s": {str(rank): round(window.shares[rank].waited_s, 4) for rank in ranks[:MAX_CULPRITS]},
            "step_s": {"usual": round(usual.step_s, 4), "now": round(window.parts.step_s, 4)},
            "lost_share": round(min(each.loss_s for each in found) / window.parts.step_s, 3),
            "excess": {
                str(rank): {"usual": round(usual.excess.get(rank, 0.0), 3), "now": round(excess[rank], 3)}
                for rank in ranks[:MAX_CULPRITS]
            },
            "compared": len(window.shares),
            "sensors": sensors,
            "place": f"straggler on {', '.join(nodes[:4])}",
        }

    def _note_well(self, attempt: AttemptView, window: Window) -> list[Verdict]:
        """Those that have come back to their places; an incident is over with the last of its ranks."""
        usual = self.usual.excess or self.far.usual.excess
        if not self.reported or not usual:
            return []
        excess = excesses(window)
        for rank in self.reported:
            is_well = rank in excess and excess[rank] - usual.get(rank, 0.0) < LOSS / 2
            self.well[rank] = self.well.get(rank, 0) + 1 if is_well else 0
        verdicts: list[Verdict] = []
        for key in sorted(set(self.reported.values())):
            ranks = [rank for rank, known in self.reported.items() if known == key]
            if any(self.well.get(rank, 0) < WELL for rank in ranks):
                continue
            for rank in ranks:
                del self.reported[rank], self.well[rank]
            words = f"{who(attempt, ranks)} {'is' if len(ranks) == 1 else 'are'} as fast as before"
            verdicts.append(Over(key=key, text=words))
        return verdicts

    def _note_steady(self, attempt: AttemptView, found: list[Suspect]) -> list[Verdict]:
        """Slower since the first windows: remembered, and remarked once."""
        self.steady = [each.rank for each in found]
        if not found or self.has_remarked:
            return []
        self.has_remarked = True
        worst = max(found, key=lambda each: each.own_s)
        text = (
            f"{who(attempt, self.steady)} {'has' if len(found) == 1 else 'have'} worked longer than the others "
            f"from the start ({seconds_text(worst.own_s)} of each step, they {seconds_text(worst.others_own_s)}): "
            f"uneven work, or a slow node"
        )
        return [Remark(text=text)]

    def _with_sensors(
        self, view: RunView, attempt: AttemptView, window: Window, nodes: Mapping[int, str], now_s: float
    ) -> list[Verdict]:
        """What has been slower from the start is reported when its node's sensors say why."""
        if not self.steady or not view.detectors.node_health.findings:
            return []
        found = steady(self.usual, window, nodes)
        ranks = [each.rank for each in found]
        if ranks != self.steady:
            return []
        sensors = _sensors(view, ranks, window)
        if not sensors:
            return []
        self.steady = []
        self.count += 1
        text = (
            f"{who(attempt, ranks)} {'has' if len(ranks) == 1 else 'have'} been slower than the others from the "
            f"start: {_compared(found, window)}{_said(sensors)}."
        )
        return [
            Detected(
                key=f"{CAUSE}/{self.count}",
                kind="slowdown",
                cause=CAUSE,
                confidence=FROM_THE_START,
                summary=text,
                culprits=ranks[:MAX_CULPRITS],
                onset_s=attempt.started_s,
                evidence=self._evidence(attempt, found, window, sensors),
            )
        ]


def _compared(found: list[Suspect], window: Window) -> str:
    worst = max(found, key=lambda each: each.own_s)
    it, its = ("it", "its") if len(found) == 1 else ("them", "their")
    factor = window.parts.step_s / (window.parts.step_s - min(each.loss_s for each in found))
    return (
        f"{seconds_text(worst.own_s)} of each step {'is' if len(found) == 1 else 'are'} {its} own work, "
        f"{seconds_text(worst.others_own_s)} the others', who wait for {it}: steps take {factor:.1f} times as long"
    )


def _said(sensors: list[str]) -> str:
    return f"; its node says: {'; '.join(text.rstrip('.') for text in sensors)}" if sensors else ""


def _sensors(view: RunView, ranks: list[int], window: Window) -> list[str]:
    """What is wrong with their devices and nodes, and is not with the others'."""
    if not view.detectors.node_health.findings:
        return []
    others = [rank for rank in window.shares if rank not in set(ranks)]
    elsewhere = set(wrong_with(view, others))
    return [text for text in wrong_with(view, ranks) if text not in elsewhere]
