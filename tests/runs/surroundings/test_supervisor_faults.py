"""Faults of guardrun itself: training does not notice, and what comes afterwards is found all the same."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from guardrun.supervisor.rundir.run_directory import read_run_file
from tests.runs.runs import (
    QUICK,
    RESUME,
    EdgeRuns,
    check_dates,
    check_replay,
    finish,
    log_of,
    only,
    own_lines,
    ranks_of,
)
from tests.support.deadmount import dead_mount
from tests.support.guardrun_run import Finished, GuardrunRun
from tests.support.hostile import hostile_frames, send_frames
from tests.support.journals import set_version
from tests.support.processes import Process
from tests.support.slowmount import slow_mount
from tests.support.waiting import wait_until

STEP_S = 0.02


def steps_of(run: GuardrunRun) -> list[float]:
    """When rank 0 finished each of its steps, in seconds of this host's monotonic clock."""
    path = run.folder / "times"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line.split()[2]) for line in lines if len(line.split()) == 3]


def wait_for_steps(run: GuardrunRun, more: int) -> None:
    """Wait until so many more steps are done."""
    done = len(steps_of(run))
    wait_until(lambda: len(steps_of(run)) >= done + more, 60, f"{more} more steps")


def supervisor_of(run: GuardrunRun) -> Process:
    return wait_until(lambda: run.find("guardrund"), 30, "a supervisor")[0]


def wait_for_another(run: GuardrunRun, old: Process, timeout_s: float) -> float:
    """Wait until guardctl gets an answer from a supervisor that is not `old`; how long that took."""
    began_s = time.monotonic()
    others = lambda: [p for p in run.find("guardrund") if (p.pid, p.start) != (old.pid, old.start)]  # noqa: E731
    wait_until(others, timeout_s, "another supervisor")
    wait_until(lambda: '"state": "training"' in run.guardctl("status", "latest", "--json"), timeout_s, "its answer")
    return time.monotonic() - began_s


