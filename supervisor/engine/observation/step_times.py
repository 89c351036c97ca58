"""What steps go to, rank by rank, over windows; and how fast the run steps, whether it has slowed down since a moment.

Windows are what stragglers, waits for data and drops of throughput are seen by; the rate ties a node's trouble to
training. A rank's report says now and then what its ordinary steps have gone to so far (`events.StepBreakdown`). A
window is the difference between two of these, for each rank, per step:

    step = own work + waiting for other ranks + waiting for data + collecting

In step with others `step` is the same for all; what differs is how it is divided. What the job's step is made of
(`Parts`) follows from the ranks that have most of each: the slowest rank's own work, what data and the collector add to
it, and what is left, which goes to communication.

Brief windows, a fifth as long, go on beside them: they tell soon who is far behind (engine/observation/far_behind.py).

Taking a report in costs the same for any number of ranks; closing a window looks at each once.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import StepRateView

Number = TypeVar("Number", int, float)

WARM_UP = 1
"""The first window of an attempt counts for nothing: compilation, caches and connections are in it."""
WINDOW_STEPS = 20
"""A window has at least so many; where steps take minutes, it lasts as long as that takes."""
RANK_STEPS = 3
"""Fewer say nothing about a rank."""
MOST = 0.8
"""Of the ranks must be known, else the window goes on: devices are timed every hundredth step only."""
BRIEF = 5
"""A brief window is so many times shorter, in seconds and in steps."""
MAX_WINDOWS = 200
"""A window that is so many times as long as it should be is given up."""
MANY_RANKS = 100
HIGH = 0.99
"""Of many ranks, the one that has more than so many others stands for the slowest: the very last is chance."""

RATE_SAMPLE_S = 2.0
RATE_SAMPLES = 450
"""Samples: fifteen minutes."""
RATE_WARM_UP_S = 10.0
"""After the first step: compilation, caches, the first evaluation."""
RATE_WINDOW_S = 10.0
RATE_BEFORE_S = 300.0
"""How far back the usual rate is looked for."""
MIN_RATE_WINDOWS = 3
"""On either side: of two, one with a pause in it would count for half."""
SLOWER = 1.15
"""Steps take so much longer."""


class Share(NamedTuple):
    """Seconds a step, of one rank in one window."""

    step_s: float
    own_s: float
    """Neither of the others below; with all that cannot be told from work."""
    waited_s: float
    data_s: float
    gc_s: float


class Parts(NamedTuple):
    """Seconds that the job's step is made of."""

    step_s: float
    work_s: float
    """The own work of the rank that has most."""
    median_work_s: float
    data_s: float
    gc_s: float
    rest_s: float
    """Communication, and whatever keeps ranks from overlapping: uneven work from step to step, too."""


class Window(NamedTuple):
    """A closed one."""

    began_s: float
    ended_s: float
    shares: dict[int, Share]
    parts: Parts
    steps: int
    """Of the median rank."""


class BriefWindow(Window):
    """A closed one that was BRIEF times shorter."""

    __slots__ = ()


class StepTimes(msgspec.Struct, kw_only=True):
    """The window under way."""

    brief: int = 1
    """BRIEF, for brief windows."""
    attempt: int = -1
    began_s: float = 0.0
    """0: no step has been seen."""
    due_s: float = 0.0
    first_step: int = 0
    first: dict[int, ev.StepBreakdown] = {}
    """Per rank, when it began, or when it was first told in it."""
    last: dict[int, ev.StepBreakdown] = {}
    closed: int = 0
    """Windows of this attempt."""

    def observe(self, event: ev.NodeReport, attempt: int, step: int, window_s: float, now_s: float) -> Window | None:
        """Take a report of the current attempt in; the window that is closed by it, those of WARM_UP left out.

        step: the attempt's furthest. window_s: of windows that are not brief.
        """
        window_s /= self.brief
        if event.attempt != attempt:
            return None
        if self.attempt != attempt:
            self.attempt, self.began_s, self.closed = attempt, 0.0, 0
            self.first, self.last = {}, {}
        self.add_report(event)
        if not self.began_s:
            if self.last and step:
                self.begin(now_s, step, window_s)
            return None
        if not self.is_due(now_s, step):
            return None
        window = self.close(now_s, step, window_s)
        return window if self.closed > WARM_UP * self.brief else None

    def pass_over(self, event: ev.NodeReport, attempt: int, step: int, window_s: float, now_s: float) -> None:
        """Take a report in of a time that says nothing: the window under way is given up, and begins anew."""
        if self.attempt == event.attempt == attempt:
            self.add_report(event)
            if self.began_s:
                self.begin(now_s, step, window_s / self.brief)

    def add_report(self, event: ev.NodeReport) -> None:
        """Note what a node tells of its ranks."""
        for report in event.ranks:
            if report.spent is not None:
                self.last[report.global_rank] = report.spent
                self.first.setdefault(report.global_rank, report.spent)

    def begin(self, now_s: float, step: int, window_s: float) -> None:
        """A window begins."""
        self.began_s, self.due_s, self.first_step = now_s, now_s + window_s, step
        self.first = dict(self.last)

    def is_due(self, now_s: float, step: int) -> bool:
        """Whether it may be closed."""
        return now_s >= self.due_s and step - self.first_step >= WINDOW_STEPS // self.brief

    def close(self, now_s: float, step: int, window_s: float) -> Window | None:
        """Close it and begin the next; None where too few ranks are known, and it goes on (or began anew)."""
        shares = {rank: share for rank, last in self.last.items() if (share := _share(self.first.get(rank), last))}
        began_s = self.began_s
        if not shares or len(shares) < MOST * len(self.last):
            if now_s - began_s > MAX_WINDOWS * window_s:
                self.begin(now_s, step, window_s)
            self.due_s = now_s + window_s / 2
            return None
        steps = middle([last.steps - self.first[rank].steps for rank, last in self.last.items() if rank in shares])
        kind, due_s = Window if self.brief == 1 else BriefWindow, self.due_s
        window = kind(began_s, now_s, shares, parts_of(list(shares.values())), steps)
        self.begin(now_s, step, window_s)
        if self.brief > 1:
            # Reports come once a second: of seconds that are waited for one each time, a fifth would be lost.
            self.due_s = max(due_s + window_s, now_s + window_s / 2)
        self.closed += 1
        return window


