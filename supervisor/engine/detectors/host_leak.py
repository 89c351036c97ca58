"""A rank that comes to hold more and more host memory: `memory`, cause `host_leak`.

Where none is left, the kernel kills a process of the job, mostly hours after the start. Three parts are compared: the
rank's own process, the processes below it, shared memory. detectors/growing.py says which growth is told.

A limit is mostly the node's: ranks of a node that grow count together, and those that grow alike are named together,
each once a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.detectors.growing import CONFIDENCE, MAX_CULPRITS, Growing, range_words
from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.memory_growth import MIB, Growth

LARGEST = 0.6
"""Share of what processes below a rank have come to hold that one of them has, to be named."""
CAUSE = "host_leak"


class HostLeak(Growing, kw_only=True):
    """Whose host memory becomes more and more."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeReport,)
    use: dict[int, ev.MemoryUse] = msgspec.field(default_factory=dict)
    """Newest, of each rank."""

    def observe(self, event: ev.NodeReport, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take in what a node's ranks hold."""
        reports = [report for report in event.ranks if report.memory is not None]
        attempt = running_attempt(view) if reports else None
        if attempt is None or event.attempt != attempt.number:
            return ()
        if self.begin(attempt, view.settings):
            self.use = {}
        shortest_s = view.settings.memory_window_s
        verdicts: list[Verdict] = []
        for report in reports:
            rank, use = report.global_rank, report.memory
            if use is None or (held := self.holder(rank, event.node, report.step, attempt, now_s)) is None:
                continue
            self.use[rank] = use
            parts = {"own": use.own, "below": use.below, "shared": use.shared}
            for place in held.add(parts, use.limit - use.used, now_s, shortest_s):
                for key, left in self.ended(rank, place):
                    text = f"{who(attempt, [rank])} holds no more host memory than {size(MIB * left)}"
                    verdicts.append(Over(key=key, text=text))
                growth = self.find(rank, place, use.limit, shortest_s)
                if growth is not None:
                    verdicts += self._detected(growth, place, attempt, now_s)
            verdicts += self.outlook(rank, view.settings, now_s)
        return verdicts

    def _detected(self, growth: Growth, place: int, attempt: AttemptView, now_s: float) -> list[Verdict]:
        ranks = self.alike({rank: growth.rate(rank) for rank in growth.trends})
        if not ranks:
            return []
        first = growth.fastest_part(ranks[0])
        key = self.book(CAUSE, ranks, place, first, growth.trends[ranks[0]][first].risen)
        shown = ranks[:MAX_CULPRITS]
        lead = max(ranks, key=growth.rate)
        part, use = growth.fastest_part(lead), self.use.get(lead, ev.MemoryUse(0))
        known = self.describe(lead, part, growth, sum(map(growth.rate, ranks)), now_s)
        onset_s = known.pop("onset_s")
        evidence: dict[str, Any] = {
            "ranks": rank_list(ranks),
            "part": part,
            "pid": _pid(part, use, attempt, lead),
            "limit_bytes": use.limit,
            "used_bytes": use.used,
            "rise_bytes": MIB * sum(trend.risen for rank in ranks for trend in growth.trends[rank].values()),
            **known,
            "grown_bytes": {
                str(rank): {name: MIB * one.risen for name, one in growth.trends[rank].items()} for rank in shown
            },
            "processes_below": use.processes,
        }
        detected = Detected(
            key=key,
            kind="memory",
            cause=CAUSE,
            confidence=CONFIDENCE,
            summary=_sentence(who(attempt, shown), evidence),
            culprits=shown,
            onset_s=onset_s,
            evidence=evidence,
        )
        return [detected]


def _pid(part: str, use: ev.MemoryUse, attempt: AttemptView, rank: int) -> int | None:
    """Of the process that grows; None where it is several, or nobody's alone."""
    if part == "own":
        return attempt.ranks[rank].rank.pid if rank in attempt.ranks else None
    pid, grown = use.largest
    return pid if part == "below" and grown >= LARGEST * use.below else None


def _sentence(subject: str, evidence: Mapping[str, Any]) -> str:
    is_one = "-" not in evidence["ranks"] and "," not in evidence["ranks"]
    pid, count = evidence["pid"], evidence["processes_below"]
    where = {
        "own": f"in its own process (pid {pid})" if is_one else "in their own processes",
        "below": f"in process {pid} below it"
        if is_one and pid
        else f"in the {count} processes below {'it' if is_one else 'each'}",
        "shared": "in shared memory",
    }[evidence["part"]]
    has = "holds" if is_one else "hold"
    return (
        f"{subject} {has} {size(evidence['per_hour_bytes'])} more host memory every hour, {where}: "
        f"the limit of {size(evidence['limit_bytes'])} is reached in {range_words(*evidence['left_range_s'])}."
    )
