"""How nodes find each other: c10d's flags and static ones, shared folders and none, on one host and on several."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.fleet_runs.jobs import PORT, QUICK, Job

pytestmark = pytest.mark.real("netns")

ALONE = ("--alone",)


def test_c10d_the_endpoints_host_leads_and_ctrl_c_there_ends_all(job: Job) -> None:
    """The same command line everywhere. The head's Ctrl-C is the job's."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    rendezvous = ("--rdzv-backend=c10d", f"--rdzv-endpoint=node1:{PORT}", "--rdzv-id=X", "--nnodes=2")
    for name in ("head", "node1"):
        job.start_one(name, *rendezvous, script_args=ALONE)
    nodes = job.where(0, 2)
    assert sorted(nodes) == ["head", "node1"]
    assert (job.run_dir / "events.jsonl").read_text().count('"type":"run_opened"') == 1
    assert job.events()[0]["event"]["node"] == "node1"
    job["node1"].send(signal.SIGINT)
    assert job.ended() == {"head": 130, "node1": 130}


def test_several_on_one_host(job: Job) -> None:
    """With the same endpoint, however written, as on a workstation: the first leads. SIGTERM to the spare ends that,
    SIGTERM to the other that trains ends all. Each says whose it was."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-id=X", "--nnodes=2", "--guard-spares=1")
    for number, host in enumerate(("[::1]", "localhost", "127.0.0.1")):
        if number == 2:
            placed = job.where(0, 2)
        env: dict[str, str | None] = {"SLURMD_NODENAME": f"part{number}"}
        endpoint = f"--rdzv-endpoint={host}:{PORT}"
        job.start_one("head", *rendezvous, endpoint, script_args=ALONE, env=env, known_as=f"part{number}")
    job.happens('"type":"node_joined"', 3)
    told = [line["event"] for line in job.events()]
    joined = [event["node"] for event in told if event["type"] == "node_joined"]
    head = str(told[0]["node"])
    parts = {name: job[name.partition("-")[0]] for name in joined}  # `part1-4242`: of several, by their pids
    [follower] = [name for name in joined if name.partition("-")[0] in placed and name != head]
    [spare] = [name for name in joined if name.partition("-")[0] not in placed]
    parts[spare].send(signal.SIGTERM)
    assert parts[spare].wait() == 143
    assert f"SIGTERM to guardrun here: {spare} leaves the job, which goes on without it" in parts[spare].output
    job.says(head, f"{spare} leaves: SIGTERM to its guardrun; it was a spare")
    job.advance(10)

    parts[follower].send(signal.SIGTERM)
    assert job.ended() == dict.fromkeys(job.nodes, 143)
    why = f"SIGTERM to guardrun on {follower}"
    assert job.summary()["reason"] == why
    assert f"{why}: ending the job on all nodes" in job[head].output
    assert f"the run was ended: {why}; its record, on {head}: {job.run_dir}" in parts[follower].output


def test_nothing_is_shared_but_the_join_file(job: Job, tmp_path: Path) -> None:
    """Each host has folders of its own; a slow link besides. Its rank is asked what it holds."""
    join = tmp_path / "marks" / "join"
    for name in ("node1",):
        job.lab.host(name).hide(job.folder)
        job.lab.host(name).run("sh", "-c", f"printf '{QUICK}' > {job.folder}/guardrun.toml")
        job.lab.slow(job.lab.host(name), 1_000_000)
    job.start(2, ["head", "node1"], f"--guard-join={join}", script_args=ALONE)
    assert job.where(0, 2) == ["head", "node1"]
    assert join.stat().st_mode & 0o777 == 0o600
    job.advance(20)
    guardctl = str(Path(sys.executable).with_name("guardctl"))
    asked = ("memory", "0", "1", "--seconds", "10", "--json", "--run", str(job.run_dir))
    told = json.loads(job["head"].host.run(guardctl, *asked))
    assert (told["missing"], told["nodes"]) == ({}, {"0": "head", "1": "node1"})
    assert all(told["ranks"][rank]["grown"]["steps"] > 0 for rank in ("0", "1"))
    assert not job.incidents()
    assert job.finish() == {"head": 0, "node1": 0}
    assert not join.exists()
    job.lab.host("node1").run("umount", str(job.folder))
