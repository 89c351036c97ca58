"""What the node agent takes from the node while all is well: eight devices, at its own periods."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.item import Bench, CannotMeasure, Figure, Target
from benchmarks.items.supervisor_cost import read_cpu_s, read_pss_mb
from tests.node.nvml_stub import NvmlStub, build_library
from tests.support.processes import descendants

DEVICES = 8
WINDOW_S = 60
QUICK_WINDOW_S = 10
WINDOWS = 3
SETTLE_S = 5.0
"""After it listens: every sensor's first turn, and NVML's start."""
START_S = 30.0


class NodeAgentItem:
    """The agent itself, with the process that talks to NVML, over a library that stands in for the driver's.

    It takes some 30 µs for an answer, on the machine that it was written on; a driver takes about as long.
    """

    name = "node-agent"
    title = "CPU and memory of the node agent"

    def measure(self, bench: Bench) -> list[Figure]:
        """Share of a core, and proportional set size, of all its processes."""
        window_s = bench.choose(QUICK_WINDOW_S, WINDOW_S)
        with running_agent() as pid:
            pids = [pid, *(process.pid for process in descendants(pid))]
            if len(pids) < 2:
                raise CannotMeasure("the node agent runs no process for NVML")
            cpu = []
            for _ in range(WINDOWS):
                before_s, at_s = sum(map(read_cpu_s, pids)), time.monotonic()
                time.sleep(window_s / WINDOWS)
                cpu.append(100 * (sum(map(read_cpu_s, pids)) - before_s) / (time.monotonic() - at_s))
            pss = sum(map(read_pss_mb, pids))
        bench.say(f"{DEVICES} devices: {sum(cpu) / len(cpu):.2f}% of a core, {pss:.1f} MB")
        return [
            Figure(f"node agent's CPU, {DEVICES} devices", "% of a core", tuple(cpu), target=Target(0.5)),
            Figure(f"node agent's memory (PSS), {DEVICES} devices", "MB", (pss,), target=Target(50)),
        ]


@contextmanager
def running_agent() -> Iterator[int]:
    """The pid of an agent that has settled. Raises CannotMeasure."""
    with tempfile.TemporaryDirectory(prefix="guardrun-bench-") as name:
        folder = Path(name)
        try:
            stub = NvmlStub(build_library(folder / "nvml"), folder / "answers")
        except (AssertionError, subprocess.SubprocessError) as error:
            raise CannotMeasure(f"no library to stand in for NVML: {error}") from None
        stub.set(gpus=DEVICES)
        socket = folder / "agent.sock"
        program = str(Path(sys.executable).with_name("guardrund"))
        agent = subprocess.Popen(
            [program, "--node", "--state", str(folder / "state"), "--socket", str(socket)],
            env=stub.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline_s = time.monotonic() + START_S
            while not socket.exists():
                if agent.poll() is not None or time.monotonic() > deadline_s:
                    raise CannotMeasure("the node agent does not listen")
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            yield agent.pid
        finally:
            agent.terminate()
            try:
                agent.wait(START_S)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
