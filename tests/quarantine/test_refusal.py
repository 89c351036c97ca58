"""The real guardrun on a quarantined node: refused before anything is there, and let through."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.supervisor.health.quarantine_rules import AUTOMATIC, Isolation
from guardrun.supervisor.quarantine.record_places import Place, find_places
from guardrun.supervisor.quarantine.records import isolate_node, release_node
from tests.support.deadmount import dead_mount
from tests.support.guardrun_run import Finished

NODE = "node-a"
Run = Callable[..., Finished]


@pytest.fixture
def places(tmp_path: Path) -> list[Place]:
    return find_places(str(tmp_path / "state"), "", {}, NODE)


@pytest.fixture
def run(run_guardrun: Run, tmp_path: Path) -> Run:
    def start(*flags: str, **environment: str) -> Finished:
        env = {"SLURMD_NODENAME": NODE, "GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state"), **environment}
        return run_guardrun([*flags, "--nproc-per-node=1"], script="print('trained')", env=env)

    return start


def isolate(places: list[Place], who: str = AUTOMATIC, until_wall_s: float | None = None) -> None:
    now_s = time.time()
    isolation = Isolation(
        cause="gpu_xid",
        who=who,
        since_wall_s=now_s - 60,
        summary="Xid 79 on gpu 3: it has fallen off the bus.",
        until_wall_s=until_wall_s,
    )
    written, refused = isolate_node(places, NODE, isolation, now_s)
    assert written.paths and not refused


def test_refused_then_released(run: Run, places: list[Place]) -> None:
    isolate(places)
    done = run()
    assert (done.returncode, done.stdout) == (69, ""), done
    assert "guardrun: refused: node node-a is quarantined since 20" in done.stderr
    assert "gpu_xid (Xid 79 on gpu 3: it has fallen off the bus), isolated by guardrun" in done.stderr
    assert "guardctl node release node-a" in done.stderr and "--guard-ignore-quarantine" in done.stderr
    assert "Traceback" not in done.stderr and done.run_dir is None
    release_node(places, NODE, "bob", time.time(), "cable replaced")
    done = run()
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    assert "quarantine" not in done.stderr


def test_whoever_knows_may_run_all_the_same(run: Run, places: list[Place]) -> None:
    isolate(places, until_wall_s=time.time() + 3600)
    done = run("--guard-ignore-quarantine")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    assert " until 20" in done.stderr and "running all the same" in done.stderr


def test_torchrun_itself_knows_no_quarantine(run: Run, places: list[Place]) -> None:
    isolate(places)
    done = run("--guard-off")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done


def test_torchruns_agent_is_refused_too(run: Run, places: list[Place]) -> None:
    isolate(places)
    assert run("--nnodes=1:2", "--rdzv-backend=c10d").returncode == 69


def test_another_nodes_quarantine_and_one_that_has_expired_are_no_reason(run: Run, places: list[Place]) -> None:
    isolate(places, who="alice", until_wall_s=time.time() - 1)
    done = run()
    assert done.returncode == 0 and "quarantine" not in done.stderr, done
    isolate(places)
    assert run(SLURMD_NODENAME="node-b").returncode == 0


def test_isolated_by_its_hostname_and_started_by_slurm(run: Run, tmp_path: Path) -> None:
    """The node agent knows no other name than the hostname."""
    hostname = socket.gethostname()
    places = find_places(str(tmp_path / "state"), "", {}, hostname)
    isolation = Isolation(cause="disk", who=AUTOMATIC, since_wall_s=time.time())
    isolate_node(places, hostname, isolation, time.time())
    done = run()
    assert done.returncode == 69 and f"guardctl node release {hostname}" in done.stderr, done


def test_quarantined_in_the_shared_folder(run: Run, tmp_path: Path) -> None:
    isolate(find_places(str(tmp_path / "elsewhere"), str(tmp_path / "shared"), {}, NODE))
    assert run(GUARDRUN_NODE_SHARED_DIR=str(tmp_path / "shared")).returncode == 69


def test_a_record_that_cannot_be_read_is_said_and_stops_nobody(run: Run, places: list[Place]) -> None:
    isolate(places)
    for path in places[0].path.parent.glob("quarantine.json*"):
        path.write_bytes(path.read_bytes()[:30])
    done = run()
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    assert done.stderr.count("quarantine is not known from it") == 1 and "warning: " in done.stderr


@pytest.mark.real("fuse")
def test_a_shared_folder_that_does_not_answer_is_said_and_stops_nobody(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    with dead_mount(folder):
        done = run(GUARDRUN_NODE_SHARED_DIR=str(folder))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    assert done.stderr.count("does not answer: is its mount dead?") == 1
