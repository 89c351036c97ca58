"""A rank that comes to hold more and more host memory: `memory`, cause `host_leak`.

Where none is left, the kernel kills a process of the job, mostly hours after the start. Much grows that ends by itself:
caches, data sets that workers copy, pools of an allocator, the longest sequence so far. So what is compared are the
lowest counts of windows, by part: the rank's own process, the processes below it, shared memory. All of this must hold:

- a part rises on and on (observation/memory_trend.py), beyond what it was in any window before;
- the room that is left below the limit shrinks as well, half of it or more by what these ranks hold: memory that
  others take, or that is counted twice, is none of theirs;
- they have taken SHARE of the room that there was: a leak has so much time left that one can act, and most of what
  fills up and ends has ended;
- at the rate of late it is used up within HORIZON_S, and the rise does not slow down so that it never is.

A limit is mostly the node's: ranks of a node that grow count together, and those that grow alike are named together,
each once a run. What is counted begins after a rank's first step, or WARM_UP_S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.memory_growth import MIB, Growth, Held, find_growth
from guardrun.supervisor.engine.observation.window_lows import LENGTHS

SHARE = 0.4
"""Of the room that there was when the growth began."""
RISE_MIB = 64
RISE_OF_LIMIT = 0.01
"""A rise is so many MiB, and such a share of the limit, at least: noise may be most of a room that is nearly gone."""
ALIKE = 0.5
"""Share of the fastest rank's rate at which another grows at least, to be reported with it."""
HORIZON_S = 6 * 3600.0
WARM_UP_S = 3600.0
"""Of ranks whose steps are not seen, or not yet: large models are loaded, and compiled, for half an hour."""
SLACK = 0.1
"""Share of the rise by which a part may grow in LASTS windows that is said to have stopped."""
MOST_REPORTED = 3
"""Incidents in a run."""
MAX_CULPRITS = 64
LARGEST = 0.6
"""Share of what processes below a rank have come to hold that one of them has, to be named."""
CONFIDENCE = 0.8
CAUSE = "host_leak"


class Reported(msgspec.Struct, kw_only=True):
    """An incident that is not over."""

    key: str
    ranks: list[int]
    place: int
    """In LENGTHS, of the windows that showed it."""
    part: str
    slack: int
    """MiB."""


