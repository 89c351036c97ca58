"""One attempt on its nodes: what its ranks do, and what the edge would tell of them."""

from __future__ import annotations

from benchmarks.sim import looks
from benchmarks.sim.account import Training
from benchmarks.sim.failures import Truth
from benchmarks.sim.nodes import Node
from benchmarks.sim.parameters import Parameters
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import RankLook

PEER_LOST = ev.ErrorRecord(
    error="torch.distributed.DistBackendError",
    message="NCCL communicator was aborted: remote process exited or there was a network error",
    traceback="torch/distributed/distributed_c10d.py",
)


PARTS = 4
"""Of a start: ranks tell that they are through imports, process groups, the checkpoint, and their first step."""


class Attempt:
    """From the moment when its ranks live until nothing of it does."""

    def __init__(self, parameters: Parameters, number: int, nodes: list[Node], base_step: int, now_s: float) -> None:
        self.parameters, self.number = parameters, number
        self.size = parameters.ranks_a_node
        self.nodes = [node for node in nodes if node.is_heard]
        self.places = {node.name: place for place, node in enumerate(nodes)}
        self.started_s = now_s
        self.training = Training(parameters, now_s + parameters.start_s, base_step, len(nodes))
        self.ranks = [
            ev.Rank(global_rank=rank, local_rank=rank % self.size, pid=1000 + rank, node=node.name)
            for place, node in enumerate(nodes)
            if node.is_heard
            for rank in range(place * self.size, (place + 1) * self.size)
        ]
        self.failed_s: float | None = None
        """It gets no further since."""
        self.stop_s: float | None = None
        self.hang: Truth | None = None
        self.culprit = -1
        """The rank that stands; -1: none, or all."""
        self.place = 0
        """In which of the script's functions."""
        self.errors: dict[int, ev.ErrorRecord] = {}
        self.codes: dict[int, int] = {}
        """Exit codes of ranks that ended by themselves."""
        self.oom_kills = 0
        self._told_progress = 0
        self._to_tie = list(self.nodes)
        """Nodes that have not reported yet that their ranks do collectives with those of others."""
        self._standing: set[str] = set()
        """Nodes that do not run just now; …"""
        self._stood_s = 0.0
        """… since when the others have waited for one."""

    def fail(self, now_s: float) -> None:
        """It gets no further."""
        if self.failed_s is None:
            if self._standing:
                self._standing.clear()
                self._shift(now_s - self._stood_s)
            self.failed_s = now_s
            self.training.advance(now_s)

    @property
    def is_standing(self) -> bool:
        """It gets no further just now, and will."""
        return bool(self._standing)

    def stand(self, node: Node, now_s: float) -> None:
        """A node does not run: all others wait for it."""
        self.training.advance(now_s)
        if not self._standing:
            self._stood_s = now_s
        self._standing.add(node.name)

    def go_on(self, node: Node, now_s: float) -> None:
        """It runs again."""
        if node.name in self._standing:
            self._standing.discard(node.name)
            if not self._standing:
                self._shift(now_s - self._stood_s)

    def skip(self, gap_s: float) -> None:
        """Nothing ran for so long."""
        self._stood_s += gap_s
        if self.failed_s is None and not self._standing:
            self._shift(gap_s)

    def _shift(self, gap_s: float) -> None:
        self.training.shift(gap_s)
        if self.training.work_s == 0.0:
            self.started_s += gap_s

    def rank_on(self, node: Node, luck: float) -> int:
        """Some rank of a node."""
        return self.places[node.name] * self.size + int(luck * self.size) % self.size

    @property
    def _progress(self) -> int:
        return 5 + 3 * (self.training.step - self.training.base_step)

    # As the edge tells it ------------------------------------------------------------------------------------

    def report(self, now_s: float) -> list[ev.NodeReport]:
        """What has changed since the last report: one rank of a node that is heard stands for all, they are in step.

        But every node reports its first collectives with others.
        """
        if self._standing:
            return []
        has_begun = now_s >= self.training.first_s
        if has_begun:
            self.training.advance(now_s)
        part = (now_s - self.started_s) / self.parameters.start_s
        progress = self._progress if has_begun else 1 + int(PARTS * part + 1e-6)
        teller = next((node for node in self.nodes if node.is_heard), None)
        if progress <= self._told_progress or teller is None:
            return []
        self._told_progress = progress
        tellers = [teller]
        if has_begun and self._to_tie:
            tellers += [node for node in self._to_tie if node.is_heard and node is not teller]
            self._to_tie = [node for node in self._to_tie if not node.is_heard]
        return [self._report_of(node, progress, now_s, has_begun=has_begun) for node in tellers]

    def _report_of(self, node: Node, progress: int, now_s: float, *, has_begun: bool) -> ev.NodeReport:
        told = ev.RankReport(
            global_rank=self.rank_on(node, 0.0),
            progress=progress,
            progress_s=now_s,
            step=self.training.step if has_begun else 0,
            heart_s=now_s,
            joint=progress if has_begun and len(self.places) > 1 else 0,
        )
        return ev.NodeReport(node=node.name, attempt=self.number, ranks=[told])

    def looks(self, now_s: float) -> tuple[list[RankLook], dict[int, str]]:
        """All ranks of nodes that are heard, and why the others are missing."""
        world = len(self.places) * self.size
        since_s = self._stood_s if self._standing else self.failed_s
        if since_s is None:
            return looks.working(world, now_s)
        order = max(2, self._progress)
        shown, missing = [], {}
        for node in self.nodes:
            first = self.places[node.name] * self.size
            for rank in range(first, first + self.size):
                if rank in self.codes:
                    continue
                if not node.is_heard:
                    missing[rank] = f"{node.name} did not answer"
                elif rank == self.culprit and self.hang is Truth.SPIN:
                    shown.append(looks.spinning(rank, now_s, order, self.place))
                elif rank == self.culprit:
                    shown.append(looks.blocked(rank, now_s, order, self.place, self.hang is Truth.STORAGE_HANG))
                else:
                    shown.append(looks.waiting(rank, now_s, since_s, order))
        return shown, missing

    def traces(self) -> list[ev.ExitTrace]:
        return [ev.ExitTrace(global_rank=rank, error=error) for rank, error in sorted(self.errors.items())]

    def ended_on(self, node: Node, now_s: float) -> list[ev.Event]:
        """What a node tells that comes back after its ranks have ended."""
        first = self.places[node.name] * self.size
        events: list[ev.Event] = []
        for rank in range(first, first + self.size):
            if rank not in self.codes:
                self.codes[rank] = -9
                pid = 1000 + rank
                events.append(ev.RankExited(attempt=self.number, global_rank=rank, pid=pid, exitcode=-9, at_s=now_s))
        return events

    def exits(self, now_s: float) -> list[ev.Event]:
        """Every rank's end, one by one."""
        return [
            ev.RankExited(attempt=self.number, global_rank=r.global_rank, pid=r.pid, exitcode=-15, at_s=now_s)
            for r in self.ranks
            if r.global_rank not in self.codes
        ]

    def stopped(self) -> ev.AttemptStopped:
        """Nothing of it is alive."""
        codes = {rank.global_rank: self.codes.get(rank.global_rank, -15) for rank in self.ranks}
        return ev.AttemptStopped(attempt=self.number, exitcodes=codes, stopped_by_us=[])
