"""Once a second: what changed in the ranks, from their boards and one file of /proc each.

Every second, too, what their steps computed, which is reported every four. Now and then, in reports that are made
anyway: how many files they have open, and what memory they hold.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable

import msgspec

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.checksums_page import checksums_name
from guardrun.hooks.wire.memory_page import memory_name
from guardrun.hooks.wire.metrics_page import metrics_name
from guardrun.hooks.wire.samples_page import samples_name
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.memory_limits import MemoryLimits
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import parse_stat, read_stat
from guardrun.supervisor.collect.ranks.boards import (
    BLANK,
    BoardReader,
    open_boards,
    phase_of,
    progress_of,
    spent_of,
    step_of,
    waits_since_ns,
)
from guardrun.supervisor.collect.ranks.checksums import ChecksumsReader
from guardrun.supervisor.collect.ranks.device_memory import DeviceMemoryReader
from guardrun.supervisor.collect.ranks.memory_use import MemoryReader
from guardrun.supervisor.collect.ranks.metrics import MetricsReader
from guardrun.supervisor.collect.ranks.open_files import read_open_files
from guardrun.supervisor.collect.ranks.samples import SamplesReader
from guardrun.supervisor.engine.model.events import Rank, RankReport, Settings, StepBreakdown
from guardrun.supervisor.engine.observation.step_times import BRIEF
from guardrun.supervisor.rundir.step_values import StepValues

HEART_STALE_S = 3.0
SPENT_EVERY_S = 9.5
"""A rank's sums are told so often at least, in reports that have other reasons: a second later at most."""
SPENT_IN_BRIEF = 1.05
"""And so often in a brief window, the shortest over which they are compared (engine/observation/step_times.py)."""
TIMES_A_WINDOW = 4
"""What a rank holds is counted so often in the shortest window in which it is compared: open files every half minute,
memory every quarter."""
TURNS_BUDGET_S = 0.005
"""Of a sample, for each: whose turn comes after that has it in the next one. A kernel that does not say how many files
are open takes up to a hundred milliseconds for one rank, and it is the supervisor's loop that waits."""
_GONE = "?"
_ORDINARY = "RSDI"
"""States between which a healthy process flips all the time: no change worth a report."""
_TRACK_EVERY_S = 5.0
_TRACK_SHARE = 0.002
"""Share of a core that following descendants may cost: on nodes with many processes it is done less often."""