@pytest.mark.real("py-spy")
def test_a_supervisor_killed_and_one_stopped_are_not_felt_and_a_hang_afterwards_is_found(edge: EdgeRuns) -> None:
    """Long: a supervisor that is stopped is given up after a while only."""
    arguments = ["--times", "times", "--when", "now:block", "--steps", "4000", "--step-s", str(STEP_S)]
    run = edge.start("train.py", *arguments, "--save-every", "50", config=RESUME + QUICK)
    wait_until(lambda: len(steps_of(run)) >= 100, 60, "a hundred steps")
    usual_s = longest_gap_s(steps_of(run)[20:])

    began = len(steps_of(run))
    killed = supervisor_of(run)
    os.kill(killed.pid, signal.SIGKILL)
    back_s = wait_for_another(run, killed, 20)
    assert back_s < 30, "seconds until a supervisor answered again"

    stopped = supervisor_of(run)
    os.kill(stopped.pid, signal.SIGSTOP)
    back_s = wait_for_another(run, stopped, 30)
    assert back_s < 45
    wait_for_steps(run, 50)
    during = steps_of(run)[began:]
    assert longest_gap_s(during) < max(10 * usual_s, 5.0), "a step took long while there was no supervisor"

    (run.folder / "now").touch()
    wait_until(run.incidents, 60, "the hang to be found")
    wait_until(lambda: "attempt 1 rank 0: starts at step" in run.stdout, 60, "the next attempt")
    hung_at = sum(line.startswith("0 ") for line in (run.folder / "times").read_text().splitlines())
    wait_until(lambda: run.incidents()[0]["recovered"], 60, "the next attempt to get past it")
    run.send(signal.SIGTERM)
    finished = finish(run, 60)
    incident = only(finished)
    assert finished.returncode == 143
    assert (incident["cause"], ranks_of(incident), incident["action"]) == ("rank_blocked", [1], "restart")
    assert incident["resumed_from"]["step"] == 50 * (hung_at // 50)
    assert finished.stderr.count("starting it again (training goes on)") == 2
    assert run.run_dir is not None
    assert '"supervisor_restarted"' in (run.run_dir / "events.jsonl").read_text()


def longest_gap_s(times: list[float]) -> float:
    return max(after - before for before, after in itertools.pairwise(times))


def test_a_supervisor_that_dies_again_and_again_is_given_up_and_crashes_are_still_restarted(edge: EdgeRuns) -> None:
    run = edge.start("plain.py", "--when", "now:kill", "--steps", "100000")
    run.wait_for_output("rank 0: starts at step 0")

    def is_given_up() -> bool:
        for daemon in run.find("guardrund"):
            os.kill(daemon.pid, signal.SIGKILL)
        return "too often now: going on without it, as torchrun would" in run.stderr

    wait_until(is_given_up, 30, "the supervisor to be given up", every_s=0.3)
    newest = max(int(path.stem.split("_")[1]) for path in edge.folder.glob("out/*.safetensors"))
    (run.folder / "now").touch()
    run.wait_for_output("attempt 1 rank 0: starts at step")
    started = re.search(r"attempt 1 rank 0: starts at step (\d+)", run.stdout)
    assert started is not None and int(started[1]) >= newest > 0, "what was saved is not written over"
    run.send(signal.SIGTERM)
    assert finish(run, 60).returncode == 143


def test_a_supervisor_killed_between_two_attempts_goes_on_where_it_was(edge: EdgeRuns) -> None:
    """Killed while it stops an attempt (ranks that ignore SIGTERM make that long): decided once, started once."""
    config = RESUME + "[restart]\nstop_grace_s = 4\n"
    run = edge.start("plain.py", "--plan", "0:kill@15:1", "--ignore-sigterm", config=config)
    wait_until(lambda: "stop_began" in log_of(run), 30, "the stop to begin")
    os.kill(supervisor_of(run).pid, signal.SIGKILL)
    finished = finish(run, 60)
    incident = only(finished)
    assert finished.returncode == 0
    assert (incident["cause"], ranks_of(incident), incident["action"]) == ("killed", [1], "restart")
    assert incident["resumed_from"]["step"] == 10
    assert finished.summary is not None
    assert finished.summary["restarts"] == 1
    assert finished.run_dir is not None
    check_dates(finished.run_dir)


def test_a_supervisor_killed_knows_its_run_s_checkpoints_again(edge: EdgeRuns) -> None:
    run = edge.start("plain.py", "--plan", "0:kill@500:1", "--steps", "520", "--step-s", "0.01", "--save-every", "100")
    wait_until((edge.folder / "out/ckpt_200.safetensors").exists, 60, "a checkpoint")
    os.kill(supervisor_of(run).pid, signal.SIGKILL)
    finished = finish(run, 90)
    assert finished.returncode == 0
    assert only(finished)["resumed_from"]["step"] == 400


@pytest.mark.parametrize("how", ["lost", "another version's"])
def test_a_supervisor_whose_journal_is_lost_takes_over_the_attempt_that_lives(edge: EdgeRuns, how: str) -> None:
    """The second: what the launcher has told before, it tells again. Another version's: guardrun was upgraded."""
    run = edge.start("plain.py", "--plan", "0:kill@15:1", "--when", "now:kill", "--steps", "100000")
    run.wait_for_output("attempt 1 rank 0: starts at step 10")
    wait_until(lambda: any(incident["recovered"] for incident in run.incidents()), 60, "the kill to be mended")
    old = supervisor_of(run)
    os.kill(old.pid, signal.SIGSTOP)
    run_dir = wait_until(lambda: run.run_dir, 5, "the run directory")
    if how == "lost":
        (run_dir / "events.jsonl").unlink()
    else:
        set_version(run_dir / "events.jsonl", 9)
    os.kill(old.pid, signal.SIGKILL)
    wait_for_another(run, old, 30)
    newest = max(int(path.stem.split("_")[1]) for path in edge.folder.glob("out/*.safetensors"))
    rank = next(one for one in run.find("plain.py") if "--nproc-per-node" not in one.command)
    os.kill(rank.pid, signal.SIGKILL)
    run.wait_for_output("attempt 2 rank 0: starts at step")
    started = re.search(r"attempt 2 rank 0: starts at step (\d+)", run.stdout)
    assert started is not None and int(started[1]) >= newest
    run.send(signal.SIGTERM)
    finished = finish(run, 60)
    assert finished.returncode == 143
    said = "the journal has version 9, and this guardrun reads version 2: it is not replayed"
    assert any(line.startswith(said) for line in own_lines(finished)) == (how != "lost")


def test_a_torn_run_json_is_written_anew_for_the_next_supervisor(edge: EdgeRuns) -> None:
    run = edge.start("plain.py", "--when", "now:kill", "--steps", "100000")
    run.wait_for_output("rank 0: starts at step 0")
    old = supervisor_of(run)
    run_dir = wait_until(lambda: run.run_dir, 5, "the run directory")
    before = (run_dir / "run.json").read_bytes()
    os.truncate(run_dir / "run.json", 20)
    os.kill(old.pid, signal.SIGKILL)
    wait_for_another(run, old, 30)
    assert (run_dir / "run.json").read_bytes() == before
    (run.folder / "now").touch()
    wait_until(lambda: any(incident["recovered"] for incident in run.incidents()), 60, "the kill to be mended")
    run.send(signal.SIGTERM)
    assert finish(run, 60).returncode == 143


def test_a_run_stopped_as_a_whole_and_continued_later_is_nobody_s_hang(edge: EdgeRuns) -> None:
    """As `scontrol suspend` or a paused machine does it."""
    run = edge.start("plain.py", "--steps", "300", "--step-s", "0.01", config=RESUME + QUICK)
    run.wait_for_output("rank 0: starts at step 0")
    wait_until((edge.folder / "out/ckpt_50.safetensors").exists, 60, "fifty steps")
    everybody = run.alive()
    for process in everybody:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(8.0)  # longer than any patience of this run
    for process in reversed(everybody):
        os.kill(process.pid, signal.SIGCONT)
    finished = finish(run, 60)
    assert finished.returncode == 0
    assert finished.incidents == []
    assert finished.summary is not None
    assert finished.summary["restarts"] == 0


# The socket that ranks speak on ------------------------------------------------------------------------------------


def newest_step(folder: Path) -> int:
    """How far training is, by its checkpoints."""
    return max(int(path.stem.split("_")[1]) for path in folder.glob("out/*.safetensors"))


def test_ten_thousand_malformed_messages_and_a_huge_one_are_counted_and_dropped(edge: EdgeRuns) -> None:
    run = edge.start("plain.py", "--when", "now:kill", "--steps", "100000")
    run.wait_for_output("rank 0: starts at step 0")
    run_dir = wait_until(lambda: run.run_dir, 10, "the run directory")
    sockets = Path(read_run_file(run_dir).socket_dir)
    daemon = supervisor_of(run)
    wait_until((edge.folder / "out/ckpt_100.safetensors").exists, 60, "a hundred steps")
    frames = hostile_frames()
    before = newest_step(edge.folder)
    flood = threading.Thread(target=send_frames, args=(zmq.PUSH, f"ipc://{sockets}/beats", frames))
    huge = threading.Thread(target=send_frames, args=(zmq.PUSH, f"ipc://{sockets}/beats", [bytes(8 << 20)]))
    asked = threading.Thread(target=send_frames, args=(zmq.DEALER, f"ipc://{sockets}/control", frames[:1000]))

    for thread in (flood, huge, asked):
        thread.start()
    for thread in (flood, huge, asked):
        thread.join()
    time.sleep(2.0)  # while the supervisor is still at it
    assert newest_step(edge.folder) > before, "training goes on meanwhile"

    def dropped() -> dict[str, int]:
        status: dict[str, dict[str, int]] = msgspec.json.decode(run.guardctl("status", "latest", "--json"))
        return status["dropped"]

    wait_until(lambda: dropped()["malformed"] + dropped()["strangers"] >= 10_000, 20, "all to be counted")
    assert dropped()["strangers"] == 1000
    assert supervisor_of(run).pid == daemon.pid
    (run.folder / "now").touch()
    wait_until(lambda: any(incident["recovered"] for incident in run.incidents()), 60, "the kill to be mended")
    run.send(signal.SIGTERM)
    finished = finish(run, 60)
    assert finished.returncode == 143
    assert (only(finished)["cause"], ranks_of(only(finished))) == ("killed", [1])
    assert len(own_lines(finished)) == 4, "what happened, where the report is, what is done, and that it helped"


def test_what_guardctl_sends_wrongly_is_answered_and_harms_nothing(edge: EdgeRuns) -> None:
    run = edge.start("plain.py", "--steps", "100000")
    run.wait_for_output("rank 0: starts at step 0")
    run_dir = wait_until(lambda: run.run_dir, 10, "the run directory")
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.RCVTIMEO, 60_000)
    socket.connect(f"ipc://{read_run_file(run_dir).socket_dir}/control")
    try:
        for asked, said in [
            ({"verb": "explode"}, "no verb"),
            ({"verb": "stacks", "arguments": {"rank": 99}}, "no rank"),
        ]:
            socket.send(msgspec.msgpack.encode({"type": "ask", **asked}))
            answer = msgspec.msgpack.decode(socket.recv())
            assert said in answer["error"]
    finally:
        socket.close(linger=0)
        context.term()
    run.send(signal.SIGTERM)
    assert finish(run).returncode == 143
    check_replay(run_dir)


