"""Jobs of several nodes: a rank is killed on one of them; a node's link is cut."""

from __future__ import annotations

import os
import random
import signal
import time
from statistics import median

from benchmarks.hostjob import HostJob
from benchmarks.item import Bench, CannotMeasure, Figure, Target
from benchmarks.items.kill import KILLS, PAUSE_S, QUICK_KILLS, Taken, kill_ranks
from benchmarks.job import Launcher
from benchmarks.record import wait_for_record
from tests.support import real
from tests.support.netlab import Lab

NODES = (2, 4)
CUTS = 2
QUICK_CUTS = 1
SLOWER_S = 1.0
"""What other nodes may add to a restart on one."""
VERDICT_S = 30.0
"""In which a switch fails over."""
AGAIN_S = 20.0


class FleetItem:
    """Two and four nodes in network namespaces, one rank each; a node and its spare for the cut."""

    name = "fleet"
    title = "Several nodes"

    def measure(self, bench: Bench) -> list[Figure]:
        """Seconds from a kill to every node's next first line; from a cut to the verdict, from there to training."""
        if why := real.missing("netns"):
            raise CannotMeasure(why)
        alone = Taken()
        kill_ranks(Launcher.GUARDRUN, "", bench.choose(QUICK_KILLS, KILLS), alone)
        figures = []
        with Lab.open(max(NODES)) as lab:
            for nodes in NODES:
                figures.append(kills(bench, lab, nodes, median(alone.to_line)))
                bench.say(f"{nodes} nodes: {figures[-1].value:.2f} s, on one node {median(alone.to_line):.2f} s")
            return figures + cuts(bench, lab)


def kills(bench: Bench, lab: Lab, nodes: int, alone_s: float) -> Figure:
    """SIGKILL of a rank that is not on the head."""
    count = bench.choose(QUICK_KILLS, KILLS)
    ours = tuple(kill_one(lab, Launcher.GUARDRUN, nodes, count))
    theirs = tuple(kill_one(lab, Launcher.TORCHRUN, nodes, count))
    note = f"{alone_s:.2f} s with two ranks on one node"
    name = f"{nodes} nodes: SIGKILL of a rank to every node's next first line"
    return Figure(name, "s", ours, theirs, target=Target(round(alone_s + SLOWER_S, 2)), note=note)


def kill_one(lab: Lab, launcher: Launcher, nodes: int, count: int) -> list[float]:
    """Seconds to the first line of the slowest rank, for each of so many kills. Raises CannotMeasure."""
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if launcher is Launcher.GUARDRUN:
        environment["GUARDRUN_RESTART_MAX_NO_PROGRESS"] = "100"
    flags = [f"--max-restarts={KILLS}"]
    taken = []
    with HostJob(launcher, lab, "first_line.py", ["--stay"], nodes=nodes, flags=flags, environment=environment) as job:
        moments = job.wait_for("first")
        for _ in range(count):
            time.sleep(random.uniform(*PAUSE_S))
            victim = next(moment for moment in moments if moment.rank == nodes - 1)
            killed_ns = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            # A torchrun agent that restarts because another one does counts no attempt.
            moments = job.wait_for("first", None, since_ns=killed_ns)
            taken.append((max(moment.at_ns for moment in moments) - killed_ns) / 1e9)
    return taken


def cuts(bench: Bench, lab: Lab) -> list[Figure]:
    """A node's link is cut both ways, without a word; a spare takes its place."""
    to_verdict, to_training = [], []
    for _ in range(bench.choose(QUICK_CUTS, CUTS)):
        verdict_s, training_s = cut_one(lab)
        to_verdict.append(verdict_s)
        to_training.append(training_s)
        bench.say(f"cut to verdict {verdict_s:.1f} s, to training again {training_s:.1f} s")
    return [
        Figure("a cut node to the verdict", "s", tuple(to_verdict), target=Target(VERDICT_S)),
        Figure("from there to training again, with a spare", "s", tuple(to_training), target=Target(AGAIN_S)),
    ]


def cut_one(lab: Lab) -> tuple[float, float]:
    """Cut the node of rank 1. Raises CannotMeasure where the verdict is another."""
    with HostJob(Launcher.GUARDRUN, lab, "train.py", ["--hang-at", "20"], nodes=2, spares=1) as job:
        job.wait_for("training")
        [victim] = [moment for moment in job.moments("training") if moment.rank == 1]
        host = next(one for one in lab.hosts if victim.pid in {found.pid for found in one.namespaces.processes()})
        cut_ns = time.monotonic_ns()
        lab.cut(host)
        try:
            moments = job.wait_for("training", 1, timeout_s=120.0)
            record = wait_for_record(job.run_dir, lambda found: found.incident(0) is not None, "the incident")
        finally:
            lab.restore(host)
        found = record.incident(0)
        assert found is not None
        told_ns, incident = found
        if incident.cause != "node_lost" or [culprit.node for culprit in incident.culprits] != [host.name]:
            raise job.trouble(f"{host.name} was cut off, and the verdict is: {incident.cause}: {incident.summary}")
        again_ns = max(moment.at_ns for moment in moments)
        return (told_ns - cut_ns) / 1e9, (again_ns - told_ns) / 1e9
