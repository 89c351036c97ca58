"""Before the job ends: the ranks are asked to save, the run ends unfinished, and the same command goes on with it."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.engine.model.actions import TakeLook
from guardrun.supervisor.engine.model.events import RunContinued
from guardrun.supervisor.report.elements.quantities import parse_iso_time
from guardrun.supervisor.rundir.journal import read_lines
from guardrun.supervisor.rundir.run_directory import read_run_file, write_run_file
from tests.runs.runs import (
    RESUME,
    EdgeRuns,
    check_dates,
    check_show,
    check_times,
    finish,
    journal_of,
    log_of,
    only,
    own_lines,
)
from tests.support.guardrun_run import Finished, GuardrunRun
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

LONG = ("--steps", "100000", "--step-s", "0.02", "--save-every", "0")
NAMED = ("--guard-run-id", "mine")
SLURM = """#!/bin/sh
echo "$@" >> {calls}
[ "$1" = show ] && [ -e {busy} ] && echo "Unable to contact slurm controller" >&2 && exit 1
[ "$1" = show ] && cat {job} && exit
[ "$1" = requeue ] && [ -e {away} ] && rm {away} && echo "Unable to contact slurm controller" >&2 && exit 1
[ "$1" = requeue ] && echo requeued > {requeued}
exit 0
"""
JOB = (
    "JobId=42 JobName=train UserId=ada(1000) GroupId=ada(1000) JobState={state} Reason=None Requeue=1 Restarts=0 "
    "BatchFlag=1 StartTime=1 EndTime={end} PreemptTime={preempt} ExcNodeList=(null) NodeList=node-a NumNodes=1"
)


class FakeSlurm:
    """A scontrol that answers from a file, and keeps what it was asked: what Slurm says is tested with a real one."""

    def __init__(self, folder: Path, state: str = "RUNNING", end_s: float = 3600.0, preempt_s: float = 0.0) -> None:
        self.calls, self.requeued, job = folder / "calls", folder / "requeued", folder / "job"
        self.calls.touch()
        self.busy = folder / "busy"
        """While it is there, nothing is told of the job."""
        self.away = folder / "away"
        """While it is there, the next order to requeue finds no controller."""
        now = time.time()
        preempt = f"{now + preempt_s:.0f}" if preempt_s else "None"
        job.write_text(JOB.format(state=state, end=f"{now + end_s:.0f}", preempt=preempt))
        program = folder / "bin" / "scontrol"
        program.parent.mkdir()
        program.write_text(
            SLURM.format(calls=self.calls, job=job, requeued=self.requeued, away=self.away, busy=self.busy)
        )
        program.chmod(0o755)
        self.env: dict[str, str | None] = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_END_TIME": f"{now + end_s:.0f}",
        }


def start(edge: EdgeRuns, *more: str, config: str = RESUME, **options: Any) -> GuardrunRun:
    run = edge.start("plain.py", *LONG, *more, flags=NAMED, config=config, **options)
    run.wait_for_output("rank 0: starts at step")
    run.wait_for_output("rank 1: starts at step")
    wait_until(lambda: '"milestones"' in journal_of(run), 10, "the first steps")
    return run


def check_saved(finished: Finished, status: int, cause: str = "signal") -> dict[str, Any]:
    """Ended unfinished with a checkpoint in time; the incident."""
    assert finished.returncode == status, finished
    assert finished.summary is not None
    assert (finished.summary["outcome"], finished.summary["restarts"]) == ("preempted", 0)
    incident = only(finished)
    assert (incident["kind"], incident["cause"], incident["culprits"]) == ("preemption", cause, [])
    assert incident["evidence"]["in_time"] is True
    saved = incident["evidence"]["checkpoint"]
    assert Path(saved["path"]).name == f"ckpt_{saved['step']}.safetensors"
    return incident


def saved_steps(finished: Finished) -> dict[str, list[int]]:
    """Per rank, the steps at which it saved."""
    found: dict[str, list[int]] = {}
    for rank, step in re.findall(r"rank (\d): saves at step (\d+)", finished.stdout):
        found.setdefault(rank, []).append(int(step))
    return found


def test_a_warning_saves_and_the_same_run_goes_on(edge: EdgeRuns) -> None:
    run = start(edge, "--asked", "save")
    run.send(signal.SIGUSR1)
    first = finish(run, 30)
    incident = check_saved(first, 138)
    steps = saved_steps(first)
    assert steps["0"] == steps["1"] and len(steps["0"]) == 1, "at one and the same step, once"
    step = incident["evidence"]["checkpoint"]["step"]
    assert step == steps["0"][0]
    further = str(incident["step"] + 5)
    again = edge.run(
        "plain.py", "--steps", further, "--step-s", "0.001", "--save-every", "0", flags=NAMED, timeout_s=30
    )
    assert again.returncode == 0
    assert f"starts at step {step} " in again.stdout
    check_show("emergency checkpoint", again, "001")
    assert again.incidents[0]["recovered"] is not None
    assert again.incidents[0]["resumed_from"]["step"] == step
    assert [again.incidents[0][name] for name in ("onset", "detected")] == [incident["onset"], incident["detected"]]
    assert first.summary is not None and again.summary is not None and again.run_dir is not None
    check_dates(again.run_dir)
    second = again.summary["attempts"][1]
    pause_s = parse_iso_time(second["started"]) - parse_iso_time(first.summary["ended"])
    before, after = first.summary["lost_s"], again.summary["lost_s"]
    lost_s = {use: after[use] - before[use] for use in ("other", "starting")}
    assert lost_s["other"] > 0 and sum(lost_s.values()) > 0.9 * pause_s, "all of it is lost time"


def test_an_hour_in_the_queue(edge: EdgeRuns) -> None:
    """What the journal waited for is over with it; the hour is nobody's silence, and is lost."""
    run = start(edge, "--save-every", "10")
    wait_until((edge.folder / "out/ckpt_50.safetensors").exists, 30, "a checkpoint")
    run.send(signal.SIGKILL)
    run.process.wait(60)
    wait_until(lambda: not run.alive(), 20, "the end of all that it has started")
    assert run.run_dir is not None
    first = read_run_file(run.run_dir)
    first.created_wall_s -= 3600.0
    write_run_file(run.run_dir, first)
    last_s = [line.t for line in read_lines(run.run_dir) if line is not None][-1]
    again = edge.run("plain.py", "--steps", "300", "--step-s", "0.001", flags=NAMED, timeout_s=30)
    assert (again.returncode, again.incidents) == (0, [])
    lines = [line for line in read_lines(run.run_dir) if line is not None]
    [went_on] = [number for number, line in enumerate(lines) if isinstance(line.event, RunContinued)]
    assert lines[went_on - 1].t == last_s and lines[went_on].t > 3600.0
    assert not any(isinstance(action, TakeLook) for line in lines for action in line.actions)
    assert again.summary is not None
    assert (again.summary["lost_s"]["other"] > 3590.0, again.summary["goodput"] < 0.02) == (True, True)
    assert [one["outcome"] for one in again.summary["attempts"]] == ["guardrun ended", "finished"]
    assert again.summary["attempts"][0]["ended_s"] == pytest.approx(last_s, abs=0.01)
    check_times(again.summary)


