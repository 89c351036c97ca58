"""What is kept of a run for comparing it with others: RUN/environment.json and RUN/steps.csv, by whoever has rank 0.

Nothing here is waited for by the loop, and training knows nothing of it: files are read by a thread of its own, which
may stand in a dead file system for as long as it likes, and written by the run's writer. What can't be written is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from guardrun.hooks.wire.messages import EnvironmentReported
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.log import log
from guardrun.supervisor.collect.ranks.environment import read_environment
from guardrun.supervisor.rundir.environment import add_environment
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.rundir.step_values import StepsFile, StepValues

EVERY_S = 5.0
"""Values of single steps are written so often: each write is waited for by whoever writes the journal next."""
MAX_WAITING = 20_000
"""Of such values."""
MAX_UNWRITTEN = 4
"""Times as many wait for a disk that does not answer; what comes after them is dropped."""
MIN_FREE_BYTES = 16 << 20
"""What is left on the run directory's file system is for the journal and for checkpoints."""
END_S = 2.0
"""At the end: how long what a short script told with its last words may take to be read."""


class RunRecords:
    """One run's."""

    def __init__(self, run_dir: Path, run: RunFile, writer: BackgroundWriter) -> None:
        self._run_dir = run_dir
        self._run = run
        self._writer = writer
        self._steps = StepsFile(run_dir)
        self._waiting: list[StepValues] = []
        self._attempt = -1
        """Whose these are."""
        self._given = self._done = 0
        """Writes of such values, by the loop and by the writer's thread."""
        self._written_s = time.monotonic()
        self._thread: threading.Thread | None = None

    def note_steps(self, attempt: int, values: Sequence[StepValues]) -> None:
        """Keep values of single steps."""
        is_due = time.monotonic() - self._written_s >= EVERY_S or len(self._waiting) >= MAX_WAITING
        if is_due or attempt != self._attempt:
            self._write_steps()
        self._attempt = attempt
        self._waiting += values

    def _write_steps(self) -> None:
        attempt, values, self._waiting = self._attempt, self._waiting, []
        self._written_s = time.monotonic()
        if not values or self._given - self._done >= MAX_UNWRITTEN:
            return

        def write() -> None:
            try:
                if self._has_room():
                    self._steps.add(attempt, values)
            finally:
                self._done += 1

        self._given += self._writer.put(write)

    def note_environment(self, told: EnvironmentReported) -> None:
        """Read what a rank names, and keep it. One at a time: while one is under way, others are dropped."""
        if told.global_rank or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._read, args=(told,), name="guardrun-environment", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads may be started
            self._thread = None

    def _read(self, told: EnvironmentReported) -> None:
        run = self._run
        try:
            found = read_environment(told, run.script, run.cwd, session=run.session, node=run.node, wall_s=time.time())
        except Exception:
            log.exception("environment_not_read")
            return
        self._writer.put(lambda: self._has_room() and add_environment(self._run_dir, found))

    def _has_room(self) -> bool:
        """Asked when it is written. Raises OSError."""
        found = os.statvfs(self._run_dir)
        return found.f_bavail * found.f_frsize >= MIN_FREE_BYTES

    def close(self) -> None:
        """Before the writer is closed."""
        self._write_steps()
        self._writer.put(self._steps.close)
        if self._thread is not None:
            self._thread.join(END_S)
