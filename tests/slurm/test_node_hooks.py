"""Prolog and epilog: what they refuse and end, in a real Slurm and beside a real node agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.launcher.base.terminal_lines import NOT_FIT, QUARANTINED
from guardrun.slurm import node_hooks
from guardrun.slurm.node_hooks import Refusal, find_left, find_refusal, run_epilog, run_prolog, sweep
from tests.agent.bed import AgentBed
from tests.agent.callers import as_nobody
from tests.support.processes import is_alive, kill, read_process
from tests.support.real import find_program
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

SCRIPTS = Path(node_hooks.__file__).parent
GUARDCTL = find_program("guardctl") or "guardctl"
Wish = Callable[..., dict[str, str]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wish:
    """What Slurm gives a prolog, with records of quarantine in the test's own folder."""
    monkeypatch.setenv("GUARDRUN_AGENT_SOCKET", str(tmp_path / "no.sock"))

    def make(**more: str) -> dict[str, str]:
        return {
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_UID": str(os.getuid()),
            "GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state"),
            "GUARDRUN_PREFLIGHT_LEVEL": "off",
            **more,
        }

    return make


def isolate(folder: Path, node: str) -> None:
    """As a person does it, in a record of the test's own."""
    environ = {**os.environ, "GUARDRUN_NODE_STATE_DIR": str(folder / "state"), "SLURMD_NODENAME": node}
    command = [GUARDCTL, "node", "isolate", node, "--cause", "gpu_xid", "--reason", "Xid 79"]
    subprocess.run(command, env=environ, cwd=folder, check=True, capture_output=True)


def test_a_quarantined_node_is_refused_and_its_neighbour_is_not(tmp_path: Path, world: Wish) -> None:
    """Long: Slurm looks at its nodes and jobs every few seconds."""
    isolate(tmp_path, "node-a")
    refusal = find_refusal(world(SLURMD_NODENAME="node-a"))
    assert refusal is not None and refusal.exit_status == QUARANTINED
    assert refusal.text.startswith("quarantined, gpu_xid (Xid 79), isolated by ")
    assert find_refusal(world(SLURMD_NODENAME="node-b")) is None


def test_what_the_checks_refuse_is_refused(world: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_hooks, "ask_checks", lambda: ["GPU 3 is lost.", "GPU 4 is lost."])
    environ = world(SLURMD_NODENAME="node-b", GUARDRUN_PREFLIGHT_LEVEL="quick")
    assert find_refusal(environ) == Refusal("GPU 3 is lost.; GPU 4 is lost.", NOT_FIT)


def test_the_real_checks_answer_and_silent_ones_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(node_hooks.ask_checks(60.0), list)
    monkeypatch.setattr(node_hooks, "CODE", "import time; time.sleep(600)")
    assert node_hooks.ask_checks(0.2) == []
    monkeypatch.setattr(node_hooks, "CODE", "print('no json')")
    assert node_hooks.ask_checks(30.0) == []


def test_a_broken_guardrun_lets_the_job_start(
    world: Wish, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_hooks, "find_refusal", lambda environ: 1 / 0)
    assert run_prolog(world()) == 0
    assert "the job starts all the same: ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("says", "status"), [("exit 69", 1), ("exit 71", 1), ("exit 1", 0), ("kill -9 $$", 0), ("", 0)]
)
def test_only_a_refusal_makes_the_prolog_fail(tmp_path: Path, says: str, status: int) -> None:
    program = tmp_path / "guardctl"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    done = subprocess.run([SCRIPTS / "prolog.sh"], env={"GUARDCTL": str(program)}, check=False)
    assert done.returncode == status
    assert subprocess.run([SCRIPTS / "epilog.sh"], env={"GUARDCTL": str(program)}, check=False).returncode == 0


def test_without_guardrun_both_let_the_job_be() -> None:
    for name in ("prolog.sh", "epilog.sh"):
        assert subprocess.run([SCRIPTS / name], env={"GUARDCTL": "/no/such"}, check=False).returncode == 0