def _share(first: ev.StepBreakdown | None, last: ev.StepBreakdown) -> Share | None:
    if first is None or last.steps - first.steps < RANK_STEPS:
        return None
    steps = last.steps - first.steps
    took_s, waited_s = last.took_s - first.took_s, last.waited_s - first.waited_s
    data_s, gc_s = last.data_s - first.data_s, last.gc_s - first.gc_s
    own_s = max(0.0, took_s - waited_s - data_s - gc_s)
    return Share(took_s / steps, own_s / steps, waited_s / steps, data_s / steps, gc_s / steps)


def parts_of(shares: list[Share]) -> Parts:
    """What a step of the job is made of. shares: of all ranks, at least one."""
    step_s = middle([share.step_s for share in shares])
    work_s = high([share.own_s for share in shares])
    with_data_s = high([share.own_s + share.data_s for share in shares])
    with_gc_s = high([share.own_s + share.data_s + share.gc_s for share in shares])
    median_s = middle([share.own_s for share in shares])
    return Parts(step_s, work_s, median_s, with_data_s - work_s, with_gc_s - with_data_s, max(0.0, step_s - with_gc_s))


def middle(values: list[Number]) -> Number:
    """The median; of an even number the lower one, so that of two the other is the measure."""
    return sorted(values)[(len(values) - 1) // 2]


def high(values: list[float]) -> float:
    """The highest; of many, the highest that is no chance."""
    if len(values) < MANY_RANKS:
        return max(values)
    return sorted(values)[int(HIGH * (len(values) - 1))]


class StepRate(msgspec.Struct, kw_only=True):
    """The furthest step of an attempt over time."""

    times_s: list[float] = []
    steps: list[int] = []

    def add(self, at_s: float, step: int) -> None:
        """The attempt has got to a step; the same one again says nothing."""
        if self.times_s and (at_s - self.times_s[-1] < RATE_SAMPLE_S or step == self.steps[-1]):
            return
        self.times_s.append(at_s)
        self.steps.append(step)
        if len(self.times_s) > RATE_SAMPLES:
            del self.times_s[0], self.steps[0]

    def step_s(self, from_s: float, to_s: float) -> float | None:
        """Median seconds a step in a stretch of time, from windows of RATE_WINDOW_S; None where there are too few.

        A window ends with a step: a pause makes one long one, which alone does not move the median.
        """
        windows: list[float] = []
        began: tuple[float, int] | None = None
        for at_s, step in zip(self.times_s, self.steps, strict=True):
            if not from_s <= at_s <= to_s:
                continue
            if began is None:
                began = (at_s, step)
            elif at_s - began[0] >= RATE_WINDOW_S:
                windows.append((at_s - began[0]) / max(step - began[1], 1))
                began = (at_s, step)
        return sorted(windows)[len(windows) // 2] if len(windows) >= MIN_RATE_WINDOWS else None


class Slowdown(NamedTuple):
    """Seconds a step before a moment, and since."""

    before_s: float
    since_s: float

    @property
    def factor(self) -> float:
        """How many times longer a step takes since then; 1: no change."""
        return self.since_s / self.before_s


def slowdown(rate: StepRateView, began_s: float, now_s: float) -> Slowdown | None:
    """How steps have changed since began_s; None where too little is known of either side."""
    if not rate.times_s:
        return None
    first_s = max(rate.times_s[0] + RATE_WARM_UP_S, began_s - RATE_BEFORE_S)
    before_s, since_s = rate.step_s(first_s, began_s), rate.step_s(began_s, now_s)
    return Slowdown(before_s, since_s) if before_s and since_s else None
