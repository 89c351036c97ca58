"""The thread that looks at the run that is shown, so that the screen waits for no supervisor and no disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from guardrun.supervisor.cli.base.verb import CtlError
from guardrun.supervisor.cli.base.watching import Looked, RunWatch

AGAIN_S = 5.0
"""After a look that failed."""


class Follower:
    """Looks at one run at a time. What it finds goes to `report`, from its own thread."""

    def __init__(self, node: str, every_s: float, report: Callable[[Path, Looked | str], None]) -> None:
        """node: the name of this one. report: the run, and what it is like, or why that can't be told."""
        self._node, self._every_s, self._report = node, every_s, report
        self._wake = threading.Condition()
        self._watch: RunWatch | None = None
        self._window_s = 0.0
        self._is_due = self._is_over = False
        # A daemon: a supervisor that is stopped, or a file system that does not answer, must not hold up the end.
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Begin; nothing is looked at before `follow`."""
        self._thread.start()

    def follow(self, run_dir: Path, window_s: float) -> None:
        """Look at this run from now on, and now. window_s: as make_view has it."""
        with self._wake:
            if self._watch is None or self._watch.run_dir != run_dir:
                self._watch = RunWatch(run_dir, self._node)
            self._window_s, self._is_due = window_s, True
            self._wake.notify()

    def close(self) -> None:
        """End soon; it is not waited for."""
        with self._wake:
            self._is_over = True
            self._wake.notify()

    def _run(self) -> None:
        next_s = 0.0
        while True:
            with self._wake:
                while not self._is_over and not self._is_due and (self._watch is None or time.monotonic() < next_s):
                    self._wake.wait(None if self._watch is None else max(0.0, next_s - time.monotonic()))
                if self._is_over:
                    return
                watch, window_s, self._is_due = self._watch, self._window_s, False
            assert watch is not None
            next_s = time.monotonic() + self._look(watch, window_s)

    def _look(self, watch: RunWatch, window_s: float) -> float:
        """Look once. Answers after how many seconds the next look is due."""
        found: Looked | str
        try:
            found = watch.look(self._every_s, window_s)
        except CtlError as error:
            found = str(error)
        except OSError as error:
            found = f"{error.filename or watch.run_dir}: {error.strerror or error}"
        except Exception as error:  # a mistake of ours: were the thread to end of it, the screen would stand still
            found = f"the run can't be shown: {error!r}"
        self._report(watch.run_dir, found)
        return AGAIN_S if isinstance(found, str) else found.next_in_s
