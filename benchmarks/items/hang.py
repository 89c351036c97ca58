"""From the moment a rank hangs to the verdict, and from there to the next attempt's first line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.item import Bench, CannotMeasure, Effort, Figure
from benchmarks.job import Job, Launcher
from benchmarks.record import Record, wait_for_record


@dataclass(frozen=True)
class Planned:
    """A hang to measure."""

    cause: str
    patience_s: float
    """Where it is eager; engine/model/hang_patience.py has it."""
    after_s: float = 0.0
    """When to start it beside the others, so that no two of them are at work, starting or restarting, at once."""


EAGER = ("--guard-hang-sensitivity=eager",)
TOGETHER = (
    Planned("gil_held", 60),
    Planned("rank_blocked", 30, after_s=9),
    Planned("init", 30, after_s=18),
    Planned("rank_stopped", 3, after_s=70),
)
"""Hanging ranks leave the processors alone: these wait beside each other."""
ALONE = (Planned("rank_spinning", 120),)
"""Takes a processor for itself, and minutes."""
QUICK = (Planned("rank_stopped", 3),)


@dataclass(frozen=True)
class Hung:
    """What one hang showed, in seconds."""

    planned: Planned
    to_verdict: float
    to_line: float


class HangItem:
    """With an eager guardrun's patience. torchrun has no verdict: it waits for the backend's timeout, half an hour."""

    name = "hang"
    title = "Hang to verdict"

    def measure(self, bench: Bench) -> list[Figure]:
        """Seconds to the verdict, for each cause, and from the verdict to the next attempt's first line."""
        if bench.effort is Effort.QUICK:
            found, failed = side_by_side(QUICK, bench)
            bench.say("without --quick: rank_blocked, init and gil_held too; with --full also rank_spinning")
        else:
            found, failed = side_by_side(TOGETHER, bench)
            if bench.effort is Effort.FULL:
                more = side_by_side(ALONE, bench)
                found, failed = found + more[0], failed + more[1]
            else:
                bench.say("rank_spinning, two minutes of patience: only with --full")
        if failed:
            raise CannotMeasure("\n".join(failed), figures_of(found))
        return figures_of(found)


def figures_of(found: list[Hung]) -> list[Figure]:
    """A figure for each cause, the quickest verdict first, and one for what comes after it."""
    found = sorted(found, key=lambda hung: hung.to_verdict)
    figures = []
    for hung in found:
        name, note = f"hang to verdict: {hung.planned.cause}", f"patience {hung.planned.patience_s:g} s"
        figures.append(Figure(name, "s", (hung.to_verdict,), note=note))
    if found:
        lines = tuple(hung.to_line for hung in found)
        figures.append(Figure("verdict on a hang to the next attempt's first line", "s", lines))
    return figures


def side_by_side(planned: Sequence[Planned], bench: Bench) -> tuple[list[Hung], list[str]]:
    """Measure hangs at the same time, each started when it is due; what they showed, and why others did not."""
    found, failed = [], []
    with ThreadPoolExecutor(len(planned)) as pool:
        futures = [pool.submit(measure_one, one, bench) for one in planned]
    for one, future in zip(planned, futures, strict=True):
        try:
            found.append(future.result())
        except CannotMeasure as error:
            failed.append(f"{one.cause}: {error}")
    return found, failed


def measure_one(planned: Planned, bench: Bench) -> Hung:
    """Have rank 1 hang, and wait for what guardrun makes of it. Raises CannotMeasure where it is something else."""
    time.sleep(planned.after_s)
    with Job(Launcher.GUARDRUN, "train.py", ["--hang", planned.cause], flags=EAGER) as job:
        hung_ns = job.wait_for("hung", ranks=1)[0].at_ns
        moments = job.wait_for("first", attempt=1, timeout_s=planned.patience_s + 60)
        record = wait_for_record(job.run_dir, lambda record: record.incident(0) is not None, "an incident")
        told_ns = verdict_ns(record, planned.cause)
        line_ns = max(moment.at_ns for moment in moments)
    hung = Hung(planned, (told_ns - hung_ns) / 1e9, (line_ns - told_ns) / 1e9)
    bench.say(f"{planned.cause}: verdict after {hung.to_verdict:.1f} s, first line {hung.to_line:.2f} s later")
    return hung


def verdict_ns(record: Record, cause: str) -> int:
    """When the verdict was reached. Raises CannotMeasure where it is another than rank 1 and this cause."""
    found = record.incident(0)
    assert found is not None
    told_ns, incident = found
    if incident.cause != cause or [culprit.rank for culprit in incident.culprits] != [1]:
        raise CannotMeasure(f"rank 1 was made to hang ({cause}), the verdict is: {incident.cause}: {incident.summary}")
    return told_ns