def test_ranks_that_leave_once_they_have_saved_are_not_finished(edge: EdgeRuns) -> None:
    run = start(edge, "--asked", "leave")
    run.send(signal.SIGUSR2)
    check_saved(finish(run, 30), 140)


def test_a_script_that_never_saves_is_stopped_in_time(edge: EdgeRuns) -> None:
    run = start(edge, config=f"{RESUME}[preemption]\ngrace_s = 3\n")
    began_s = time.monotonic()
    run.send(signal.SIGUSR1)
    finished = finish(run, 30)
    assert 3 < time.monotonic() - began_s < 60
    incident = only(finished)
    assert (finished.returncode, incident["evidence"]["in_time"]) == (138, False)
    assert "no checkpoint was whole in time" in incident["summary"]


def test_a_handler_of_the_script_s_own(edge: EdgeRuns) -> None:
    """It is given the signal where the user wants that; its exit code is no crash."""
    run = start(edge, "--own-handler", config=f"{RESUME}[preemption]\nforward = true\n")
    run.send(signal.SIGUSR1)
    incident = check_saved(finish(run, 30), 138)
    assert incident["evidence"]["forwarded"] is True


def test_ctrl_c_waits_for_no_checkpoint(edge: EdgeRuns) -> None:
    run = start(edge)
    run.send(signal.SIGUSR1)
    wait_until(lambda: "preemption_noticed" in journal_of(run), 10, "the notice")
    began_s = time.monotonic()
    run.send(signal.SIGINT)
    finished = finish(run, 30)
    assert (finished.returncode, time.monotonic() - began_s < 60) == (130, True)
    assert finished.summary is not None and finished.summary["outcome"] == "interrupted"


