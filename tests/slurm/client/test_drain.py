"""Draining in a real Slurm, and requeueing without the nodes that are to be left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from guardrun.slurm.client.commands import Failure, Slurm
from guardrun.slurm.client.drain import (
    MAX_REASON,
    DrainState,
    drain,
    drain_reason,
    is_ours,
    read_others_drains,
    undrain,
)
from guardrun.slurm.client.jobs import read_job
from guardrun.slurm.client.requeue import RequeueState, requeue
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

real_slurm = pytest.mark.real("slurm")


def test_a_reason_is_one_bounded_line() -> None:
    assert drain_reason("r1", "003", "gpu_ecc", "GPU 2 of n3 has\nlost rows.") == (
        "guardrun: r1 incident 003 gpu_ecc: GPU 2 of n3 has lost rows"
    )
    assert drain_reason("r1", "", "node_lost") == "guardrun: r1 node_lost"
    long = drain_reason("r1", "003", "disk", "x" * 1000)
    assert len(long) == MAX_REASON and is_ours(long)


@real_slurm
def test_a_drain_of_ours_is_made_renewed_and_lifted(slurm_lab: SlurmLab, slurm: Slurm) -> None:
    reason = drain_reason("run-1", "003", "gpu_ecc", 'GPU 2 = "bad" State=IDLE [x@y]')
    assert drain("n4", reason, slurm).state is DrainState.DONE
    assert slurm_lab.node("n4")["State"] == "IDLE+DRAIN"
    assert slurm_lab.node("n4")["Reason"] == reason
    assert "already" in drain("n4", reason, slurm).text

    newer = drain_reason("run-2", "001", "thermal")
    assert drain("n4", newer, slurm).is_done
    assert slurm_lab.node("n4")["Reason"] == newer

    lifted = undrain("n4", slurm)
    assert lifted.state is DrainState.DONE and newer in lifted.text
    assert undrain("n4", slurm).state is DrainState.NOTHING


@real_slurm
def test_another_ones_drain_is_left_alone(slurm_lab: SlurmLab, slurm: Slurm) -> None:
    slurm_lab.drain("n4", "maintenance, ask ops")
    done = drain("n4", drain_reason("r", "001", "gpu_xid"), slurm)
    assert done.state is DrainState.OTHERS and "maintenance, ask ops (root)" in done.text
    assert undrain("n4", slurm).state is DrainState.OTHERS
    assert slurm_lab.node("n4")["Reason"] == "maintenance, ask ops"

    drain("n2", "guardrun: r 1 disk", slurm)
    assert read_others_drains(["n1", "n2", "n4"], slurm) == {"n4": "maintenance, ask ops; root"}
    assert read_others_drains(["n1"], slurm) == {}

    slurm_lab.stop_node("n3")  # else its slurmd may report, and Slurm take it up again, whoever set it down
    slurm_lab.run("scontrol", "update", "nodename=n3", "state=down", "reason=broken fan")
    assert drain("n3", drain_reason("r", "001", "gpu_xid"), slurm).state is DrainState.OTHERS


@real_slurm
def test_who_may_not_and_what_is_not_there(slurm_lab: SlurmLab, slurm: Slurm, fake_slurm: Callable[..., Slurm]) -> None:
    assert drain("n77", "guardrun: x", slurm) == (
        DrainState.FAILED,
        "n77 could not be drained: scontrol: Node n77 not found",
    )
    path = slurm_lab.run("bash", "-c", "command -v scontrol").stdout.strip()
    as_nobody = fake_slurm(scontrol=f'exec setpriv --reuid=65534 --regid=65534 --clear-groups {path} "$@"')
    as_nobody = Slurm({**slurm.environ, **as_nobody.environ})
    done = drain("n4", "guardrun: x", as_nobody)
    assert done.state is DrainState.REFUSED and "operators and root" in done.text
    assert slurm_lab.node("n4")["State"] == "IDLE"

    job = slurm_lab.submit("sleep 60", "-N1")
    slurm_lab.wait_state(job, "RUNNING")
    assert requeue(job, ["n4"], as_nobody).state is RequeueState.REFUSED
    assert slurm_lab.job(job)["JobState"] == "RUNNING"


@real_slurm
def test_a_drain_that_meets_another_in_the_same_moment_says_what_is_there(
    slurm_lab: SlurmLab, slurm: Slurm, fake_slurm: Callable[..., Slurm]
) -> None:
    path = slurm_lab.run("bash", "-c", "command -v scontrol").stdout.strip()
    other = f"{path} update nodename=n4 state=drain reason=theirs"
    late = fake_slurm(scontrol=f'{path} "$@"; code=$?; [ $1 = update ] && {other}; exit $code')
    done = drain("n4", "guardrun: r 1 disk", Slurm({**slurm.environ, **late.environ}))
    assert done.state is DrainState.OTHERS and "in the same moment" in done.text and "theirs" in done.text


@real_slurm
def test_a_job_requeues_itself_without_a_node(slurm_lab: SlurmLab, slurm: Slurm) -> None:
    job = slurm_lab.submit("exec sleep 60", "-N2", "-x", "n4", "--requeue")
    assert slurm_lab.wait_state(job, "RUNNING")["NodeList"] == "n[1-2]"
    done = requeue(job, ["n2"], slurm)
    assert done.state is RequeueState.DONE and done.excluded == ("n4", "n2")
    assert slurm_lab.wait_state(job, "RUNNING", timeout_s=40)["NodeList"] == "n[1,3]"
    again = read_job(job, slurm)
    assert not isinstance(again, Failure) and again.restarts == 1 and again.excluded == "n4,n2"


@real_slurm
def test_only_the_right_task_of_an_array_is_requeued(slurm_lab: SlurmLab, slurm: Slurm) -> None:
    array = slurm_lab.submit("sleep 60", "-N1", "--array=3,7")
    for task in ("3", "7"):
        slurm_lab.wait_state(f"{array}_{task}", "RUNNING")
    assert requeue(f"{array}_7", [], slurm).is_done
    states = {task: read_job(f"{array}_{task}", slurm) for task in ("3", "7")}
    assert {task: one.restarts for task, one in states.items() if not isinstance(one, Failure)} == {"3": 0, "7": 1}
    # Whoever else of that task asks finds it done.
    again = requeue(f"{array}_7", [], slurm, own_restarts=0)
    assert again.is_done and "already" in again.text
    now = read_job(f"{array}_7", slurm)
    assert not isinstance(now, Failure) and now.restarts == 1


@real_slurm
def test_a_job_whose_head_is_dead_stays_until_somebody_else_requeues_it(slurm_lab: SlurmLab, slurm: Slurm) -> None:
    job = slurm_lab.submit("srun --no-kill sleep 600", "-N3", "--no-kill", "--requeue")
    slurm_lab.wait_state(job, "RUNNING")
    wait_until(lambda: any("sleep 600" in one.command for one in slurm_lab.processes_of("n3")), 20, "the step")
    slurm_lab.kill_node("n1")
    assert drain("n1", drain_reason("r", "001", "node_lost"), slurm).is_done
    assert slurm_lab.job(job)["JobState"] == "RUNNING"
    done = requeue(job, ["n1"], slurm, own_restarts=0)
    assert done.is_done and done.excluded == ("n1",)
    again = read_job(job, slurm)  # it starts once Slurm, too, has found the node down
    assert not isinstance(again, Failure) and (again.restarts, again.excluded) == (1, "n1")


@real_slurm
def test_what_cannot_start_again_is_said(slurm_lab: SlurmLab, slurm: Slurm) -> None:
    job = slurm_lab.submit("sleep 60", "-N1", "--no-requeue")
    slurm_lab.wait_state(job, "RUNNING")
    done = requeue(job, [], slurm)
    assert (done.state, done.text) == (RequeueState.IMPOSSIBLE, f"job {job} was submitted with --no-requeue")
    assert requeue("987654", [], slurm).state is RequeueState.FAILED