RECORDED = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    open(f"ready-{os.environ['RANK']}", "w").close()
    while not os.path.exists("go") or os.environ["RANK"] == "0":
        time.sleep(0.02)
    raise ValueError("spoilt")

main()
"""


def test_a_supervisor_that_is_back_knows_where_the_error_files_lie(edge: EdgeRuns) -> None:
    """Without hooks (-E), they are all that tells of an exception."""
    script = edge.folder / "recorded.py"
    script.write_text(RECORDED)
    run = edge.start(sys.executable, "-E", str(script), flags=("--max-restarts=0", "--no-python"))
    wait_until(lambda: all((edge.folder / f"ready-{rank}").exists() for rank in range(2)), 60, "both ranks")
    os.kill(supervisor_of(run).pid, signal.SIGKILL)
    journal = wait_until(lambda: run.run_dir, 5, "the run directory") / "events.jsonl"
    wait_until(lambda: '"supervisor_restarted"' in journal.read_text(), 20, "another supervisor")
    (edge.folder / "go").touch()
    incident = only(finish(run))
    assert (incident["cause"], ranks_of(incident)) == ("exception", [1])
    assert "ValueError: spoilt" in incident["summary"]


BESIDE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from guardrun.supervisor.guardrund import end_beside_the_stuck
pool = ThreadPoolExecutor(1)
pool.submit(os.stat, sys.argv[1])
pool.shutdown(wait=False)
end_beside_the_stuck()
"""