def test_a_supervisor_that_dies_meanwhile(edge: EdgeRuns) -> None:
    run = start(edge, config=f"{RESUME}[preemption]\ngrace_s = 6\n")
    run.send(signal.SIGUSR1)
    wait_until(lambda: "checkpoint_asked" in log_of(run) or "ask_checkpoint" in journal_of(run), 10, "the request")
    [daemon] = run.supervisors()
    os.kill(daemon.pid, signal.SIGKILL)
    finished = finish(run, 40)
    assert (finished.returncode, only(finished)["evidence"]["in_time"]) == (138, False)


def test_where_torchrun_s_own_agent_runs_the_attempts(edge: EdgeRuns) -> None:
    """It is ended with its ranks, rather than left to start them anew."""
    run = start(edge, "--asked", "save", config=f'{RESUME}[launcher]\nagent = "torchrun"\n')
    run.send(signal.SIGUSR1)
    finished = finish(run, 60)
    check_saved(finished, 138)
    assert finished.summary is not None and len(finished.summary["attempts"]) == 1


def test_while_an_attempt_is_being_stopped(edge: EdgeRuns) -> None:
    """What fell is told as ever; nothing is started any more, and no restart is used up."""
    config = f"{RESUME}[restart]\nstop_grace_s = 8\n"
    run = edge.start("plain.py", *LONG, "--ignore-sigterm", "--plan", "0:kill@5:1", flags=NAMED, config=config)
    wait_until(lambda: "stop_began" in log_of(run), 30, "the stop to begin")
    run.send(signal.SIGUSR1)
    finished = finish(run, 30)
    assert finished.returncode == 138
    assert finished.summary is not None
    assert (finished.summary["outcome"], finished.summary["restarts"]) == ("preempted", 0)
    assert sorted(i["cause"] for i in finished.incidents) == ["killed", "signal"]


# Under Slurm -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", [True, False], ids=["wanted", "by default"])
def test_the_time_limit_is_seen_coming_and_the_job_is_requeued_where_that_is_wanted(
    edge: EdgeRuns, beyond: bool
) -> None:
    """Long: the limit is 40 s away, so that there is time to see it coming."""
    slurm = FakeSlurm(edge.folder, end_s=40)
    slurm.away.touch()
    wanted = "[preemption]\nrequeue = 'time_limit'\n" if beyond else ""
    run = edge.start(
        "plain.py",
        *LONG,
        "--asked",
        "save",
        flags=NAMED,
        env=slurm.env,
        config=f"{RESUME}[restart]\nstop_grace_s = 1\n{wanted}",
    )
    finished = finish(run, 60)
    incident = check_saved(finished, 143, "time_limit")
    if not beyond:
        assert incident["action"] == "none" and not slurm.requeued.exists()
        assert "the job is not requeued: its time limit is a limit; [preemption] requeue =" in finished.stderr
        return
    assert incident["evidence"]["requeued"] is True and incident["action"] == "restart"
    assert slurm.requeued.exists()
    assert "Unable to contact slurm controller; it is asked again for" in finished.stderr
    assert finished.summary is not None and finished.summary["requeue"] == "done"


def test_sigterm_of_a_preemption_saves_first(edge: EdgeRuns) -> None:
    slurm = FakeSlurm(edge.folder, end_s=60, preempt_s=1)
    run = start(edge, "--asked", "save", env=slurm.env, config=f"{RESUME}[preemption]\nrequeue = 'never'\n")
    run.send(signal.SIGTERM)
    incident = check_saved(finish(run, 30), 143)
    assert incident["evidence"]["scheduler"] == "preempted"
    assert not slurm.requeued.exists()


@pytest.mark.parametrize("state", ["RUNNING", "CANCELLED"], ids=["of the step", "of the job"])
def test_scancel_saves_nothing(edge: EdgeRuns, state: str) -> None:
    slurm = FakeSlurm(edge.folder, state=state)
    run = start(edge, env=slurm.env)
    run.send(signal.SIGTERM)
    finished = finish(run, 30)
    assert (finished.returncode, finished.incidents) == (143, [])
    assert finished.summary is not None and finished.summary["outcome"] == "interrupted"
    assert not slurm.requeued.exists()


