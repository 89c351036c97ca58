"""Where the time went, as the virtual world knows it (the engine has a ledger of its own, which is not asked)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from benchmarks.sim.parameters import Parameters

FURTHER, SAVING, REDOING = "further", "saving", "redoing"
DETECTING, STOPPING, STARTING, WAITING = "detecting", "stopping", "starting", "waiting"
SLOW, FEWER = "slow", "fewer nodes"


@dataclass
class Account:
    """Seconds per use, and what was counted."""

    spent_s: dict[str, float] = field(default_factory=dict)
    stops: int = 0
    false_stops: int = 0
    """Of a job that trained, and would have gone on."""
    ends: int = 0
    """Runs that ended, and that a person had to take up again."""
    reasons: Counter[str] = field(default_factory=Counter)
    evicted: int = 0
    innocents: int = 0
    """Evicted, and had nothing to do with any failure."""
    quarantined_innocents: int = 0
    """Lost because of a switch, and put under quarantine for it; they may come back."""
    swaps: int = 0
    best_step: int = 0

    def add(self, use: str, seconds: float) -> None:
        self.spent_s[use] = self.spent_s.get(use, 0.0) + seconds

    def of(self, use: str) -> float:
        return self.spent_s.get(use, 0.0)

    @property
    def wall_s(self) -> float:
        return sum(self.spent_s.values())

    @property
    def ratio(self) -> float:
        """Effective training time: share of the time in which training got further, at full size and speed."""
        return self.of(FURTHER) / self.wall_s if self.wall_s else 0.0

    def a_stop(self, use: str) -> float:
        """Seconds of one use a stop."""
        return self.of(use) / max(self.stops, 1)


class Training:
    """One attempt's progress, by arithmetic: steps, with a save after every so many."""

    def __init__(self, parameters: Parameters, first_s: float, base_step: int, nodes: int) -> None:
        self.parameters, self.base_step, self.nodes = parameters, base_step, nodes
        self.first_s = self._last_s = first_s
        self.work_s = 0.0
        self.slow = 1.0
        self._steps = parameters.steps_a_save
        self._cycle_s = self._steps * parameters.step_s + parameters.save_s

    def advance(self, now_s: float) -> None:
        """Let it train until now."""
        if now_s > self._last_s:
            self.work_s += (now_s - self._last_s) / self.slow
            self._last_s = now_s

    def shift(self, gap_s: float) -> None:
        """Nothing was done for so long, up to now."""
        self._last_s += gap_s
        if self.work_s == 0.0:
            self.first_s += gap_s

    def slow_down(self, now_s: float, factor: float) -> None:
        self.advance(now_s)
        self.slow = factor

    @property
    def saves(self) -> int:
        return int(self.work_s / self._cycle_s + 1e-9)

    @property
    def step(self) -> int:
        past_s = self.work_s - self.saves * self._cycle_s
        done = min(int(past_s / self.parameters.step_s + 1e-9), self._steps)
        return self.base_step + self.saves * self._steps + done

    @property
    def saved_step(self) -> int:
        """The newest whole checkpoint."""
        return self.base_step + self.saves * self._steps

    @property
    def to_next_s(self) -> float:
        """Until its next step is done."""
        past_s = self.work_s - self.saves * self._cycle_s
        number = int(past_s / self.parameters.step_s + 1e-9) + 1
        if number > self._steps:
            return (self._cycle_s + self.parameters.step_s - past_s) * self.slow
        return (number * self.parameters.step_s - past_s) * self.slow

    def work_to(self, step: int) -> float:
        """Work from the attempt's first second to a step."""
        cycles, rest = divmod(step - self.base_step, self._steps)
        if rest == 0 and cycles:
            return cycles * self._cycle_s - self.parameters.save_s
        return cycles * self._cycle_s + rest * self.parameters.step_s

    def book(self, account: Account, now_s: float) -> None:
        """It is over: book its time, and what it reached."""
        if now_s <= self.first_s:
            return
        self.advance(now_s)
        lasted_s = now_s - self.first_s
        redone_s = min(self.work_to(max(account.best_step, self.base_step)), self.work_s)
        beyond_s = self.work_s - redone_s
        further_s = max(0, self.step - max(account.best_step, self.base_step)) * self.parameters.step_s
        further_s = min(further_s, beyond_s)
        share = min(1.0, self.nodes / self.parameters.nodes)
        account.add(FURTHER, further_s * share)
        account.add(FEWER, further_s * (1 - share))
        account.add(SAVING, beyond_s - further_s)
        account.add(REDOING, redone_s)
        account.add(SLOW, lasted_s - self.work_s)
        account.best_step = max(account.best_step, self.step)