class _Watched:
    """One rank's process: its stat file stays open, which also ties it to that very process."""

    def __init__(self, rank: Rank, board: BoardReader, sockets_dir: str | os.PathLike[str], attempt: int) -> None:
        def path(name: Callable[[int, int], str]) -> str:
            return os.path.join(sockets_dir, name(attempt, rank.global_rank))

        self.rank = rank
        self.board = board
        self.last: tuple[object, ...] = ()
        self.spent_steps = 0
        """As told last, and when."""
        self.spent_at_s = -math.inf
        self.counted_s = {"open_files": -math.inf, "memory": -math.inf, "device_memory": -math.inf}
        """When these were counted last."""
        self.metrics = MetricsReader(path(metrics_name), keeps_values=rank.global_rank == 0)
        self.device_memory = DeviceMemoryReader(path(memory_name))
        self.checksums = ChecksumsReader(path(checksums_name))
        self.samples = SamplesReader(path(samples_name))
        try:
            self._stat_fd = os.open(f"/proc/{rank.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._stat_fd = -1

    def read_state(self) -> str:
        if self._stat_fd < 0:
            return _GONE
        try:
            return parse_stat(os.pread(self._stat_fd, 1024, 0)).state
        except (OSError, ValueError):
            return _GONE

    def take_spent(self, every_s: float) -> StepBreakdown | None:
        """What its steps have gone to, where that is due and has changed since it was told."""
        now_s = time.monotonic()
        if now_s - self.spent_at_s < every_s:
            return None
        spent = spent_of(self.board.read() or BLANK)
        if spent is None or spent.steps == self.spent_steps:
            return None
        self.spent_at_s, self.spent_steps = now_s, spent.steps
        return spent

    def close(self) -> None:
        self.board.close()
        self.metrics.close()
        self.device_memory.close()
        self.checksums.close()
        self.samples.close()
        if self._stat_fd >= 0:
            os.close(self._stat_fd)
            self._stat_fd = -1


class Sampler:
    """Samples one attempt's ranks.

    `boards` are the readers, for looks. `descendants` are the live processes, as {pid: starttime}, that are or once
    were below the launcher (below the ranks where launcher_pid is 0): those that a dead launcher would leave behind.
    """

    def __init__(
        self,
        clock: EngineClock,
        sockets_dir: str | os.PathLike[str],
        launcher_pid: int = 0,
        *,
        slow_window_s: float = Settings().window_s,
        files_window_s: float = Settings().files_window_s,
        memory_window_s: float = Settings().memory_window_s,
    ) -> None:
        files_s, memory_s = files_window_s / TIMES_A_WINDOW, memory_window_s / TIMES_A_WINDOW
        self._every_s = {"open_files": files_s, "memory": memory_s, "device_memory": memory_s}
        self._limits = MemoryLimits()
        self._memory = MemoryReader(self._limits)
        self._table = ProcessTable(())
        self._spent_every_s = min(SPENT_EVERY_S, slow_window_s / BRIEF / SPENT_IN_BRIEF)
        self._clock = clock
        self._sockets_dir = sockets_dir
        stat = read_stat(launcher_pid) if launcher_pid else None
        self._launcher = (launcher_pid, stat.start if stat is not None else 0)
        self._watched: list[_Watched] = []
        self._track_after_s = 0.0
        self.boards: dict[int, BoardReader] = {}
        self.descendants: dict[int, int] = {}

    def attempt_started(self, attempt: int, ranks: Iterable[Rank]) -> None:
        """Watch these ranks instead of the last ones."""
        self._close_watched()
        ranks = list(ranks)
        self.boards = open_boards(self._sockets_dir, attempt, (rank.global_rank for rank in ranks))
        self._watched = [_Watched(rank, self.boards[rank.global_rank], self._sockets_dir, attempt) for rank in ranks]
        self._track_after_s = 0.0
        self._memory = MemoryReader(self._limits)

    def sample(self) -> list[RankReport]:
        """Reports of the ranks in which something changed since they were last reported."""
        now_s = self._clock.now()
        reports: dict[_Watched, RankReport] = {}
        for watched in self._watched:
            report = self._read(watched)
            key = self._key(report, now_s)
            if key != watched.last:
                watched.last = key
                reports[watched] = msgspec.structs.replace(
                    report,
                    spent=watched.take_spent(self._spent_every_s),
                    metrics=watched.metrics.take_report(),
                    replicas=watched.checksums.take_checks(),
                    samples=watched.samples.take_orders(),
                    losses=watched.metrics.take_losses(),
                )
        if time.monotonic() >= self._track_after_s:
            self.track_descendants()
        self._count("open_files", reports, lambda one: read_open_files(one.rank.pid))
        self._count("memory", reports, lambda one: self._memory.read(one.rank.pid, self._table))
        self._count("device_memory", reports, lambda one: one.device_memory.take_report())
        return list(reports.values())

    def take_values(self) -> list[StepValues]:
        """Loss and norm of single steps of global rank 0, if it is one of these, since the last time."""
        return [values for watched in self._watched for values in watched.metrics.take_values()]

    def _count(self, what: str, reports: dict[_Watched, RankReport], read: Callable[[_Watched], object]) -> None:
        """Add it to the reports of ranks whose turn it is; whose last one was longest ago comes first."""
        now_s = began_s = time.monotonic()
        for watched in sorted(reports, key=lambda one: one.counted_s[what]):
            if now_s - watched.counted_s[what] < self._every_s[what] or now_s - began_s > TURNS_BUDGET_S:
                return
            watched.counted_s[what] = now_s
            found = read(watched) if reports[watched].state not in (_GONE, "Z", "X") else None
            if found is not None:
                reports[watched] = msgspec.structs.replace(reports[watched], **{what: found})
            now_s = time.monotonic()

    def track_descendants(self) -> None:
        """Bring `descendants` up to date, now rather than when sample() next would."""
        began_s = time.monotonic()
        table = self._table = ProcessTable.read()
        pid, start = self._launcher
        roots = [pid] if table.is_alive(pid, start) else []
        if not pid:
            roots = [watched.rank.pid for watched in self._watched if watched.read_state() not in (_GONE, "Z")]
        known = [old for old, since in self.descendants.items() if table.is_alive(old, since)]
        found = {
            *known,
            *(below for root in (*roots, *known) for below in table.descendants(root, without=os.getpid())),
        }
        if not pid:
            found.update(roots)
        self.descendants = {
            below: stat.start for below in found if (stat := table.stats.get(below)) is not None and not stat.is_dead
        }
        took_s = time.monotonic() - began_s
        self._track_after_s = began_s + max(_TRACK_EVERY_S, took_s / _TRACK_SHARE)

    def close(self) -> None:
        """Let go of the ranks' boards and stat files; it samples nobody until the next attempt."""
        self._close_watched()
        self._watched = []

    def _close_watched(self) -> None:
        for watched in self._watched:
            watched.close()

    def _read(self, watched: _Watched) -> RankReport:
        words = watched.board.read() or BLANK
        at_ns = self._clock.at_ns
        base = step_of(words) - words[Field.STEP]
        watched.metrics.read(base)
        watched.checksums.read(base)
        watched.samples.read(base)
        watched.metrics.want_losses(watched.samples.first_step)
        return RankReport(
            global_rank=watched.rank.global_rank,
            state=watched.read_state(),
            progress_s=at_ns(words[Field.PROGRESS_NS]),
            progress=progress_of(words),
            step=step_of(words),
            milestones=words[Field.MILESTONES],
            phase=phase_of(words),
            gc_since_s=at_ns(words[Field.GC_SINCE_NS]),
            gc_total_s=round(words[Field.GC_TOTAL_NS] / 1e9, 3),
            heart_s=at_ns(words[Field.HEART_NS]),
            in_save_since_s=at_ns(words[Field.SAVE_SINCE_NS]),
            waits_since_s=at_ns(waits_since_ns(words, time.monotonic_ns())),
            joint=words[Field.JOINT_SEQ],
            is_save_held=bool(words[Field.SAVE_HELD]),
        )

    def _key(self, report: RankReport, now_s: float) -> tuple[object, ...]:
        """What makes a report differ: all of it, but of the hooks' beat only whether there is one."""
        return (
            "" if report.state in _ORDINARY else report.state,
            report.progress_s,
            report.progress,
            report.joint,
            report.step,
            report.milestones,
            report.phase,
            report.gc_since_s,
            report.in_save_since_s,
            report.waits_since_s,
            report.is_save_held,
            report.heart_s > 0 and now_s - report.heart_s > HEART_STALE_S,
        )