def test_a_signal_that_meets_every_process_of_the_job(edge: EdgeRuns) -> None:
    """As Slurm sends it where it follows processes without control groups."""
    slurm = FakeSlurm(edge.folder)
    run = start(edge, "--asked", "save", env=slurm.env, config=f"{RESUME}[preemption]\nrequeue = 'never'\n")
    for process in run.alive():
        with suppress(ProcessLookupError):  # one that looks at the node for a moment
            os.kill(process.pid, signal.SIGUSR1)
    check_saved(finish(run, 30), 138)


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "the supervisor dies meanwhile"])
def test_scancel_that_meets_every_process_before_slurm_says_why(edge: EdgeRuns, is_killed: bool) -> None:
    """A controller with much to do: the ranks are gone, and nothing has been said of a person or a preemption."""
    slurm = FakeSlurm(edge.folder, state="CANCELLED")
    run = start(edge, env=slurm.env, config=f"{RESUME}[preemption]\nterm_grace_s = 120\n")
    slurm.busy.touch()
    asked = slurm.calls.read_text().count("show")
    for process in run.alive():
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    wait_until(lambda: '"attempt_stopped"' in journal_of(run), 20, "the attempt's end")
    if is_killed:
        [supervisor] = run.supervisors()
        os.kill(supervisor.pid, signal.SIGKILL)
        asked = slurm.calls.read_text().count("show")
    wait_until(lambda: slurm.calls.read_text().count("show") >= asked + 2, 20, "Slurm to be asked again")
    slurm.busy.unlink()
    finished = finish(run, 30)
    assert (finished.returncode, finished.incidents) == (143, [])
    assert finished.summary is not None and finished.summary["outcome"] == "interrupted"
    assert "Root Cause" not in finished.stderr, "no rank has failed"
    assert not slurm.requeued.exists()


# Several nodes -----------------------------------------------------------------------------------------


def test_the_ranks_of_all_nodes_save_at_one_and_the_same_step(edge: EdgeRuns) -> None:
    """The signal reaches the guardrun of the second node alone."""
    [port] = free_ports(1)

    def node(number: int) -> GuardrunRun:
        place = ("--nnodes=2", f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}")
        env: dict[str, str | None] = {"SLURMD_NODENAME": f"node-{number}"}
        script = (*LONG, "--asked", "save")
        return edge.start("plain.py", *script, flags=(*NAMED, *place), env=env, ranks=1)

    head, other = node(0), node(1)
    head.wait_for_output("rank 0: starts at step")
    other.wait_for_output("rank 1: starts at step")
    other.send(signal.SIGUSR1)
    finished, beside = finish(head, 40), other.wait(40)
    check_saved(finished, 138)
    assert (beside.returncode, other.alive()) == (138, [])
    steps = saved_steps(finished)["0"] + saved_steps(beside)["1"]
    assert len(steps) == 2 and steps[0] == steps[1]


# save_with() --------------------------------------------------------------------------------------------------------


