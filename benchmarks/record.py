"""What guardrun decided and when, from the run's journal, on the clock that scripts and this process share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.item import CannotMeasure
from guardrun.supervisor.engine.model.actions import Action, Incident, StopAttempt, WriteIncident
from guardrun.supervisor.rundir.journal import read_lines
from guardrun.supervisor.rundir.run_directory import read_run_file


class Record:
    """A run's decisions so far. Times are CLOCK_MONOTONIC nanoseconds."""

    def __init__(self, run_dir: Path) -> None:
        run = read_run_file(run_dir)
        self.run_dir = run_dir
        self.decisions: list[tuple[int, Action]] = []
        for line in read_lines(run_dir):
            if line is not None:
                at_ns = round((line.t - run.clock_base_s + run.clock_mono_s) * 1e9)
                self.decisions += [(at_ns, action) for action in line.actions]

    def stop_ns(self, attempt: int) -> int | None:
        """When it was decided to stop an attempt."""
        return next((at for at, a in self.decisions if isinstance(a, StopAttempt) and a.attempt == attempt), None)

    def incident(self, attempt: int) -> tuple[int, Incident] | None:
        """An attempt's incident as it stands now, and when it was first written with this cause."""
        written = [
            (at, action.incident)
            for at, action in self.decisions
            if isinstance(action, WriteIncident) and action.incident.attempt == attempt
        ]
        if not written:
            return None
        last = written[-1][1]
        return next((at, last) for at, incident in written if (incident.id, incident.cause) == (last.id, last.cause))


def wait_for_record(run_dir: Path, is_enough: Callable[[Record], bool], what: str, timeout_s: float = 30.0) -> Record:
    """Read the journal until it holds what is waited for. Raises CannotMeasure where that does not come."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        record = Record(run_dir)
        if is_enough(record):
            return record
        time.sleep(0.2)
    raise CannotMeasure(f"after {timeout_s:g} s the journal does not hold {what}")
