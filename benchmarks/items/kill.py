"""SIGKILL of a rank: until it is decided to stop, until the cause is told, until the next attempt runs the script."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field

from benchmarks.item import Bench, CannotMeasure, Figure, Target
from benchmarks.job import Job, Launcher
from benchmarks.record import Record, wait_for_record

KILLS = 3
"""A run: torchrun gets --max-restarts=3."""
RUNS = 2
QUICK_KILLS = 1
QUICK_RUNS = 1
PAUSE_S = (1.0, 2.0)
"""Between an attempt's first lines and the kill: at random, so that it falls anywhere between two polls."""


@dataclass
class Taken:
    """Seconds from the kill."""

    to_decision: list[float] = field(default_factory=list)
    to_cause: list[float] = field(default_factory=list)
    to_line: list[float] = field(default_factory=list)


class KillItem:
    """Launchers take turns; several kills a run, of rank 1 and rank 0 by turns."""

    name = "kill"
    title = "SIGKILL of a rank"

    def measure(self, bench: Bench) -> list[Figure]:
        """Seconds from the kill, for a script without imports and for one that imports torch."""
        taken = {(script, launcher): Taken() for script in ("", "--torch") for launcher in Launcher}
        for script in ("", "--torch"):
            for _ in range(bench.choose(QUICK_RUNS, RUNS)):
                for launcher in (Launcher.TORCHRUN, Launcher.GUARDRUN):
                    kill_ranks(launcher, script, bench.choose(QUICK_KILLS, KILLS), taken[script, launcher])
            ours, theirs = (taken[script, launcher].to_line for launcher in (Launcher.GUARDRUN, Launcher.TORCHRUN))
            bench.say(f"{script or 'no imports'}: torchrun {min(theirs):.2f} s, guardrun {min(ours):.2f} s at best")
        return figures_of(taken)


def figures_of(taken: dict[tuple[str, Launcher], Taken]) -> list[Figure]:
    """Decision and cause from both scripts' kills together; the first line for each script."""
    ours = [taken["", Launcher.GUARDRUN], taken["--torch", Launcher.GUARDRUN]]
    decisions = tuple(seconds for part in ours for seconds in part.to_decision)
    causes = tuple(seconds for part in ours for seconds in part.to_cause)
    figures = [
        Figure("SIGKILL of a rank to the decision to stop", "s", decisions, target=Target(0.1)),
        Figure("SIGKILL of a rank to its cause", "s", causes, target=Target(2)),
    ]
    for script, words in (("", "first line, no imports"), ("--torch", "first line after `import torch`")):
        samples, torchrun = (tuple(taken[script, launcher].to_line) for launcher in Launcher)
        figures.append(Figure(f"SIGKILL of a rank to the next attempt's {words}", "s", samples, torchrun))
    return figures


def kill_ranks(launcher: Launcher, script: str, kills: int, taken: Taken) -> None:
    """Kill a rank of each attempt of one run. Raises CannotMeasure."""
    environment = {
        # Without it torchrun's restarts meet the last attempt's keys; guardrun's have a store each.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # The script never gets any further, and is to be restarted all the same.
        "GUARDRUN_RESTART_MAX_NO_PROGRESS": "100",
    }
    if launcher is Launcher.TORCHRUN:
        del environment["GUARDRUN_RESTART_MAX_NO_PROGRESS"]
    arguments = [*filter(None, [script]), "--stay"]
    flags = [f"--max-restarts={KILLS}"]
    with Job(launcher, "first_line.py", arguments, flags=flags, environment=environment) as job:
        moments = job.wait_for("first")
        for attempt in range(kills):
            time.sleep(random.uniform(*PAUSE_S))
            victim = next(moment for moment in moments if moment.rank == (attempt + 1) % job.ranks)
            killed_ns = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            moments = job.wait_for("first", attempt + 1)
            taken.to_line.append((max(moment.at_ns for moment in moments) - killed_ns) / 1e9)
            if launcher is Launcher.GUARDRUN:
                read_decisions(job, attempt, victim.rank, killed_ns, taken)


def read_decisions(job: Job, attempt: int, rank: int, killed_ns: int, taken: Taken) -> None:
    """Add when guardrun decided what. Raises CannotMeasure where its verdict is another."""

    def is_enough(record: Record) -> bool:
        return record.stop_ns(attempt) is not None and record.incident(attempt) is not None

    record = wait_for_record(job.run_dir, is_enough, f"the stop and the incident of attempt {attempt}")
    stop_ns, found = record.stop_ns(attempt), record.incident(attempt)
    assert stop_ns is not None
    assert found is not None
    told_ns, incident = found
    if incident.cause != "killed" or [culprit.rank for culprit in incident.culprits] != [rank]:
        raise CannotMeasure(f"rank {rank} was killed, and the verdict is: {incident.cause}: {incident.summary}")
    taken.to_decision.append((stop_ns - killed_ns) / 1e9)
    taken.to_cause.append((told_ns - killed_ns) / 1e9)