class HostLeak(msgspec.Struct, kw_only=True):
    """Whose host memory becomes more and more."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeReport,)
    attempt: int = -1
    held: dict[int, Held] = {}
    reported: list[Reported] = []
    """Of this attempt."""
    known: set[int] = set()
    """Ranks that an incident of this run has named."""
    count: int = 0
    """Incidents of this run."""

    def observe(self, event: ev.NodeReport, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take in what a node's ranks hold."""
        attempt = running_attempt(view)
        if attempt is None or event.attempt != attempt.number:
            return ()
        if self.attempt != attempt.number:
            self.attempt, self.held, self.reported = attempt.number, {}, []
        verdicts: list[Verdict] = []
        for report in event.ranks:
            if report.memory is None:
                continue
            rank, use = report.global_rank, report.memory
            held = self.held.setdefault(rank, Held(node=event.node, first_step=report.step, first_s=now_s))
            if not held.lows:
                if report.step <= held.first_step and now_s - attempt.started_s < WARM_UP_S:
                    continue
                held.first_step, held.first_s = report.step, now_s
            held.step = report.step
            for place in held.add(use, now_s, view.settings.memory_window_s):
                verdicts += self._over(rank, place, attempt)
                verdicts += self._judge(rank, place, attempt, now_s, view.settings.memory_window_s)
        return verdicts

    def _judge(self, rank: int, place: int, attempt: AttemptView, now_s: float, shortest_s: float) -> list[Verdict]:
        if rank in self.known or self.count >= MOST_REPORTED or not self.held[rank].use.limit:
            return []
        growth = find_growth(self.held, rank, place, shortest_s)
        if growth is None or growth.left_s[0] > HORIZON_S:
            return []
        least = max(RISE_MIB, RISE_OF_LIMIT * self.held[rank].use.limit / MIB)
        if growth.risen < max(least, SHARE * (growth.room + growth.risen)):
            return []
        # That it slows down is seen in some windows, and lost in the noise of others.
        others = (find_growth(self.held, rank, at, shortest_s) for at in range(max(0, place - 1), len(LENGTHS)))
        if any(seen.ends_by_itself() for seen in (growth, *others) if seen is not None):
            return []
        part = growth.fastest_part(rank)
        if not self.held[rank].goes_on(part, place, growth.trends[rank][part].slope.usual):
            return []
        fastest = max(growth.rate(other) for other in growth.trends)
        ranks = sorted(
            other for other in growth.trends if other not in self.known and growth.rate(other) >= ALIKE * fastest
        )
        if not ranks:
            return []
        self.known.update(ranks)
        self.count += 1
        found = self._detected(ranks, growth, attempt, now_s)
        part = growth.fastest_part(ranks[0])
        slack = int(SLACK * growth.trends[ranks[0]][part].risen)
        self.reported.append(Reported(key=found.key, ranks=ranks, place=place, part=part, slack=slack))
        return [found]

    def _detected(self, ranks: list[int], growth: Growth, attempt: AttemptView, now_s: float) -> Detected:
        shown = ranks[:MAX_CULPRITS]
        lead = max(ranks, key=growth.rate)
        held = self.held[lead]
        part = growth.fastest_part(lead)
        left_s, soonest_s, latest_s = growth.left_s
        lasted_s = growth.trends[lead][part].windows * growth.window_s
        per_s = MIB * sum(growth.rate(rank) for rank in ranks) / growth.window_s
        steps_s = (held.step - held.first_step) / max(1.0, now_s - held.first_s)
        # A row may begin long before the growth: at the rate of late it has taken so long, and the last window.
        trend = growth.trends[lead][part]
        grows_s = growth.window_s * min(trend.windows, trend.risen / trend.slope.usual)
        onset_s = max(0.0, now_s - grows_s - growth.window_s)
        evidence: dict[str, Any] = {
            "ranks": rank_list(ranks),
            "part": part,
            "pid": _pid(part, held.use, attempt, lead),
            "limit_bytes": held.use.limit,
            "used_bytes": held.use.used,
            "rise_bytes": MIB * sum(trend.risen for rank in ranks for trend in growth.trends[rank].values()),
            "window_s": round(lasted_s, 1),
            "per_hour_bytes": round(3600 * per_s),
            "per_step_bytes": round(per_s / steps_s) if steps_s > 0 else None,
            "onset_step": max(0, held.step - round(steps_s * (now_s - onset_s))) if steps_s > 0 else None,
            "left_s": round(left_s),
            "left_range_s": [round(soonest_s), round(latest_s)],
            "grown_bytes": {
                str(rank): {name: MIB * one.risen for name, one in growth.trends[rank].items()} for rank in shown
            },
            "processes_below": held.use.processes,
        }
        return Detected(
            key=f"{CAUSE}/{self.count}",
            kind="memory",
            cause=CAUSE,
            confidence=CONFIDENCE,
            summary=_sentence(who(attempt, shown), evidence),
            culprits=shown,
            onset_s=onset_s,
            evidence=evidence,
        )

    def _over(self, rank: int, place: int, attempt: AttemptView) -> list[Verdict]:
        """An incident ends where none of its ranks has grown for as long as it takes to find one that does."""
        verdicts: list[Verdict] = []
        for reported in list(self.reported):
            lows = self.held[rank].lows.get(reported.part)
            if reported.place != place or rank not in reported.ranks or lows is None:
                continue
            if not lows[place].has_stopped(reported.slack):
                continue
            reported.ranks.remove(rank)
            if not reported.ranks:
                self.reported.remove(reported)
                text = f"{who(attempt, [rank])} holds no more host memory than {size(MIB * lows[place].closed[-1])}"
                verdicts.append(Over(key=reported.key, text=text))
        return verdicts


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
    soonest_s, latest_s = evidence["left_range_s"]
    has = "holds" if is_one else "hold"
    return (
        f"{subject} {has} {size(evidence['per_hour_bytes'])} more host memory every hour, {where}: "
        f"the limit of {size(evidence['limit_bytes'])} is reached in {_range(soonest_s, latest_s)}."
    )


def _range(soonest_s: float, latest_s: float) -> str:
    """`40 to 70 min`, `about 3 h`."""
    unit_s, unit = (1.0, "s") if latest_s < 100 else (60.0, "min") if latest_s < 6000 else (3600.0, "h")
    digits = 1 if unit == "h" else 0
    soonest, latest = (f"{round(value / unit_s, digits):g}" for value in (soonest_s, latest_s))
    return f"about {latest} {unit}" if soonest == latest else f"{soonest} to {latest} {unit}"