# Epilog ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[Callable[..., int]]:
    """Starts a process with an environment of one's own; its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**environ: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(600)"],
            env=environ,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stdout.readline()
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_only_what_bears_both_marks_is_ended(sleeper: Callable[..., int]) -> None:
    ours = {"GUARDRUN_TOKEN": "t", "SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n1"}
    left = sleeper(**ours)
    others = [
        sleeper(**{**ours, "SLURM_JOB_ID": "47110"}),
        sleeper(**{**ours, "SLURMD_NODENAME": "n2"}),
        sleeper(SLURM_JOB_ID="4711", SLURMD_NODENAME="n1"),
        sleeper(GUARDRUN_TOKEN="t"),
    ]
    assert [one.pid for one in find_left("4711", os.getuid(), "n1")] == [left]
    assert find_left("4711", os.getuid() + 1, "n1") == []
    swept = sweep("4711", os.getuid(), "n1")
    assert [one.pid for one in swept.ended] == [left] and swept.remaining == []
    assert not is_alive(left) and all(is_alive(pid) for pid in others)


def test_what_was_ended_is_in_the_nodes_history(
    sleeper: Callable[..., int], agent: AgentBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long on a busy machine: Slurm ends a job that does not want to end."""
    agent.start()
    monkeypatch.setenv("GUARDRUN_AGENT_SOCKET", str(agent.socket))
    monkeypatch.setattr(node_hooks, "AGENT_PATIENCE_S", 60.0)
    pid = sleeper(GUARDRUN_TOKEN="t", SLURM_JOB_ID="4712")
    assert run_epilog({"SLURM_JOB_ID": "4712", "SLURM_JOB_UID": str(os.getuid())}) == 0
    agent.wait_for_entry("epilog_swept")
    entries = agent.history(what="job")["entries"]
    found = [entry for entry in entries if entry["name"] == "epilog_swept"]
    assert found[0]["subject"] == "slurm:4712" and found[0]["data"] == {"ended": [pid], "remaining": []}


@pytest.mark.real("root")
def test_only_root_writes_into_the_history(agent: AgentBed, open_folder: Path) -> None:
    agent.start()
    code = """
try:
    ask("note", {"text": "x"}, path=path, timeout_s=60.0)
except RefusedError as error:
    print(error)
"""
    assert "only root may write into this node's history" in as_nobody(code, agent.socket)


def test_an_epilog_that_is_told_nothing_does_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_epilog({}) == 0
    assert "nothing done" in capfd.readouterr().err


# In a real Slurm -------------------------------------------------------------------------------------------------


def script(name: str, folder: Path) -> str:
    """prolog.sh or epilog.sh as slurmd runs it, with records of the test's own."""
    return (
        f"export GUARDCTL={GUARDCTL} GUARDRUN_NODE_STATE_DIR={folder}/state GUARDRUN_PREFLIGHT_LEVEL=off\n"
        f"export GUARDRUN_AGENT_SOCKET={folder}/no.sock\n"
        f"exec {SCRIPTS}/{name}.sh 2>>{folder}/{name}.log\n"
    )


