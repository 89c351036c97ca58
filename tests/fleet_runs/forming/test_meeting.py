"""Which head a node goes to; and what is said where there is none, or where it cannot be found."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from guardrun.launcher.base.terminal_lines import NOT_FIT, QUARANTINED
from tests.fleet_runs.jobs import LASTING, PORT, QUICK, Job, flags, guardctl, kill, replaced
from tests.support import scenes
from tests.support.netlab import INSIDE

pytestmark = pytest.mark.real("netns")

ALONE = ("--alone",)


def test_the_same_id_at_another_endpoint_is_another_job(job: Job) -> None:
    """All share one folder of runs. Each node may write the head's name as it likes; one job's is known by IPv6."""
    for name, address in (("node2", "fd00:29::2"), ("node3", "fd00:29::3")):
        job.lab.host(name).run("ip", "-6", "address", "replace", f"{address}/64", "dev", INSIDE, "nodad")
    (job.folder / "guardrun.toml").write_text(QUICK)
    common = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=100", "--guard-preflight=off")
    endpoints = {
        "head": "localhost",
        "node2": "[fd00:29::2]",
        "node1": job.lab.host("head").address,
        "node3": "[FD00:29:0::2]",
    }
    for name, host in endpoints.items():
        job.start_one(name, *common, f"--rdzv-endpoint={host}:{PORT}", script_args=ALONE)
    job.wait_for(lambda: _nodes_of_runs(job) == [["head", "node1"], ["node2", "node3"]], 60.0, "two jobs")
    for name in endpoints:
        job[name].send(signal.SIGINT)
    assert set(job.ended().values()) == {130}


def _nodes_of_runs(job: Job) -> list[list[str]]:
    """Of each run that has begun to train, the nodes."""
    found = []
    for journal in (job.folder / "guardrun-runs").glob("2*/events.jsonl"):
        events = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
        found += [[rank["node"] for rank in one["ranks"]] for one in events if one["type"] == "attempt_started"]
    return sorted(found)


def test_what_is_in_the_way_of_meeting_is_said(job: Job) -> None:
    """At once where it can be known: a --node-rank forgotten, no place for the join file. Else within ten seconds."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    (job.folder / "file").touch()
    nowhere = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=node4:{PORT}")
    job.start_one("node3", *nowhere, known_as="nobody's endpoint")
    job.start_one("head", *flags(0))
    job.start_one("node1", *[flag for flag in flags(0) if "rank" not in flag], known_as="no rank")
    job.start_one("node2", *flags(1), "--guard-join=file/join", known_as="elsewhere")
    job.start_one("node4", *nowhere, "--guard-join=file/join", known_as="no place")
    assert job["no rank"].wait() == job["no place"].wait() == 2
    job.says(
        "no rank",
        "not this host, and --node-rank is missing: on head it is 0, on the other 1",
    )
    job.says("no place", "file/join (Not a directory): name a place that this node can write and the others can read")
    job.says("nobody's endpoint", "waiting for the head: the guardrun on node4, which --rdzv-endpoint names", 15.0)
    job.says("head", "waiting for nodes: 1 of 2 are there (head)", 20.0)
    printed = next(line for line in job["head"].output.splitlines() if "waiting for nodes" in line)
    scenes.check("a node that does not come", "guardrun --nnodes=2 … train.py", printed, job.folder)
    for name in ("no rank", "no place"):
        assert "Traceback" not in job[name].output
    for name in ("nobody's endpoint", "head", "elsewhere"):
        job[name].process.kill()
        job[name].process.wait()
    job.nodes.clear()


def test_a_folder_of_runs_that_can_no_longer_be_written(job: Job) -> None:
    """A supervisor that is started anew then has the keys, and needs no more: the nodes stay together."""
    job.start(2, ["head", "node1"], config=LASTING, script_args=ALONE)
    job.first_steps(0, 2)
    head, runs = job.lab.host("head"), str(job.folder / "guardrun-runs")
    head.run("mount", "--bind", runs, runs)
    head.run("mount", "-o", "remount,bind,ro", runs)
    try:
        before = job["head"].supervisor()
        kill(before)
        replaced(job, "head", before.pid)
        job.says("head", "the run directory can't be written")
        job.advance(20)
        assert job.finish() == {"head": 0, "node1": 0}
        assert "going on without it" not in job["head"].output and "Traceback" not in job.outputs()
    finally:
        head.run("umount", runs)


def test_a_head_that_does_not_start_tells_those_that_wait(job: Job) -> None:
    """The port that the user named is taken there: nobody waits for ten minutes, and the same commands work once it
    is free, though the word still stands when they start."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    tried = "--guard-preflight=quick"
    listen = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(600)"
    taken = job.lab.host("head").popen([sys.executable, "-c", listen])
    job.start_one("node1", *flags(1), tried, script_args=ALONE)
    job.wait_for(lambda: list(job.folder.glob("guardrun-runs/.nodes/2*/run.json")), 30.0, "node1 to wait")
    job.start_one("head", *flags(0), tried, script_args=ALONE)
    assert job["node1"].wait() == job["head"].wait() == NOT_FIT
    assert f"guardrun: the head, head, did not start: Master port {PORT} is in use, by " in job["node1"].output
    taken.kill()
    taken.wait()
    job.ended()
    job.start(2, ["head", "node1"], tried, script_args=ALONE)
    assert job.where(0, 2) == ["head", "node1"]
    assert job.finish() == {"head": 0, "node1": 0}
    assert not list(job.folder.glob("guardrun-runs/.join*.refused"))


def test_a_node_that_is_refused_tells_the_head(job: Job) -> None:
    """It is under quarantine: the head says so at once, and takes it as soon as it is released and started again."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    guardctl(job, "node1", "isolate", "node1", "--reason=a fan")
    job.start_one("head", *flags(0), script_args=ALONE)
    assert job.start_one("node1", *flags(1), script_args=ALONE).wait() == QUARANTINED
    job.says("head", "guardrun: node1 takes no part: node node1 is quarantined since ")
    assert "a fan" in job["head"].output
    guardctl(job, "node1", "release", "node1")
    job.start_one("node1", *flags(1), script_args=ALONE)
    assert job.where(0, 2) == ["head", "node1"]
    assert job.finish() == {"head": 0, "node1": 0}
    assert not list(job.folder.glob("guardrun-runs/.join*absent*"))
