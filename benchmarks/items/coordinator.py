"""The coordinator's load: a report a second of each of 12,500 nodes, through real sockets, on one core."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import ExitStack

import msgspec

from benchmarks.fleet import Measured, Sent
from benchmarks.item import Bench, CannotMeasure, Figure, Target
from benchmarks.job import SCRIPTS

NODES = 12_500
QUICK_NODES = 500
SECONDS = 12
PROCESSES = 2
"""Of deputies: each socket takes two descriptors."""
TIMEOUT_S = 240.0
SPARE_FDS = 200


class CoordinatorItem:
    """One process, pinned to a core: CURVE, frames, acknowledgements, decoding, and the engine."""

    name = "coordinator"
    title = "A coordinator's load with 12,500 nodes"

    def measure(self, bench: Bench) -> list[Figure]:
        """Seconds of a core for a second's reports, with the engine and without; latencies."""
        nodes, seconds = bench.choose(QUICK_NODES, NODES), bench.choose(3, SECONDS)
        without = measure_once(nodes, 0, seconds)
        small = measure_once(nodes, 1, seconds)
        full = measure_once(nodes, 8, seconds)
        said = f"{nodes:,} nodes, {nodes / small.joined_s:,.0f} joins a second"
        return [
            Figure(
                "coordinator: a second's reports through sockets and decoder", "s", (share(without, nodes),), note=said
            ),
            Figure("coordinator: and the engine, one rank changed", "s", (share(small, nodes),), target=Target(1)),
            Figure("coordinator: and the engine, eight ranks changed", "s", (share(full, nodes),), target=Target(1)),
            Figure("coordinator: report to engine, 99th percentile", "ms", (small.late_ms[1],), note=queue(small)),
        ]


def share(measured: Measured, nodes: int) -> float:
    """Seconds of the core that one report of each node takes."""
    return measured.cpu_s * nodes / measured.reports


def queue(measured: Measured) -> str:
    """Whether the queue grew: medians of the first third and of the last."""
    return f"median {measured.early_ms[0]:.0f} ms early, {measured.late_ms[0]:.0f} ms late"


def measure_once(nodes: int, ranks: int, seconds: int) -> Measured:
    """One run. Raises CannotMeasure where reports are lost, or the deputies cannot keep their own pace."""
    needed = nodes + SPARE_FDS
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        raise CannotMeasure(f"{needed} descriptors are needed in one process (ulimit -n)")
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:

        def start(script: str, *arguments: int) -> subprocess.Popen[str]:
            command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        hub = start("coordinate.py", nodes, ranks, cores[0])
        door = line(hub)
        each = nodes // PROCESSES
        deputies = [
            start("report_nodes.py", number * each, each, ranks or 1, seconds, cores[-1] if len(cores) == 2 else -1)
            for number in range(PROCESSES)
        ]
        for deputy in deputies:
            say(deputy, door)
        for deputy in deputies:
            line(deputy)
        for deputy in deputies:
            say(deputy, "go\n")
        sent = [msgspec.json.decode(line(deputy), type=Sent) for deputy in deputies]
        measured = msgspec.json.decode(line(hub), type=Measured)
        for deputy in deputies:
            say(deputy, "end\n")
            deputy.wait(TIMEOUT_S)
    if measured.malformed or measured.reports != sum(one.reports for one in sent):
        raise CannotMeasure(f"{measured.reports} of {sum(one.reports for one in sent)} reports arrived")
    behind_s = max(one.behind_s for one in sent)
    if behind_s > 1.0:
        raise CannotMeasure(f"the deputies could not keep their pace: {behind_s:.1f} s behind")
    return measured


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it writes. Raises CannotMeasure where it ends instead."""
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise CannotMeasure(f"{process.args!r} ended with {process.wait(TIMEOUT_S)}")
    return text


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()
