"""Faults of a job of several nodes: of its head, of the nodes that follow, and of the links between."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass

from tests.faults.row import JobFault, Row
from tests.fleet_runs.jobs import QUICK, Job, flags, kill
from tests.support.processes import is_alive

PATIENT = QUICK.replace("lost_s = 8\nterm_s = 5", "lost_s = 20\nterm_s = 8")
"""For faults that end by themselves within seconds."""
MORE = ("--guard-run-id=job",)


def ends_mended(job: Job) -> None:
    """The rank of node1 that was killed is told, training goes on from the newest checkpoint, and ends well."""
    job.first_steps(1, 2)
    told = job.mended(1, attempt=1)
    assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("killed", ["node1"])
    assert set(job.finish().values()) == {0}


@dataclass(frozen=True)
class Unfelt:
    """No rank notices; what comes afterwards is found all the same."""

    fault: JobFault
    holds = "one attempt until a rank is killed afterwards: that is told, and mended from the newest checkpoint; exit 0"

    def __call__(self, job: Job) -> str:
        job.start(2, ["head", "node1"], config=PATIENT)
        pids = [mark["pid"] for mark in job.first_steps(0, 2)]
        job.wait_until_tied("node1")
        seen = self.fault(job)
        job.in_touch("node1")
        job.advance(10)
        assert all(map(is_alive, pids)) and not job.incidents(), job.outputs()
        kill(job["node1"].ranks()[0])
        ends_mended(job)
        return seen


@dataclass(frozen=True)
class Mended:
    """A rank is killed, and the fault comes while that is dealt with."""

    fault: JobFault
    holds = "one incident, with the rank that caused it; one restart, from the newest checkpoint; exit 0"

    def __call__(self, job: Job) -> str:
        job.start(2, ["head", "node1"])
        job.first_steps(0, 2)
        job.wait_until_tied("node1")
        job.advance(15)
        kill(job["node1"].ranks()[0])
        seen = self.fault(job)
        ends_mended(job)
        return seen


@dataclass(frozen=True)
class Replaced:
    """A node is lost for good: a spare takes its place."""

    fault: JobFault
    holds = "one incident that names the node; the spare trains on from the newest checkpoint; exit 0"

    def __call__(self, job: Job) -> str:
        job.start(2, ["head", "node1", "node2"], spares=1)
        job.first_steps(0, 2)
        job.wait_until_tied("node1")
        job.advance(15)
        [rank] = job["node1"].ranks()
        seen = self.fault(job)
        told = job.incident(1)
        assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("node_lost", ["node1"])
        gone_s = job.gone([rank.pid], 20.0, "node1's rank")
        first = job.first_steps(1, 2)
        assert [mark["node"] for mark in first] == ["head", "node2"]
        assert all(mark["at_s"] > gone_s for mark in first), "two attempts at once"
        job.mended(1, attempt=1)
        job.lab.restore(job["node1"].host)
        codes = job.finish()
        assert (codes["head"], codes["node2"]) == (0, 0)
        return seen


@dataclass(frozen=True)
class Continued:
    """The head is gone with all that ran on it; the same command there goes on."""

    fault: JobFault
    holds = "the others' ranks end; the same command on the head goes on from the newest checkpoint; exit 0"

    def __call__(self, job: Job) -> str:
        job.start(2, ["head", "node1"], *MORE)
        ranks = [mark["pid"] for mark in job.first_steps(0, 2)]
        job.advance(15)
        seen = self.fault(job)
        step = job.at()["step"]
        job.gone(ranks, 30.0, "all ranks")
        assert job["node1"].process.poll() is None, job.outputs()
        job.wait_for(lambda: not job["head"].processes(), 30.0, "the head to be empty")
        job["head"].process.wait()
        job.start_one("head", *flags(0, 2), *MORE)
        first = job.first_steps(1, 2)
        assert step - 25 <= first[0]["from"] <= step + 1, first
        job.advance(15)
        assert set(job.finish().values()) == {0}
        return seen


# Faults -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Supervisor:
    """A node's supervisor gets a signal; another takes its place."""

    node: str
    signum: signal.Signals

    def __call__(self, job: Job) -> str:
        kill(job[self.node].supervisor(), self.signum)
        job.says(self.node, "starting it again")
        return ""


@dataclass(frozen=True)
class SupervisorKilled:
    """Likewise, and nobody waits for the next one."""

    node: str

    def __call__(self, job: Job) -> str:
        kill(job[self.node].supervisor())
        return ""


@dataclass(frozen=True)
class Frozen:
    """Nothing of these nodes runs for so long."""

    nodes: tuple[str, ...]
    seconds: float

    def __call__(self, job: Job) -> str:
        frozen = [one for name in self.nodes for one in job[name].processes()]
        for process in frozen:
            kill(process, signal.SIGSTOP)
        time.sleep(self.seconds)
        for process in frozen:
            kill(process, signal.SIGCONT)
        return ""


@dataclass(frozen=True)
class LauncherStopped:
    node: str
    seconds: float

    def __call__(self, job: Job) -> str:
        launcher = job[self.node].launcher()
        kill(launcher, signal.SIGSTOP)
        time.sleep(self.seconds)
        kill(launcher, signal.SIGCONT)
        return ""


def head_crashes(job: Job) -> str:
    job["head"].host.crash()
    return ""


def head_is_killed(job: Job) -> str:
    kill(job["head"].launcher())
    return ""


