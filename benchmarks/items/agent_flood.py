"""What root hears from the node agent, and when, while another user does its worst."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from benchmarks.item import Bench, CannotMeasure, Figure, Target
from guardrun.supervisor.client.agent_client import Unreachable, ask
from guardrun.supervisor.wire.agent_messages import RegisterJob
from tests.agent.bed import AgentBed, children_end, start_time
from tests.agent.callers import Raw, hello
from tests.support.neighbours import NEIGHBOUR, VICTIM, make_passable

CLIENTS = 200
WINDOW_S = 60
QUICK_WINDOW_S = 5
EVERY_S = 0.1
STARVED_S = 30
"""So much longer a crowd that hardly gets the CPU may need until its allowance is used up."""
ROOT = Path(__file__).resolve().parents[2]
FLOOD = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from benchmarks.scripts import flood_agent
uid = int(sys.argv.pop(1))
os.setgroups([]); os.setgid(uid); os.setuid(uid)
sys.exit(flood_agent.main(*sys.argv[1:]))
"""
"""Loaded as root: a user may not be let through to the interpreter's library."""


class Flooded(NamedTuple):
    """What a flood did."""

    took_s: list[float]
    """Of each of root's questions; one without an answer counts as the time until it was given up."""
    before_mb: float
    """The agent's resident memory before."""
    peak_mb: float
    """The agent's resident memory at its highest, in 10^6 bytes, looked at after each answer."""
    cpu_share: float
    jobs: list[str]
    """Of the other user, registered before the flood."""
    throttled: int
    """How often the crowd's allowance was used up."""
    refused: int
    """Connections."""
    has_first_entry: bool
    """Whether the history still has what was noted before the flood."""

    @property
    def p99_s(self) -> float:
        return quantiles(self.took_s, n=100, method="inclusive")[98]


class AgentFloodItem:
    """The real agent, 200 clients of one unprivileged user who register, ask, send long and half frames, do not read
    and reconnect without a pause, and root, who asks for the facts ten times a second on a new connection each."""

    name = "agent-flood"
    title = "The node agent under 200 hostile clients"

    def measure(self, bench: Bench) -> list[Figure]:
        """Root's answers, the agent's memory."""
        if os.geteuid() != 0:
            raise CannotMeasure("only root can be several users")
        with tempfile.TemporaryDirectory(prefix="guardrun-bench-") as folder:
            bed = AgentBed(make_passable(Path(folder)))
            try:
                found = flood(bed, CLIENTS, bench.choose(QUICK_WINDOW_S, WINDOW_S))
            finally:
                bed.close()
        bench.say(
            f"99th percentile {1000 * found.p99_s:.1f} ms, {found.peak_mb:.1f} MB, {found.refused} connections refused"
        )
        if found.jobs != ["other"]:
            raise CannotMeasure(f"the other user's job was forgotten: {found.jobs}")
        return [
            Figure("node agent, 200 hostile clients: root's answer", "ms", tuple(1000 * s for s in found.took_s)),
            Figure("… 99th percentile", "ms", (1000 * found.p99_s,), target=Target(50)),
            Figure("… memory at its highest (RSS)", "MB", (found.peak_mb,), target=Target(96)),
            Figure("… its CPU", "% of a core", (100 * found.cpu_share,)),
        ]


def flood(bed: AgentBed, clients: int, window_s: float) -> Flooded:
    """Start an agent and flood it."""
    agent = bed.start()
    with job_of(VICTIM, bed, "other"), flooding(bed, clients, window_s + STARVED_S + 20) as crowd:
        bed.ask("note", name="before", text="the flood")
        before_mb = _rss_mb(agent.pid)
        before_s, began_s = _cpu_s(agent.pid), time.monotonic()
        took_s, peak_mb = [], 0.0
        for one_s in question(bed.socket, began_s + window_s):
            took_s.append(one_s)
            peak_mb = max(peak_mb, _rss_mb(agent.pid))
        share = (_cpu_s(agent.pid) - before_s) / (time.monotonic() - began_s)
        jobs = [job["run_id"] for job in bed.ask("jobs")["jobs"] if job["uid"] == VICTIM]
        while not (status := bed.ask("status"))["throttled"] and time.monotonic() < began_s + window_s + STARVED_S:
            time.sleep(EVERY_S)
        if crowd.poll() is not None:
            raise CannotMeasure("the crowd ended before the measurement did")
        kept = bool(bed.history(name="before")["entries"])
    return Flooded(took_s, before_mb, peak_mb, share, jobs, status["throttled"], status["refused_clients"], kept)


def question(path: Path, end_s: float) -> Iterator[float]:
    """Ask ten times a second; how long each answer took."""
    while (began_s := time.monotonic()) < end_s:
        try:
            ask("facts", path=path, timeout_s=10)
        except Unreachable:
            pass  # its time is what counts
        took_s = time.monotonic() - began_s
        yield took_s
        time.sleep(max(0.0, EVERY_S - took_s))


@contextmanager
def job_of(uid: int, bed: AgentBed, run_id: str) -> Iterator[None]:
    """A job of a user's, registered and alive."""
    with subprocess.Popen(["sleep", "600"], user=uid, group=uid, extra_groups=[]) as launcher:
        client = Raw(bed.socket)
        try:
            start = start_time(launcher.pid)
            client.say(hello())
            client.say(
                RegisterJob(run_id=run_id, run_dir="", launcher_pid=launcher.pid, launcher_start=start, token=run_id)
            )
            client.hear()
            yield
        finally:
            client.close()
            children_end(launcher)


@contextmanager
def flooding(bed: AgentBed, clients: int, time_s: float) -> Iterator[subprocess.Popen[str]]:
    """From when all have connected once."""
    command = [sys.executable, "-c", FLOOD, str(ROOT), str(NEIGHBOUR), str(bed.socket), str(clients), str(time_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
        try:
            assert crowd.stdout is not None
            if crowd.stdout.readline() != "connected\n":
                raise CannotMeasure("the crowd could not connect")
            yield crowd
        finally:
            children_end(crowd)


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
