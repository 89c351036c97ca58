"""Whole runs in which torchrun's own agent starts and restarts the ranks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.launcher.attempt import torchrun_agent
from guardrun.launcher.attempt.torchrun_agent import AgentAttempt
from guardrun.supervisor.engine.model.events import Rank
from tests.launcher.conftest import read_facts
from tests.launcher.waiting_rank import WAIT, ready
from tests.support.guardrun_run import GuardrunStarter
from tests.support.waiting import wait_until


def test_its_restarts_are_told_as_attempts(launcher: GuardrunStarter, tmp_path: Path) -> None:
    """Exit codes too, also where the agent takes them, and starts all anew, before the launcher looks."""
    run = launcher.start(
        ["--nproc-per-node=2", "--max-restarts=2"],
        script=WAIT.format(before="assert os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] == '1'"),
        config='[launcher]\nagent = "torchrun"\n',
        env={"FAKE_SUPERVISOR": json.dumps({"grace_s": 0.2})},
    )

    def started(attempts: list[int]) -> bool:
        return [fact["attempt"] for fact in read_facts(run.run_dir) if fact["type"] == "started"] == attempts

    first = [ready(tmp_path, 0, rank) for rank in range(2)]
    wait_until(lambda: started([0]), 10, "the first attempt to be told")
    os.kill(first[1], signal.SIGSEGV)
    second = [ready(tmp_path, 1, rank) for rank in range(2)]
    wait_until(lambda: started([0, 1]), 10, "the second attempt to be told")
    run.send(signal.SIGSTOP)
    try:
        os.kill(second[1], signal.SIGABRT)
        third = [ready(tmp_path, 2, rank) for rank in range(2)]
    finally:
        run.send(signal.SIGCONT)
    wait_until(lambda: started([0, 1, 2]), 10, "the third attempt to be told")
    facts = read_facts(run.run_dir)
    assert facts[0]["ranks"] == [
        {"global_rank": rank, "local_rank": rank, "pid": first[rank], "node": facts[0]["ranks"][0]["node"]}
        for rank in range(2)
    ]
    assert set(facts[0]["error_files"]) == {"0", "1"}
    codes = {fact["pid"]: fact["exitcode"] for fact in facts if fact["type"] == "exited"}
    assert codes[first[1]] == -signal.SIGSEGV and codes[second[1]] == -signal.SIGABRT, facts
    assert {rank["pid"] for rank in facts[-1].get("ranks", [])} == set(third)
    run.send(signal.SIGTERM)
    done = run.wait(30)
    assert done.returncode == 143 and run.alive() == [], done
    assert (
        json.loads((done.run_dir / "run.json").read_text())["settings"]["is_torchrun_agent"] if done.run_dir else False
    )


def test_the_one_that_failed_is_told_before_whom_the_agent_has_ended_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code is the agent's, which was quicker, and did not tell it; the other's can still be read."""
    codes: dict[int, int | None] = {10: None, 11: -signal.SIGTERM}

    def read(pid: int) -> int | None:
        if codes[pid] is None:
            raise ProcessLookupError
        return codes[pid]

    monkeypatch.setattr(torchrun_agent, "read_exitcode", read)
    agent: Any = SimpleNamespace(poll=lambda: None, told_exitcodes=dict, pid=9)
    attempt = AgentAttempt(child=agent, node="node-a", world_size=2, first_number=0)
    handle: Any = SimpleNamespace(close=lambda: None)
    ranks = [Rank(global_rank=rank, local_rank=rank, pid=10 + rank, node="node-a") for rank in range(2)]
    found = [torchrun_agent._Found(rank, handle, "") for rank in ranks]
    attempt._found = dict(enumerate(found))
    assert attempt.poll() == [], "which one failed is not known"
    attempt._coming = {12: (1, found[0])}  # the agent starts all anew
    assert attempt.poll() == [(ranks[0], torchrun_agent.UNKNOWN_EXIT), (ranks[1], -signal.SIGTERM)]
    assert attempt.poll() == []


def test_several_nodes_go_through_it_and_its_end_is_the_runs(launcher: GuardrunStarter) -> None:
    done = launcher.run(
        [
            "--guard-launcher-agent=torchrun",
            "--nnodes=1:2",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            "--rdzv-conf=last_call_timeout=1",
        ],
        script="import os, sys, time; print('node', os.environ['GROUP_RANK']); time.sleep(0.5); sys.exit(3)",
    )
    assert done.returncode == 3 and "node 0" in done.stdout, done
    facts = read_facts(done.run_dir)
    assert [(f["attempt"], f["exitcode"]) for f in facts if f["type"] == "exited"] == [(0, 3)]
    assert facts[-1]["type"] == "stopped" and facts[-1]["exitcodes"] == {"0": 3}
    assert "ChildFailedError" in done.stderr


LAST = """
if os.environ["RANK"] == "1":
    first = pathlib.Path("/proc", pathlib.Path("ready-0-0").read_text())
    while {waits} and first.exists():  # the agent ends it otherwise
        time.sleep(0.05)
elif not {waits}:
    time.sleep(3600)
sys.exit({codes}[int(os.environ["RANK"])])
"""


@pytest.mark.parametrize(
    ("codes", "status"),
    [([0, 0], 0), ([0, 4], 4), ([-signal.SIGTERM, 4], 4)],
    ids=["well", "one fails", "one fails, upon which the agent ends the other"],
)
def test_exit_codes_that_the_agent_was_quicker_to_take(
    codes: list[int], status: int, launcher: GuardrunStarter, tmp_path: Path
) -> None:
    """A launcher that did not run meanwhile knows them by what the agent does next."""
    run = launcher.start(
        ["--nproc-per-node=2", "--max-restarts=0"],
        script=WAIT.format(before="") + LAST.format(waits=codes[0] == 0, codes=codes),
        config='[launcher]\nagent = "torchrun"\n',
    )
    pids = [ready(tmp_path, 0, rank) for rank in range(2)]
    wait_until(lambda: len(read_facts(run.run_dir)) >= 1, 10, "the attempt to be told")
    run.send(signal.SIGSTOP)
    try:
        (tmp_path / "go").touch()
        wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20, "the agent to wait for its ranks"
        )
    finally:
        run.send(signal.SIGCONT)
    done = run.wait(30)
    assert done.returncode == status, done
    exits = {fact["pid"]: fact["exitcode"] for fact in read_facts(done.run_dir) if fact["type"] == "exited"}
    assert exits == dict(zip(pids, codes, strict=True))
