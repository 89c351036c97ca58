"""Nodes that do not belong to the job, or say so wrongly: they are told why, and the job does not feel it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from guardrun import __version__
from guardrun.supervisor.fleet.protocol.messages import MAX_RAW_BYTES
from guardrun.supervisor.fleet.rendezvous.join_file import read_join_file
from guardrun.supervisor.fleet.transport.curve import make_key_pair
from tests.fleet_runs.jobs import QUICK, Job, flags
from tests.support.processes import read_descriptors

pytestmark = pytest.mark.real("netns")

ALONE = ("--alone",)


def test_who_does_not_belong_is_told_why(job: Job) -> None:
    """Long: one after the other is refused."""
    job.start(2, ["head", "node1"], script_args=ALONE)
    job.first_steps(0, 2)

    whys = {
        "other arguments": "another script or other arguments than the head",
        "twice": "node1 has joined already, and its first guardrun is still there",
        "the head's name": "head is the head itself: one guardrun a node",
        "another run's file": "does not take the keys in",
    }
    job.start_one("node2", *flags(1), script_args=("--alone", "--save-every=7"), known_as="other arguments")
    job.says("other arguments", whys["other arguments"])

    job.start_one("node1", *flags(1), script_args=ALONE, known_as="twice")
    job.says("twice", whys["twice"])

    job.start_one("node3", *flags(1), script_args=ALONE, env={"SLURMD_NODENAME": "head"}, known_as="the head's name")
    job.says("the head's name", whys["the head's name"])

    join = next((job.folder / "guardrun-runs").glob(".join-*@head"))
    other = job.folder / "other-run"
    other.write_text(join.read_text().replace(read_join_file(join).server_key, make_key_pair().public))
    other.chmod(0o600)
    job.start_one("node4", *flags(1), f"--guard-join={other}", script_args=ALONE, known_as="another run's file")
    job.says("another run's file", whys["another run's file"])

    guardctl = str(Path(sys.executable).with_name("guardctl"))
    status = json.loads(job["head"].host.run(guardctl, "status", "--json", str(job.run_dir)))
    refused = status["refused"]
    assert refused["nodes"] >= 3 and refused["connections"] + refused["keys"] >= 1, refused
    assert "refused" in (job.run_dir / "guardrun.log").read_text()
    job.advance(10)
    for name, why in whys.items():  # on a busy machine it was not known at once
        assert "waiting for the head" not in job[name].output.partition(why)[2], "what is wrong is all that is said"
        job[name].process.kill()
        job.nodes.pop(name).process.wait()
    assert not job.incidents()
    assert job.finish() == {"head": 0, "node1": 0}


def test_another_version(job: Job) -> None:
    """What an older guardrun would say, through a link of today's."""
    job.start(2, ["head", "node1"], script_args=ALONE)
    job.first_steps(0, 2)
    [join_file] = (job.folder / "guardrun-runs").glob(".join-*@head")
    code = PROBE.format(path=str(join_file))
    said = job.lab.host("node4").python(code)
    assert said.strip() == f"node4 runs guardrun 0.0.1, the head {__version__}: install the same on all nodes"
    assert job.finish() == {"head": 0, "node1": 0}


PROBE = """
import time, zmq
from pathlib import Path
from guardrun.supervisor.fleet.rendezvous.join_file import read_join_file
from guardrun.supervisor.fleet.transport.link import Head, Link, Refused
join = read_join_file(Path({path!r}))
link = Link(Head(join.addresses, join.port, join.server_key), join.client, "node4", slot=1, info={{"version": "0.0.1"}})
poller = zmq.Poller()
link.register(poller)
by_s = time.monotonic() + 60
said = []
while not said and time.monotonic() < by_s:
    said = [what.reason for what in link.read(dict(poller.poll(100))) if isinstance(what, Refused)]
print(*said)
link.close()
"""


def own_folder(job: Job, name: str) -> Path:
    """Where a node that does not lead keeps what it does not send: where its supervisor's log is."""
    opened = [Path(link) for link in read_descriptors(job[name].supervisor().pid)]
    return next(path.parent for path in opened if path.name == "guardrun.log")


def test_clocks_that_differ(job: Job) -> None:
    """Both hosts' clocks since boot, an hour apart, as they are on any two machines: a hang is timed all the same."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    ahead = ("unshare", "--time", "--monotonic=3600", "--boottime=3600", "--fork", "--kill-child")
    job.start_one("head", *flags(0))
    job.start_one("node1", *flags(1), under=ahead)
    job.first_steps(0, 2)
    job.advance(15)
    # Beside the stacks of its next looks lies more than is sent.
    for look in range(1, 30):
        folder = own_folder(job, "node1") / "looks" / f"0-{look:04d}"
        folder.mkdir(parents=True)
        (folder / "rank-1.big").write_bytes(os.urandom(2 * MAX_RAW_BYTES))
    hung_s = job.hang(1)
    told = job.incident(1)
    assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("rank_blocked", ["node1"])
    took_s = time.monotonic() - hung_s
    job.says("head", "guardrun: report: ")  # the last that is written of it
    [stacks] = (job.run_dir / "incidents").glob("001-*/stacks")
    assert (stacks / "not-fetched-node1.txt").read_text() == "1 files of node1 were too large to be fetched\n"
    assert "fetch_vocabulary_update" in next(stacks.glob("rank-1-pid-*.txt")).read_text(), "and the stacks were"
    assert "not-fetched-node1.txt" in (stacks.parent / "report.html").read_text()
    waited_s = float(told["summary"].partition("has waited ")[2].partition(" s")[0])
    assert waited_s <= took_s + 1
    job.first_steps(1, 2)
    assert job.finish() == {"head": 0, "node1": 0}