def node_crashes(job: Job) -> str:
    job["node1"].host.crash()
    return ""


@dataclass(frozen=True)
class Cut:
    """Nothing gets through to or from a node, one way or both, for so long; 0: for good."""

    ways: tuple[str, ...]
    seconds: float = 0.0
    times: int = 1

    def __call__(self, job: Job) -> str:
        host = job["node1"].host
        for _ in range(self.times):
            if "in" in self.ways:
                job.lab.cut_one_way(host, "in")
            if "out" in self.ways:
                job.lab.cut_one_way(host, "out")
            if not self.seconds:
                return ""
            time.sleep(self.seconds)
            job.lab.restore(host)
            time.sleep(self.seconds)
        return ""


def unplugged(job: Job) -> str:
    job.lab.unplug(job["node1"].host)
    time.sleep(3.0)
    job.lab.plug_in(job["node1"].host)
    return ""


def slow(job: Job) -> str:
    job.lab.slow(job["node1"].host, 400_000)
    job.advance(40, timeout_s=60.0)
    job.lab.restore(job["node1"].host)
    return ""


def head_port(job: Job) -> int:
    """Where the head listens for the others' supervisors."""
    [join_file] = (job.folder / "guardrun-runs").glob(".join-*@head")
    port: int = json.loads(join_file.read_text())["port"]
    return port


def reset(job: Job) -> str:
    """The connections between supervisors are reset, ten times; those of ranks are not."""
    port = str(head_port(job))
    killed = 0
    for _ in range(10):
        said = job["node1"].host.run("ss", "-K", "-n", "-t", "dport", "=", port)
        killed += sum(port in line for line in said.splitlines())
        job.advance(2)
    assert killed, "this kernel resets nothing"
    return f"{killed} connections"


def head_unreachable_alone(job: Job) -> str:
    """Supervisors hear nothing of each other, ranks do."""
    rule = ["ipproto", "tcp", "dport", str(head_port(job)), "blackhole"]
    job["node1"].host.run("ip", "rule", "add", *rule)
    job.says("head", "contact with node1 lost")
    job.advance(20)
    job["node1"].host.run("ip", "rule", "del", *rule)
    job.says("head", "contact with node1 is back")
    return "contact lost and back"


NETNS = ("netns",)
BOTH = ("in", "out")
HEAD_KILL, HEAD_STOP = Supervisor("head", signal.SIGKILL), Supervisor("head", signal.SIGSTOP)

ROWS = (
    Row(
        "supervisor",
        "SIGKILL, on a node that follows",
        "in training",
        Unfelt(Supervisor("node1", signal.SIGKILL)),
        NETNS,
    ),
    Row(
        "supervisor",
        "SIGSTOP, on a node that follows",
        "in training",
        Unfelt(Supervisor("node1", signal.SIGSTOP)),
        NETNS,
    ),
    Row(
        "supervisor",
        "SIGKILL, on a node that follows",
        "as its rank is killed",
        Mended(SupervisorKilled("node1")),
        NETNS,
    ),
    Row("head", "SIGKILL of its supervisor", "in training", Unfelt(HEAD_KILL), NETNS, is_sample=True),
    Row("head", "SIGSTOP of its supervisor", "in training", Unfelt(HEAD_STOP), NETNS),
    Row(
        "head", "SIGKILL of its supervisor", "as another node's rank is killed", Mended(SupervisorKilled("head")), NETNS
    ),
    Row(
        "head", "SIGSTOP of its launcher, SIGCONT after 3 s", "in training", Unfelt(LauncherStopped("head", 3.0)), NETNS
    ),
    Row("head", "nothing of it runs for 6 s", "in training", Unfelt(Frozen(("head",), 6.0)), NETNS),
    Row(
        "head",
        "nothing of it runs for 6 s, nor of the other node",
        "in training",
        Unfelt(Frozen(("head", "node1"), 6.0)),
        NETNS,
    ),
    Row("head", "SIGKILL of its guardrun", "in training; the same command again", Continued(head_is_killed), NETNS),
    Row("head", "its node loses power", "in training; the same command again", Continued(head_crashes), NETNS),
    Row("link", "cut both ways for 3 s", "in training", Unfelt(Cut(BOTH, 3.0)), NETNS),
    Row("link", "cut both ways for 1 s, five times", "in training", Unfelt(Cut(BOTH, 1.0, 5)), NETNS),
    Row("link", "a node is not heard for 3 s", "in training", Unfelt(Cut(("out",), 3.0)), NETNS),
    Row("link", "cut both ways for good", "in training, with a spare", Replaced(Cut(BOTH)), NETNS),
    Row("link", "a node is not heard any more", "in training, with a spare", Replaced(Cut(("out",))), NETNS),
    Row("link", "a node hears nothing any more", "in training, with a spare", Replaced(Cut(("in",))), NETNS),
    Row("link", "its other end's node loses power", "in training, with a spare", Replaced(node_crashes), NETNS),
    Row("link", "the cable is out for 3 s", "in training", Unfelt(unplugged), NETNS),
    Row("link", "400 kbit/s", "in training", Unfelt(slow), NETNS),
    Row("link", "supervisors' connections are reset, ten times", "in training", Unfelt(reset), NETNS),
    Row("link", "supervisors do not reach each other, ranks do", "in training", Unfelt(head_unreachable_alone), NETNS),
)