@pytest.mark.real("slurm")
def test_no_job_starts_on_a_quarantined_node(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: Slurm looks at its nodes and jobs every few seconds."""
    isolate(tmp_path, "n1")
    slurm_lab.set_prolog(script("prolog", tmp_path))
    job = slurm_lab.submit("hostname; echo ran on $SLURM_JOB_NODELIST", "-N2", "--requeue")
    slurm_lab.wait_node("n1", "DRAIN")
    reason = slurm_lab.node("n1")["Reason"]
    assert reason.startswith("guardrun: quarantined, gpu_xid (Xid 79), isolated by "), reason
    # Slurm holds it (SchedulerParameters=nohold_on_prolog_fail is what keeps it from that).
    slurm_lab.wait_state(job, "PENDING")
    wait_until(lambda: "held" in slurm_lab.job(job)["Reason"].lower(), 20, "the job to be held")
    slurm_lab.run("scontrol", "release", job)
    again = slurm_lab.wait_state(job, "COMPLETED", timeout_s=60)
    assert again["NodeList"] == "n[2-3]" and again["Restarts"] == "1"
    assert slurm_lab.output(job).count("ran on") == 1
    assert f"job {job} may not start on n1" in (tmp_path / "prolog.log").read_text()


@pytest.mark.real("slurm")
def test_what_escaped_from_slurm_is_ended_by_the_epilog(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    slurm_lab.set_epilog(script("epilog", tmp_path))
    escape = "setsid sh -c 'echo $$ > {0}/$1; exec sleep 600' x $SLURMD_NODENAME-$1 </dev/null >/dev/null 2>&1 &"
    lines = (
        f"#!/bin/sh\n{escape.format(tmp_path)}\nwhile [ ! -s {tmp_path}/$SLURMD_NODENAME-$1 ]; do sleep 0.05; done\n"
    )
    (tmp_path / "leave.sh").write_text(lines)
    command = f"GUARDRUN_TOKEN=t sh {tmp_path}/leave.sh marked; sh {tmp_path}/leave.sh plain"
    job = slurm_lab.submit(f'srun -N2 sh -c "{command}"', "-N2")
    slurm_lab.wait_state(job, "COMPLETED")
    wait_until((tmp_path / "epilog.log").exists, 20, "the epilog")
    pids = {path.name: int(path.read_text()) for path in tmp_path.glob("n?-*")}
    try:
        assert len(pids) == 4
        for name in ("n1-marked", "n2-marked"):
            wait_until(lambda name=name: not is_alive(pids[name]), 20, f"the end of {name}")
        log = (tmp_path / "epilog.log").read_text()
        assert f"Slurm job {job} is over here and had left processes behind: ended" in log
        assert all(str(pids[name]) not in log for name in ("n1-plain", "n2-plain"))
    finally:
        for pid in pids.values():
            process = read_process(pid)
            if process is not None and "sleep 600" in process.command:
                kill(process)


@pytest.mark.real("slurm")
def test_guardctl_slurm_status_tells_of_job_drains_and_quarantine(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    env = {"GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state")}
    isolate(tmp_path, "n4")
    job = slurm_lab.submit("sleep 60", "-N2", "-J", "llm", "-x", "n3", "-t", "30")
    slurm_lab.wait_state(job, "RUNNING")
    slurm_lab.run("scontrol", "update", "nodename=n2", "state=drain", "reason=guardrun: r1 incident 003 gpu_ecc")
    shown = slurm_lab.run(GUARDCTL, "slurm", "status", job, cwd=tmp_path, env=env).stdout
    assert f"job {job} · llm · RUNNING" in shown and "without n3" in shown
    assert "n2: guardrun: r1 incident 003 gpu_ecc" in shown
    assert "n4: gpu_xid (Xid 79), isolated by " in shown
    data = json.loads(slurm_lab.run(GUARDCTL, "slurm", "status", "--json", cwd=tmp_path, env=env).stdout)
    assert [one["job"] for one in data["jobs"]] == [job]
    assert [node["drained_by_guardrun"] for node in data["jobs"][0]["nodes"]] == [False, True]
    assert data["jobs"][0]["run"] is None and 0 < data["jobs"][0]["left_s"] <= 1800
    wrong = slurm_lab.run(GUARDCTL, "slurm", "status", "98765", cwd=tmp_path, env=env, is_checked=False)
    assert wrong.returncode == 1 and "Invalid job id" in wrong.stderr


@pytest.mark.real("slurm")
def test_a_release_lifts_guardruns_drain_and_no_other(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    env = {"GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state"), "SLURMD_NODENAME": "n4"}
    release = (GUARDCTL, "node", "release", "n4")
    isolate(tmp_path, "n4")
    slurm_lab.drain("n4", "guardrun: r1 incident 003 gpu_ecc")
    done = slurm_lab.run(*release, cwd=tmp_path, env=env)
    assert "n4 is in service again (it was drained: guardrun: r1 incident 003 gpu_ecc)" in done.stdout
    assert "DRAIN" not in slurm_lab.node("n4")["State"]

    slurm_lab.drain("n4", "maintenance")
    isolate(tmp_path, "n4")
    answer = json.loads(slurm_lab.run(*release, "--json", cwd=tmp_path, env=env).stdout)
    assert "n4 stays drained, it is not guardrun's drain" in answer["slurm"] and answer["state"] == "free"
    assert slurm_lab.node("n4")["Reason"] == "maintenance"


@pytest.mark.real("slurm")
def test_a_drain_is_lifted_from_any_node(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Where guardrun says `guardctl node release n4` is the first node, or a login node; no folder is shared."""
    env = {"GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state"), "SLURMD_NODENAME": "n1"}
    release = (GUARDCTL, "node", "release", "n4")
    slurm_lab.drain("n4", "guardrun: r1 incident 003 node_lost")
    answer = json.loads(slurm_lab.run(*release, "--json", cwd=tmp_path, env=env).stdout)
    assert answer["slurm"] == "n4 is in service again (it was drained: guardrun: r1 incident 003 node_lost)"
    assert answer["state"] == "unknown" and "kept on n4 itself" in answer["troubles"][0]
    assert "DRAIN" not in slurm_lab.node("n4")["State"]
    again = slurm_lab.run(*release, cwd=tmp_path, env=env, is_checked=False)
    assert again.returncode == 1 and "n4 cannot see what is kept here" in again.stderr
    slurm_lab.drain("n4", "maintenance")
    others = slurm_lab.run(*release, cwd=tmp_path, env=env, is_checked=False)
    assert others.returncode == 1 and "n4 stays drained, it is not guardrun's drain" in others.stderr
