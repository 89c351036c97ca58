"""What the node agent takes from the node while all is well."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.item import Bench, CannotMeasure, Figure, Target
from benchmarks.items.supervisor_cost import read_cpu_s, read_pss_mb
from guardrun.supervisor.client.agent_client import AgentClient, Unreachable, ask
from tests.sensors.nvml_stub import NvmlStub, build_library
from tests.support.processes import descendants
from tests.support.real import find_program

GPUS = 8
WINDOW_S = 60
QUICK_WINDOW_S = 6
WINDOWS = 5
"""The window's parts, for the spread."""
SETTLE_S = 5.0
"""After the first turn of every sensor, which is dearer than the others."""
STARTS_S = 30.0
SCRAPE_S = 15.0
"""Prometheus's usual interval is longer."""


class NodeAgentItem:
    """The real agent at its default periods, pynvml on a stub of the driver's library with eight devices, with one
    supervisor that listens and one Prometheus that scrapes."""

    name = "node-agent"
    title = "CPU and memory of the node agent"

    def measure(self, bench: Bench) -> list[Figure]:
        """Share of a core, and proportional set size, of the agent and its children."""
        with tempfile.TemporaryDirectory(prefix="guardrun-bench-") as folder, running_agent(Path(folder)) as agent:
            cpu, pss = measure_agent(agent, bench.choose(QUICK_WINDOW_S, WINDOW_S))
        bench.say(f"{sum(cpu) / len(cpu):.2f}% of a core, {pss:.1f} MB")
        return [
            Figure(f"node agent's CPU, {GPUS} devices", "% of a core", tuple(cpu), target=Target(0.5)),
            Figure(f"node agent's memory (PSS), {GPUS} devices", "MB", (pss,), target=Target(50)),
        ]


class RunningAgent:
    """An agent that answers."""

    def __init__(self, process: subprocess.Popen[bytes], socket: Path) -> None:
        self.process = process
        self.client = AgentClient(path=socket)
        self.metrics = str(ask("status", path=socket, timeout_s=5)["metrics"])

    def pids(self) -> list[int]:
        """Its own, and its children's (the one that asks the driver)."""
        return [self.process.pid, *(child.pid for child in descendants(self.process.pid))]

    def cpu_s(self) -> float:
        """Of those that live; one that has just ended is nobody's."""
        total = 0.0
        for pid in self.pids():
            try:
                total += read_cpu_s(pid)
            except CannotMeasure:
                if pid == self.process.pid:
                    raise
        return total


@contextmanager
def running_agent(folder: Path) -> Iterator[RunningAgent]:
    """Raises CannotMeasure where none can be had."""
    program = find_program("guardrund")
    if program is None:
        raise CannotMeasure("no program guardrund")
    try:
        stub = NvmlStub(build_library(folder / "nvml"), folder / "devices")
    except (AssertionError, subprocess.CalledProcessError) as error:
        raise CannotMeasure(f"the stub of the driver's library was not built: {error}") from None
    stub.set(gpus=GPUS)
    socket = folder / "agent.sock"
    environment = {
        **os.environ,
        **stub.variables,
        # A driver wakes who waits for its events; the stub's own looking for them is not the agent's cost.
        "GUARDRUN_NVML_STUB_NAP_MS": "5000",
        "GUARDRUN_METRICS_NODE_LISTEN": "127.0.0.1:0",
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "--node", "--state", str(folder / "state"), "--socket", str(socket)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    agent: RunningAgent | None = None
    try:
        agent = _wait(process, socket, log)
        yield agent
    finally:
        if agent is not None:
            agent.client.close()
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], socket: Path, log: Path) -> RunningAgent:
    """Until all devices have been read."""
    deadline_s = time.monotonic() + STARTS_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise CannotMeasure(f"the agent ended with {process.returncode}: {log.read_text(errors='replace')[-500:]}")
        try:
            facts = ask("facts", path=socket, timeout_s=5)
        except Unreachable:
            time.sleep(0.1)
            continue
        seen = {s["subject"] for r in facts["readouts"] for s in r.get("samples", []) if s["name"] == "power_w"}
        if len(seen) == GPUS:
            return RunningAgent(process, socket)
        time.sleep(0.1)
    raise CannotMeasure(f"the agent did not read {GPUS} devices within {STARTS_S:g} s")


def measure_agent(agent: RunningAgent, window_s: float) -> tuple[list[float], float]:
    """CPU of each part of the window in percent of a core, and PSS in MB (10^6 bytes) at its end."""
    agent.client.read()
    _listen(agent, SETTLE_S)
    scraped_s = 0.0
    cpu = []
    for _ in range(WINDOWS):
        before_s, at_s = agent.cpu_s(), time.monotonic()
        if at_s - scraped_s >= SCRAPE_S:
            scraped_s = at_s
            with urllib.request.urlopen(f"http://{agent.metrics}/metrics", timeout=10) as answer:
                answer.read()
        _listen(agent, window_s / WINDOWS)
        cpu.append(100 * (agent.cpu_s() - before_s) / (time.monotonic() - at_s))
    if not agent.client.is_connected:
        raise CannotMeasure(f"its supervisor's connection was lost: {agent.client.trouble}")
    return cpu, sum(read_pss_mb(pid) for pid in agent.pids())


def _listen(agent: RunningAgent, time_s: float) -> None:
    """Take what it tells, as a supervisor does."""
    end_s = time.monotonic() + time_s
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(1.0, left_s))
        agent.client.read()
