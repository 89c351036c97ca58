"""How nodes find each other: c10d's flags and static ones, shared folders and none, on one host and on several."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fleet.jobs import PORT, QUICK, Job

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


def test_two_on_one_host(job: Job) -> None:
    """With the same endpoint, however written, as on a workstation: the first leads. SIGTERM to the other ends both."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-id=X", "--nnodes=2")
    for number, host in enumerate(("[::1]", "localhost")):
        env: dict[str, str | None] = {"SLURMD_NODENAME": f"part{number}"}
        endpoint = f"--rdzv-endpoint={host}:{PORT}"
        job.start_one("head", *rendezvous, endpoint, script_args=ALONE, env=env, known_as=f"part{number}")
    job.first_steps(0, 2)
    follower = "part1" if job.events()[0]["event"]["node"] == "part0" else "part0"
    job[follower].send(signal.SIGTERM)
    assert job.ended() == {"part0": 143, "part1": 143}


def test_nothing_is_shared_but_the_join_file(job: Job, tmp_path: Path) -> None:
    """Each host has folders of its own; a slow link besides."""
    join = tmp_path / "marks" / "join"
    for name in ("node1",):
        job.lab.host(name).hide(job.folder)
        job.lab.host(name).run("sh", "-c", f"printf '{QUICK}' > {job.folder}/guardrun.toml")
        job.lab.slow(job.lab.host(name), 1_000_000)
    job.start(2, ["head", "node1"], f"--guard-join={join}", script_args=ALONE)
    assert job.where(0, 2) == ["head", "node1"]
    assert join.stat().st_mode & 0o777 == 0o600
    job.advance(20)
    assert not job.incidents()
    assert job.finish() == {"head": 0, "node1": 0}
    assert not join.exists()
    job.lab.host("node1").run("umount", str(job.folder))
