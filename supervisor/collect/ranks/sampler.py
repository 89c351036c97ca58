"""Once a second: what changed in the ranks, from their boards and one file of /proc each; now and then, open files.

Every second, too, what their steps computed, which is reported every four.

How many files a rank has open, how many it may, and what the newest are. The kernel gives out the lowest free number,
so that what is opened and never closed fills the table up to the number of all that is open: those just below it are
the newest. Only they are looked at, and only where many are open.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice

import msgspec

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.metrics_page import metrics_name
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.base.printable import make_printable
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import parse_files_limit, parse_stat, read_bytes, read_stat
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
from guardrun.supervisor.collect.ranks.metrics import MetricsReader
from guardrun.supervisor.engine.model.events import OpenFiles, Rank, RankReport, Settings, StepBreakdown
from guardrun.supervisor.engine.observation.step_times import BRIEF

HEART_STALE_S = 3.0
SPENT_EVERY_S = 9.5
"""A rank's sums are told so often at least, in reports that have other reasons: a second later at most."""
SPENT_IN_BRIEF = 1.05
"""And so often in a brief window, the shortest over which they are compared (engine/observation/step_times.py)."""
FILES_IN_WINDOW = 4
"""A rank's open files are counted so often in the shortest window in which they are compared: every half minute."""
FILES_BUDGET_S = 0.005
"""Of a sample: whose turn comes after that has it in the next one. A kernel that does not say how many there are takes
up to a hundred milliseconds for one rank, and it is the supervisor's loop that waits."""
_GONE = "?"
_ORDINARY = "RSDI"
"""States between which a healthy process flips all the time: no change worth a report."""
_TRACK_EVERY_S = 5.0
_TRACK_SHARE = 0.002
"""Share of a core that following descendants may cost: on nodes with many processes it is done less often."""

MAX_LISTED = 20_000
"""Descriptors that are counted one by one, where the kernel doesn't say how many there are: some 5 µs each."""
NEWEST = 200
KINDS = 3
MAX_NAME = 120
"""Characters: of a longer path the end is kept."""


class _Watched:
    """One rank's process: its stat file stays open, which also ties it to that very process."""

    def __init__(self, rank: Rank, board: BoardReader, metrics: MetricsReader) -> None:
        self.rank = rank
        self.board = board
        self.last: tuple[object, ...] = ()
        self.spent_steps = 0
        """As told last, and when."""
        self.spent_at_s = -math.inf
        self.files_at_s = -math.inf
        """When its open files were counted last."""
        self.metrics = metrics
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
        slow_window_s: float = Settings().window_s,
        files_window_s: float = Settings().files_window_s,
    ) -> None:
        self._files_every_s = files_window_s / FILES_IN_WINDOW
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
        self._watched = [
            _Watched(
                rank,
                self.boards[rank.global_rank],
                MetricsReader(os.path.join(self._sockets_dir, metrics_name(attempt, rank.global_rank))),
            )
            for rank in ranks
        ]
        self._track_after_s = 0.0

    def sample(self) -> list[RankReport]:
        """Reports of the ranks in which something changed since they were last reported."""
        now_s = self._clock.now()
        reports: dict[_Watched, RankReport] = {}
        for watched in self._watched:
            report = self._read(watched)
            key = self._key(report, now_s)
            if key != watched.last:
                watched.last = key
                spent, metrics = watched.take_spent(self._spent_every_s), watched.metrics.take_report()
                reports[watched] = msgspec.structs.replace(report, spent=spent, metrics=metrics)
        self._count_files(reports)
        if time.monotonic() >= self._track_after_s:
            self.track_descendants()
        return list(reports.values())

    def _count_files(self, reports: dict[_Watched, RankReport]) -> None:
        """Add their open files to the reports of ranks whose turn it is; whose last one was longest ago comes first."""
        now_s = began_s = time.monotonic()
        for watched in sorted(reports, key=lambda one: one.files_at_s):
            if now_s - watched.files_at_s < self._files_every_s or now_s - began_s > FILES_BUDGET_S:
                return
            watched.files_at_s = now_s
            files = read_open_files(watched.rank.pid) if reports[watched].state not in (_GONE, "Z", "X") else None
            if files is not None:
                reports[watched] = msgspec.structs.replace(reports[watched], open_files=files)
            now_s = time.monotonic()

    def track_descendants(self) -> None:
        """Bring `descendants` up to date, now rather than when sample() next would."""
        began_s = time.monotonic()
        table = ProcessTable.read()
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
        watched.metrics.read(step_of(words) - words[Field.STEP])
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
        """What makes a report differ: all of it, but for the heart only whether it beats."""
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


def read_open_files(pid: int) -> OpenFiles | None:
    """Of a process; None where that can't be known. Nothing is opened or asked of a file system."""
    count = count_descriptors(pid)
    if not count:
        return None
    limits = read_bytes(f"/proc/{pid}/limits") or b""
    files = OpenFiles(count, parse_files_limit(limits.decode("ascii", "replace")) or 0)
    return OpenFiles(count, files.limit, summarize(_read_newest(pid, count))) if files.are_many else files


def count_descriptors(pid: int) -> int | None:
    """Of a process; None where that is not to be seen.

    Linux says it as the folder's size from 6.2 on (fs/proc/fd.c, proc_fd_getattr); before, that is 0.
    """
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or count_one_by_one(pid)
    except OSError:
        return None


def count_one_by_one(pid: int, most: int = MAX_LISTED) -> int | None:
    """Likewise, on any kernel; None where there are more than `most`. Raises OSError."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        count = sum(1 for _ in islice(entries, most + 1))
    return count if count <= most else None


def _read_newest(pid: int, count: int) -> list[str]:
    """What the descriptors with the highest numbers stand for, by number from above."""
    targets = []
    for number in range(count - 1, max(-1, count - 1 - NEWEST), -1):
        try:
            targets.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError:
            continue  # closed, gone, or not for us to see
    return targets


def summarize(targets: Iterable[str]) -> list[tuple[str, int]]:
    """What most descriptors are, by the targets of their links (proc(5)): sockets, pipes, files by path or folder."""
    kinds = Counter(_kind(target) for target in targets)
    found: Counter[str] = Counter()
    for kind, count in kinds.items():
        # A path that is open twice is opened again and again; else what they have in common is the folder.
        is_single = count == 1 and kind.startswith("/")
        found[f"files in {os.path.dirname(kind)}" if is_single else kind] += count
    return [(make_printable(_shortened(kind)), count) for kind, count in found.most_common(KINDS)]


def _kind(target: str) -> str:
    """`socket:[8123]` → sockets; `anon_inode:[eventfd]` → eventfd; `/tmp/x (deleted)` → /tmp/x."""
    if target.startswith("/"):
        return target.removesuffix(" (deleted)")
    name, _, rest = target.partition(":")
    return rest.strip("[]") if name == "anon_inode" else f"{name}s"


def _shortened(kind: str) -> str:
    return kind if len(kind) <= MAX_NAME else f"…{kind[1 - MAX_NAME :]}"