def start_in_time(edge: EdgeRuns, *arguments: str, jit_s: int = 30, grace_s: int = 60) -> GuardrunRun:
    """A script that never asks should_checkpoint(), and has given save_with() a function."""
    config = f"{RESUME}jit_s = {jit_s}\n[preemption]\ngrace_s = {grace_s}\n"
    run = edge.start("in_time.py", "--steps=100000", *arguments, flags=NAMED, config=config)
    losses = [edge.folder / f"losses-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(path.exists() and path.read_text().count("\n") > 3 for path in losses), 60, "steps")
    return run


def test_a_script_that_does_not_ask_has_its_one_line_called_while_it_trains(edge: EdgeRuns) -> None:
    """And goes on from there: what was trained after it is trained again, to the same losses."""
    run = start_in_time(edge)
    run.send(signal.SIGUSR1)
    finished = finish(run, 60)
    assert finished.returncode == 138, finished
    assert finished.summary is not None and finished.summary["outcome"] == "preempted"
    incident = only(finished)
    assert (incident["kind"], incident["cause"]) == ("preemption", "signal")
    saved, jit = incident["evidence"]["checkpoint"], incident["evidence"]["jit"]
    assert incident["evidence"]["in_time"] and "asked" not in incident["evidence"]
    assert Path(saved["path"]).name == f"jit_{saved['step']}.pt" and saved == {n: jit[n] for n in ("path", "step")}
    assert [path.name for path in edge.folder.glob("asked-*")] == ["asked-0-0"], "one, once"
    assert re.search(
        rf"rank 0 saved step {saved['step']} in [\d.]+ s before the job's end: ", "\n".join(own_lines(finished))
    )
    goes_on(edge, saved["step"])


def goes_on(edge: EdgeRuns, step: int, *arguments: str) -> None:
    """From there: what was trained after it is trained again, to the same losses."""
    until = max(int(line.split()[1]) for line in (edge.folder / "losses-0").read_text().splitlines())
    again = edge.run("in_time.py", f"--steps={until}", "--how=none", *arguments, flags=NAMED, timeout_s=60)
    assert again.returncode == 0, again
    assert f"starts at step {step}\n" in again.stdout + again.stderr
    for rank in (0, 1):
        lines = [line.split() for line in (edge.folder / f"losses-{rank}").read_text().splitlines()]
        first = {step: loss for attempt, step, loss in lines if attempt == "0"}
        second = {step: loss for attempt, step, loss in lines if attempt == "1"}
        assert [int(one) for one in second] == list(range(step + 1, until + 1))
        assert {step: first[step] for step in second if step in first}.items() <= second.items()


def test_of_what_is_sharded_every_rank_saves_its_part_of_the_same_step(edge: EdgeRuns) -> None:
    run = start_in_time(edge, "--shards=2")
    run.send(signal.SIGUSR1)
    finished = finish(run, 60)
    assert finished.returncode == 138, finished
    evidence = only(finished)["evidence"]
    saved, jit = evidence["checkpoint"], evidence["jit"]
    assert evidence["in_time"] and jit["ranks"] == [0, 1], finished
    names = {f"jit_{saved['step']}_shard{part}_of_2.pt" for part in (0, 1)}
    assert {path.name for path in (edge.folder / "out").iterdir()} == names
    assert sorted(path.name for path in edge.folder.glob("asked-*")) == ["asked-0-0", "asked-0-1"]
    goes_on(edge, saved["step"], "--shards=2")


@pytest.mark.parametrize("how", ["part", "well"], ids=["a part fails", "it is done before"])
def test_sharded_training_goes_on_where_nothing_comes_of_it(how: str, edge: EdgeRuns) -> None:
    """And waits for nothing: an end would otherwise be waited for until jit_s."""
    run = start_in_time(edge, "--shards=2", f"--how={how}", "--enough=enough", jit_s=300, grace_s=400)
    run.send(signal.SIGUSR1)
    if how == "part":
        run.wait_for_output("no just-in-time checkpoint: rank 1: OSError: no space left for this")
    else:
        wait_until(lambda: "save_in_time" in log_of(run), 60, "ranks to be asked")
    (edge.folder / "enough").touch()
    finished = finish(run, 60)
    assert finished.returncode == 0, finished
    assert any("no just-in-time checkpoint: rank " in line for line in own_lines(finished)), finished
    losses = [(edge.folder / f"losses-{rank}").read_text().splitlines() for rank in (0, 1)]
    taken = [[int(line.split()[1]) for line in lines] for lines in losses]
    assert taken[0] == taken[1] == [*range(1, len(taken[0]) + 1)]


def test_one_that_fails_leaves_the_rest_of_the_time_to_the_script(edge: EdgeRuns) -> None:
    """What it wrote is whole, and says a step that is not done: the run does not end with it, nor the next begin."""
    run = start_in_time(edge, "--how=ahead", "--first-save=2", grace_s=20)
    run.send(signal.SIGUSR1)
    run.wait_for_output("no just-in-time checkpoint: rank 0 saved ")
    finished = finish(run, 60)
    assert finished.returncode == 138, finished
    incident = only(finished)
    assert "says step" in incident["evidence"]["jit"]["why"] and incident["evidence"]["in_time"] is False
    told = r"no whole checkpoint within \d+ s: the ranks are stopped all the same"
    assert any(re.fullmatch(told, line) for line in own_lines(finished)), finished
    assert list((edge.folder / "out").glob("jit_*.pt"))
    again = edge.run("in_time.py", "--steps=3", "--how=none", flags=NAMED, timeout_s=60)
    assert again.returncode == 0, again
    assert "starts at step 2\n" in again.stdout + again.stderr
