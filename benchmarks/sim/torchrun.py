"""torchrun under the same failures: no engine, only what its agents are known to do.

What is taken from its code and from measurements (2.13):
- agents have no channel for failures: a rank that falls is answered by its own agent; the others notice in NOTICE_S at
  the earliest, when the failed one waits for the rendezvous again;
- a hang lasts until the collective's timeout, 10 to 30 minutes;
- a job of fixed size whose node is gone notices nothing until then, and then waits for that very node;
- a rank that ignores SIGTERM costs 30 s at every stop;
- nobody is ever left out: it starts again on the same nodes;
- over gloo its own restart did not recover in 10 of 15 runs unless the store is not shared (`recovers`).
A person takes the job up again where it has ended or goes in circles, without the bad nodes that its logs name, and
without those whose GPUs an inventory misses.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from benchmarks.sim import account as use
from benchmarks.sim.account import Account, Training
from benchmarks.sim.befalls import HANGS, OF_NODE, SLOW
from benchmarks.sim.failures import AGAIN_S, Failure, Truth
from benchmarks.sim.parameters import Parameters

NOTICE_S = 20.0
STOP_S = 30.0
TIMEOUT_S = (600.0, 1800.0)
JOIN_S = 600.0
"""The rendezvous gives up after so long without all nodes (`join_timeout`)."""
SPAWN_S = 2.0
CIRCLES = 2
"""Stops in a row that got no further: a person is called."""
AS_INSTALLED = 5 / 15
"""Share of restarts that recover."""
GONE = frozenset({Truth.NODE_DEAD, Truth.CONTAINER, Truth.OUTAGE})


@dataclass
class Torchrun:
    """One job of fixed size."""

    parameters: Parameters
    failures: list[Failure]
    recovers: float = 1.0
    now_s: float = 0.1
    account: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        self.random = random.Random(f"torchrun {self.parameters.seed}")
        self.due = list(reversed(self.failures))
        self.bad: dict[int, tuple[Truth, float]] = {}
        self.down_until: dict[int, float] = {}
        self.slow_until: dict[int, float] = {}
        self.kept_out: dict[int, float] = {}
        self.full_s = self.space_s = 0.0
        """Between these there is no room for checkpoints."""
        self.saved_step = 0
        self.circles = 0
        self.named: list[int] = []
        """Nodes of the ranks that failed last."""
        self.nodes: list[int] = []
        self.account.add(use.STARTING, self.now_s)
        self._requeue()

    def run(self) -> Account:
        while self.now_s < self.parameters.wall_s:
            self._attempt()
        return self.account

    # One attempt ---------------------------------------------------------------------------------------------

    def _attempt(self) -> None:
        p, began_s = self.parameters, self.now_s + SPAWN_S
        training = Training(p, began_s + p.start_s, self.saved_step, p.nodes)
        again = [
            (began_s + 1 + self.random.expovariate(1 / AGAIN_S[self.bad[n][0]]), n) for n in self.nodes if n in self.bad
        ]
        heapq.heapify(again)
        failure = self._until_failure(training, again, began_s)
        failed_s = min(failure.at_s, p.wall_s)
        self._spend(use.STARTING, min(training.first_s, failed_s))
        if failed_s > training.first_s:
            further = self.account.best_step
            training.book(self.account, failed_s)
            self.now_s = failed_s
            self.saved_step = max(self.saved_step, training.saved_step)
            self.circles = 0 if self.account.best_step > further else self.circles + 1
        else:
            self.circles += 1
        if failed_s < p.wall_s:
            self._answer(failure)

    def _until_failure(self, training: Training, again: list[tuple[float, int]], began_s: float) -> Failure:
        """The first that ends it; whatever befalls others meanwhile is noted."""
        p, placed = self.parameters, set(self.nodes)
        while True:
            ends: list[Failure] = []
            if again:
                ends.append(Failure(again[0][0], self.bad[again[0][1]][0], again[0][1], luck=0.5))
            slow_s = min((t for n, t in self.slow_until.items() if n in placed and t > began_s), default=p.wall_s)
            full_s = self._save_fails_s(training, began_s)
            if full_s is not None:
                ends.append(Failure(full_s, Truth.DISK_FULL, self.nodes[0], luck=0.5))
            first = min(ends, key=lambda f: f.at_s, default=None)
            until_s = min(first.at_s if first else p.wall_s, slow_s)
            if self.due and self.due[-1].at_s <= until_s:
                failure = self.due.pop()
                if self._ends(failure, training, placed, began_s):
                    return failure
                continue
            if slow_s <= until_s and slow_s < p.wall_s:
                training.slow_down(max(slow_s, training.first_s), 1.0)
                self.slow_until = {n: t for n, t in self.slow_until.items() if t > slow_s}
                continue
            return first if first is not None else Failure(p.wall_s, Truth.CONTACT, 0)

    def _save_fails_s(self, training: Training, began_s: float) -> float | None:
        """When the next checkpoint will find no room."""
        p = self.parameters
        cycle_s = (p.steps_a_save * p.step_s + p.save_s) * training.slow
        done = max(0, int((began_s - training.first_s) / cycle_s))
        next_s = training.first_s + (done + 1) * cycle_s
        if self.space_s <= began_s:
            return None
        while next_s < self.full_s:
            next_s += cycle_s
        return next_s if next_s < self.space_s else None

    def _ends(self, failure: Failure, training: Training, placed: set[int], began_s: float) -> bool:
        """Note a failure; whether it ends the attempt."""
        truth, at_s, node = failure.truth, failure.at_s, failure.node
        is_placed, runs = node in placed, at_s >= began_s
        if truth is Truth.OUTAGE:
            size = self.parameters.switch_nodes
            first = max(node // size * size, size)
            gone = range(first, min(node // size * size + size, self.parameters.pool))
            for one in gone:
                self.down_until[one] = max(at_s + failure.lasts_s, self.down_until.get(one, 0.0))
            return runs and any(one in placed for one in gone)
        if truth in (Truth.NODE_DEAD, Truth.CONTAINER):
            self.down_until[node] = max(at_s + failure.lasts_s, self.down_until.get(node, 0.0))
            return runs and is_placed
        if truth in OF_NODE:
            self.bad[node] = (truth, at_s)
            return runs and is_placed
        if truth is Truth.SLOW:
            self.slow_until[node] = at_s + failure.lasts_s
            if is_placed and at_s >= training.first_s:
                training.slow_down(at_s, SLOW)
            return False
        if truth is Truth.DISK_FULL:
            if at_s >= self.space_s:
                self.full_s, self.space_s = at_s, at_s + self.parameters.human_s
            return False
        return runs and truth is not Truth.CONTACT

    # What follows --------------------------------------------------------------------------------------------

    def _answer(self, failure: Failure) -> None:
        self.account.stops += 1
        self.named = [*self.named[-2:], failure.node]
        shortest_s, longest_s = TIMEOUT_S
        timeout_s = shortest_s + failure.luck * (longest_s - shortest_s)
        is_seen = failure.truth not in HANGS and not (failure.truth in GONE and failure.luck < 0.5)
        self._spend(use.DETECTING, self.now_s + (NOTICE_S if is_seen else timeout_s + NOTICE_S))
        self._spend(use.STOPPING, self.now_s + STOP_S)
        self._forget()
        back_s = max((self.down_until.get(n, 0.0) for n in self.nodes), default=0.0)
        if back_s > self.now_s + JOIN_S:
            self._spend(use.WAITING, self.now_s + JOIN_S)
            self._person()
        elif self.random.random() >= self.recovers:
            self._spend(use.DETECTING, self.now_s + timeout_s)
            self._person()
        elif self.circles >= CIRCLES and self.now_s >= self.space_s and any(n in self.bad for n in self.named):
            self._person()
        else:
            self._spend(use.WAITING, max(back_s, self.now_s))

    def _person(self) -> None:
        self.account.ends += 1
        self._spend(use.WAITING, self.now_s + self.parameters.human_s + self.parameters.requeue_s)
        for node in [n for n, (truth, _) in self.bad.items() if n in self.named or truth is Truth.GPU_GONE]:
            del self.bad[node]
            self.kept_out[node] = self.now_s + self.random.expovariate(1 / self.parameters.repair_s)
        self._forget()
        self._requeue()

    def _requeue(self) -> None:
        taken = [
            n
            for n in range(self.parameters.pool)
            if self.down_until.get(n, 0.0) <= self.now_s and self.kept_out.get(n, 0.0) <= self.now_s
        ]
        self.nodes, self.circles = taken[: self.parameters.nodes], 0

    def _forget(self) -> None:
        """What befell the cluster while nothing ran; a bad node is found some day."""
        while self.due and self.due[-1].at_s <= self.now_s:
            failure = self.due.pop()
            self._ends(failure, Training(self.parameters, float("inf"), 0, 1), set(), float("inf"))
        found_s = self.parameters.found_s
        self.bad = {n: (truth, t) for n, (truth, t) in self.bad.items() if t + found_s > self.now_s}

    def _spend(self, what: str, until_s: float) -> None:
        until_s = min(until_s, self.parameters.wall_s)
        if until_s > self.now_s:
            self.account.add(what, until_s - self.now_s)
            self.now_s = until_s
