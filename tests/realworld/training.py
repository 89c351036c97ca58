"""Trainings under guardrun whose trainers are imported once for all; one in which a rank is killed after some saves."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.forkserver import client
from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.support.keep_group import KEEP_GROUP
from tests.support.waiting import wait_until

SCRIPTS = Path(__file__).with_name("scripts")
SERVER = Path(__file__).with_name("trainers_server.py")

ENVIRONMENT: dict[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONUNBUFFERED": "1",
}
"""Nothing is downloaded, and nothing runs on a GPU."""

WAIT_S = 120.0


def read_rank(pid: int) -> str | None:
    """The global rank in a process's environment."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [value for value in variables if value.startswith(b"RANK=")]
    return found[0].partition(b"=")[2].decode() if found else None


def find_rank(run: GuardrunRun, rank: int) -> int:
    """The rank's pid: that of the launcher's own child, not of one of its workers; 0: there is none yet."""
    pids = [one.pid for one in run.alive() if one.ppid == run.pid and read_rank(one.pid) == str(rank)]
    assert len(pids) <= 1, f"rank {rank} is {pids}: {run.alive()}"
    return pids[0] if pids else 0


def kill_once(run: GuardrunRun, is_time: Callable[[], bool], before: Callable[[], object] = bool) -> None:
    """SIGKILL rank 1 as soon as it is time, straight after `before`. Raises where the run ends sooner."""

    def due() -> bool:
        assert run.process.poll() is None, f"ended too soon: {run.result()}"
        return is_time()

    # First: it takes as long as some steps of a training that goes on, which may save the next checkpoint meanwhile.
    pid = wait_until(lambda: find_rank(run, 1), WAIT_S, "rank 1")
    wait_until(due, WAIT_S, "checkpoints", every_s=0.005)
    before()
    os.kill(pid, signal.SIGKILL)


def check_killed_once(run: GuardrunRun) -> tuple[Finished, dict[str, Any]]:
    """Wait for the end: exit status 0, one incident (rank 1 killed, restarted), nobody left; the incident."""
    done = run.wait(2 * WAIT_S)
    assert done.returncode == 0, done
    [incident] = done.incidents
    assert (incident["kind"], incident["cause"], incident["action"]) == ("crash", "killed", "restart"), done
    assert [culprit["rank"] for culprit in incident["culprits"]] == [1]
    assert incident["resumed_from"] is not None and incident["recovered"] is not None, incident
    assert done.summary is not None and done.summary["outcome"] == "finished"
    assert run.alive() == []
    return done, incident


@contextlib.contextmanager
def trainers_imported(hf_home: Path) -> Iterator[client.Server]:
    """A fork server that has imported transformers, Lightning and TRL: that takes seconds of a CPU, in each rank anew.

    hf_home: of all that is forked there; the libraries read it when they are imported.
    """
    server = client.Server.start(SERVER, {**ENVIRONMENT, "HF_HOME": str(hf_home)})
    try:
        yield server
    finally:
        server.close()


def start(
    starter: GuardrunStarter,
    script: list[str],
    config: str,
    flags: list[str] | None = None,
    server: client.Server | None = None,
) -> GuardrunRun:
    """Two ranks of a script, or of a module (`-m`), with its arguments.

    flags: guardrun's; server: of trainers_imported. Without one, each rank imports the trainer from its files.
    """
    with client.forked_by(server) if server is not None else contextlib.nullcontext():
        return starter.start(
            ["--nproc_per_node=2", *(flags or []), KEEP_GROUP, *script],
            config=config,
            env={**ENVIRONMENT, "HF_HOME": str(starter.folder / "hf")},
        )