@pytest.mark.real("fuse")
def test_a_dead_folder_of_checkpoints_holds_up_neither_the_run_nor_its_end(
    run_guardrun: Callable[..., Finished], tmp_path: Path
) -> None:
    """The script never touches it: torchrun would not notice."""
    dead = tmp_path / "dead"
    dead.mkdir()
    with dead_mount(dead):
        config = f'[checkpoint]\ndir = "{dead}/out"\n'
        done = run_guardrun(["--nproc-per-node=1"], script="print('trained')", config=config)
        assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", ""), done
        assert done.summary is not None and done.summary["outcome"] == "finished"
        ended = subprocess.run([sys.executable, "-c", BESIDE, str(dead)], timeout=60, check=False)
        assert ended.returncode == 0, "a thread that stands in it is not waited for"


WAITS = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0 if open("told", "x") else 1))
open("started", "x").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print("trained", flush=True)
"""


@pytest.mark.real("sshfs")
@pytest.mark.parametrize("end", ["its own", "SIGTERM"])
def test_a_run_directory_that_answers_no_more_holds_up_nobody(
    start_guardrun: Callable[..., GuardrunRun], tmp_path: Path, end: str
) -> None:
    """Long: what writes there is waited for, some seconds, before its end is said to be missing."""
    behind, seen = tmp_path / "behind", tmp_path / "seen"
    behind.mkdir()
    seen.mkdir()
    with slow_mount(behind, seen, 0.0) as server:
        run = start_guardrun(["--nproc-per-node=1"], script=WAITS, env={"GUARDRUN_DIR": str(seen)})
        wait_until((run.folder / "started").exists, 60, "the script")
        record = lambda: [file for file in behind.glob("*/events.jsonl") if "attempt_started" in file.read_text()]  # noqa: E731
        wait_until(record, 30, "its record")
        server.send_signal(signal.SIGSTOP)
        if end == "SIGTERM":
            run.process.terminate()
            wait_until((run.folder / "told").exists, 30, "the rank to be told")
        else:
            (run.folder / "go").touch()
        run.wait_for_output("summary.json, say) may be missing")
        server.send_signal(signal.SIGCONT)
        done = run.wait()
    assert done.returncode == (0 if end == "its own" else 128 + signal.SIGTERM), done
    assert done.stdout == ("trained\n" if end == "its own" else "")
