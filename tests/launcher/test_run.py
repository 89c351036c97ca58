"""Whole runs of guardrun, with real ranks that do not import torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.conftest import read_facts
from tests.launcher.waiting_rank import WAIT, ready
from tests.support.guardrun_run import GuardrunStarter, clean_environment
from tests.support.waiting import wait_until

# A line is one write: print makes two of it where it is unbuffered, and torch's tee puts a prefix before what it reads.
SHOW = '''
import json, os, sys
names = """RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE
MASTER_ADDR TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE OMP_NUM_THREADS
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCHELASTIC_SIGNALS_TO_HANDLE""".split()
print(json.dumps({name: os.environ.get(name) for name in names}) + chr(10), end="")
print("args " + json.dumps(sys.argv[1:]) + chr(10), end="")
print("err" + chr(10), end="", file=sys.stderr)
'''


def run_torchrun(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "torch.distributed.run"]
    environment = clean_environment("torchrun", {})
    return subprocess.run(
        [*program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def layout(folder: Path) -> set[str]:
    """The files below a log folder; what is random in their names left out."""
    return {"/".join(path.relative_to(folder).parts[1:]) for path in folder.rglob("*") if path.is_file()}


def test_environment_arguments_and_logs_are_torchruns(launcher: GuardrunStarter, tmp_path: Path) -> None:
    script_args = ["--guard-off", "--nproc_per_node", "7", "-h", ""]
    flags = ["--nproc_per_node=2", "--redirect=0:3,1:0", "--tee=1:3", "--log_dir=logs", "--role=trainer"]
    flags += ["--local-ranks-filter=0,1", "--max-restarts=4"]
    ours = launcher.run(["--guard-run-id=first", *flags], script=SHOW, script_args=script_args)
    assert ours.returncode == 0, ours
    (tmp_path / "logs").rename(tmp_path / "our-logs")
    theirs = run_torchrun(tmp_path, [*flags, "train.py", *script_args])
    assert theirs.returncode == 0, theirs
    # Rank 1 is teed, with prefixes; rank 0 only goes to its file.
    assert sorted(ours.stdout.splitlines()) == sorted(theirs.stdout.splitlines())
    assert "[trainer1]:" in ours.stdout and "RANK" in ours.stdout and json.dumps(script_args) in ours.stdout
    assert layout(tmp_path / "our-logs") == layout(tmp_path / "logs")
    [our_log] = (tmp_path / "our-logs").rglob("0/stdout.log")
    [their_log] = (tmp_path / "logs").rglob("0/stdout.log")
    assert our_log.read_text() == their_log.read_text() != ""
    facts = read_facts(ours.run_dir)
    assert [fact["type"] for fact in facts] == ["started", "exited", "exited", "stopped"]
    assert set(facts[0]["error_files"]) == {"0", "1"} == set(facts[0]["stderr_files"])
    assert ours.run_dir is not None and ours.run_dir.name == "first"
    assert (ours.run_dir.stat().st_mode & 0o777) == 0o700
    assert not Path(json.loads((ours.run_dir / "run.json").read_text())["socket_dir"]).exists()
    # A run that ended is not continued: the id is the user's mistake (no supervisor wrote an end here, so write one).
    (ours.run_dir / "summary.json").write_text(json.dumps({"outcome": "finished"}))
    again = launcher.run(["--guard-run-id=first", *flags], script=SHOW)
    assert again.returncode == 2 and "run first has ended (finished)" in again.stderr, again


def test_ranks_restart_with_the_checkpoints_arguments(launcher: GuardrunStarter) -> None:
    """Long on a busy machine: two attempts and more."""
    script = """
import os, signal, sys, subprocess, time
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
names = ("GUARDRUN_RESUME_FROM", "GUARDRUN_RESUME_STEP", "WHERE", "TORCH_FR_DUMP_TEMP_FILE")
os.write(1, f"attempt {attempt} {sys.argv[1:]} {' '.join(str(os.environ.get(n)) for n in names)}\\n".encode())
open(f"said-{attempt}-{rank}", "w").close()
while not os.path.exists(f"said-{attempt}-0"):
    time.sleep(0.02)
if attempt == "0" and rank == "1":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSEGV)
"""
    config = """
[checkpoint]
resume_args = ["--resume", "{path}", "{step}"]
resume_env = { WHERE = "{dir}" }
"""
    style = {"checkpoint": {"path": "/out/ckpt_40.pt", "step": 40}}
    done = launcher.run(
        ["--nproc-per-node", "2"],
        script=script,
        script_args=["--lr", "1"],
        config=config,
        env={"FAKE_SUPERVISOR": json.dumps(style), "GUARDRUN_RESUME_FROM": "/stale"},
    )
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    first = [line for line in lines if line.startswith("attempt 0 ['--lr', '1'] None None None ")]
    second = [
        line
        for line in lines
        if line.startswith("attempt 1 ['--lr', '1', '--resume', '/out/ckpt_40.pt', '40'] /out/ckpt_40.pt 40 /out ")
    ]
    assert (len(first), len(second)) == (2, 2), done
    assert f"{done.run_dir}/nccl/attempt-1-rank-" in second[0]
    stopped = [fact for fact in read_facts(done.run_dir) if fact["type"] == "stopped"]
    assert stopped[0]["exitcodes"]["1"] == -signal.SIGSEGV


def test_nothing_of_an_attempt_outlives_it(launcher: GuardrunStarter, tmp_path: Path) -> None:
    """Ranks that ignore SIGTERM, a stopped one, double-forked children in sessions of their own."""
    before = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    time.sleep(1000)
"""
    run = launcher.start(
        ["--nproc-per-node=3", "--max-restarts=0"],
        script=WAIT.format(before=before),
        env={"FAKE_SUPERVISOR": json.dumps({"grace_s": 0.3})},
    )
    pids = [ready(tmp_path, 0, rank) for rank in range(3)]
    os.kill(pids[1], signal.SIGSTOP)
    os.kill(pids[0], signal.SIGKILL)
    done = run.wait(30)
    assert done.returncode == 128 + signal.SIGKILL
    assert run.alive() == []
    [stopped] = [fact for fact in read_facts(done.run_dir) if fact["type"] == "stopped"]
    assert stopped["stopped_by_us"] == [1, 2] and "survivors" not in stopped
    assert stopped["exitcodes"] == {"0": -9, "1": -9, "2": -9}


def test_where_there_is_no_grace_no_handler_gets_to_do_anything(launcher: GuardrunStarter, tmp_path: Path) -> None:
    """What it would save may be worse than what is there."""
    before = "signal.signal(signal.SIGTERM, lambda *_: open('handled', 'w').close())"
    run = launcher.start(
        ["--nproc-per-node=2", "--max-restarts=0"],
        script=WAIT.format(before=before),
        env={"FAKE_SUPERVISOR": json.dumps({"grace_s": 0.0})},
    )
    pids = [ready(tmp_path, 0, rank) for rank in range(2)]
    os.kill(pids[0], signal.SIGKILL)
    done = run.wait(30)
    [stopped] = [fact for fact in read_facts(done.run_dir) if fact["type"] == "stopped"]
    assert stopped["exitcodes"] == {"0": -9, "1": -9} and stopped["stopped_by_us"] == [1]
    assert not list(tmp_path.rglob("handled"))


UPLOAD = """
import os, pathlib, subprocess, sys
code = "import os, pathlib, time\\npathlib.Path('began').touch()\\n"
code += "while not os.path.exists('go'): time.sleep(0.05)\\npathlib.Path('uploaded').touch()"
if os.environ["RANK"] == "0":
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, **quiet)
"""


def test_what_training_left_running_is_given_time_to_end(launcher: GuardrunStarter, tmp_path: Path) -> None:
    run = launcher.start(["--nproc-per-node=2"], script=UPLOAD)
    run.wait_for_output("training has ended; waiting up to 60 s for what it left: ")
    (tmp_path / "go").touch()
    done = run.wait(30)
    assert (done.returncode, (tmp_path / "uploaded").exists()) == (0, True)
    assert "python" in done.stderr and "ending what" not in done.stderr


@pytest.mark.parametrize("flag", ["--guard-launcher-linger-s=0", "--guard-launcher-linger-s=10"])
def test_what_does_not_end_in_that_time_is_named_and_ended(
    launcher: GuardrunStarter, tmp_path: Path, flag: str
) -> None:
    done = launcher.run(["--nproc-per-node=2", flag], script=UPLOAD)
    assert done.returncode == 0
    assert "guardrun: ending what training left running: " in done.stderr
    assert ("waiting up to 10 s" in done.stderr) == flag.endswith("10")
    assert not (tmp_path / "uploaded").exists()


def test_ctrl_c_ends_the_waiting_for_what_is_left(launcher: GuardrunStarter, tmp_path: Path) -> None:
    run = launcher.start(["--nproc-per-node=2"], script=UPLOAD)
    run.wait_for_output("training has ended; waiting up to 60 s")
    began_s = time.monotonic()
    run.send(signal.SIGINT)
    done = run.wait(30)
    assert (done.returncode, "ending what training left running" in done.stderr) == (0, True), "training had ended well"
    assert time.monotonic() - began_s < 45
    assert not (tmp_path / "uploaded").exists()


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=lambda x: str(int(x))
)
def test_signals_reach_the_ranks_and_leave_nothing(
    launcher: GuardrunStarter, tmp_path: Path, signum: signal.Signals, status: int
) -> None:
    before = f"""
def note(signum, frame):
    pathlib.Path(f"got-{{os.environ['RANK']}}").write_text(str(signum))
    sys.exit(0)
signal.signal({int(signum)}, note)
"""
    run = launcher.start(
        ["--nproc-per-node=2"], script=WAIT.format(before=before.replace("{{", "{").replace("}}", "}"))
    )
    for rank in range(2):
        ready(tmp_path, 0, rank)
    run.send(signum)
    done = run.wait(30)
    assert done.returncode == status, done
    assert [(tmp_path / f"got-{rank}").read_text() for rank in range(2)] == [str(int(signum))] * 2
    assert run.alive() == []
    types = [fact["type"] for fact in read_facts(done.run_dir)]
    assert types[:2] == ["started", "signalled"] and types[-1] == "stopped"


def test_second_ctrl_c_does_not_wait(launcher: GuardrunStarter, tmp_path: Path) -> None:
    run = launcher.start(
        ["--nproc-per-node=2"], script=WAIT.format(before="signal.signal(signal.SIGINT, signal.SIG_IGN)")
    )
    for rank in range(2):
        ready(tmp_path, 0, rank)
    run.send(signal.SIGINT)
    wait_until(lambda: "signalled" in json.dumps(read_facts(run.run_dir)), 10, "the supervisor to be told")
    assert len(run.find("train.py")) >= 2
    run.send(signal.SIGINT)
    done = run.wait(10)
    assert done.returncode == 130 and run.alive() == [], done


def test_supervisor_killed_and_stopped_is_back_and_training_goes_on(launcher: GuardrunStarter, tmp_path: Path) -> None:
    run = launcher.start(["--nproc-per-node=2"], script=WAIT.format(before=""))
    ranks = [ready(tmp_path, 0, rank) for rank in range(2)]
    run_dir = run.run_dir
    assert run_dir is not None

    def supervisors() -> list[int]:
        path = run_dir / "supervisors"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    first = wait_until(supervisors, 10, "the first supervisor")[0]
    wait_until((run_dir / "facts.jsonl").exists, 10, "its greeting")
    os.kill(first, signal.SIGKILL)
    second = wait_until(lambda: supervisors()[1:], 10, "the second supervisor")[0]
    wait_until(lambda: (run_dir / "facts.jsonl").read_text().count("launcher_hello") >= 2, 10, "the second's greeting")
    os.kill(second, signal.SIGSTOP)
    wait_until(lambda: supervisors()[2:], 15, "the third supervisor")
    assert [process.pid for process in run.find("train.py") if process.pid in ranks] == ranks
    # It is heard and obeyed as the first was: a fallen rank leads to a restart.
    os.kill(ranks[0], signal.SIGKILL)
    for rank in range(2):
        ready(tmp_path, 1, rank)
    run.send(signal.SIGTERM)
    done = run.wait(30)
    assert done.returncode == 143 and run.alive() == [], done
    assert done.stderr.count("starting it again") == 2


def test_a_supervisor_that_keeps_dying_leaves_torchrun(launcher: GuardrunStarter) -> None:
    script = """
import os, sys, time
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
os.write(1, f"attempt {attempt}\\n".encode())
open(f"ready-{attempt}-{rank}", "w").close()
while not os.path.exists("go") or not os.path.exists(f"ready-{attempt}-0"):
    time.sleep(0.05)
sys.exit(7 if rank == "1" else 0)
"""
    run = launcher.start(
        ["--nproc-per-node=2", "--max-restarts=1"], script=script, env={"FAKE_SUPERVISOR": '{"dies": true}'}
    )
    run.wait_for_output("going on without it", 60)
    (run.folder / "go").touch()
    done = run.wait(30)
    assert done.returncode == 7, done
    assert sorted(done.stdout.splitlines()) == ["attempt 0"] * 2 + ["attempt 1"] * 2
    assert "Root Cause (first observed failure)" in done.stderr and "exitcode  : 7" in done.stderr
    assert run.alive() == []


def test_unfinished_run_is_continued_and_a_living_one_is_not(launcher: GuardrunStarter, tmp_path: Path) -> None:
    wait = WAIT.format(before="print('started', os.environ.get('GUARDRUN_RESUME_STEP'), flush=True)")
    run = launcher.start(["--guard-run-id=job"], script=wait)
    pid = ready(tmp_path, 0, 0)
    refused = launcher.run(["--guard-run-id=job"], script=wait)
    assert refused.returncode == 2 and f"is running, by process {run.pid}" in refused.stderr, refused
    run.send(signal.SIGKILL)
    run.process.wait(60)
    os.kill(pid, signal.SIGKILL)  # here no hooks and no real supervisor end it
    assert run.run_dir is not None
    first = json.loads((run.run_dir / "run.json").read_text())
    (run.run_dir / "events.jsonl").write_text('{"t": 41.5, "event": {}}\n{"t": 42.5, "ev')
    style = {"first_checkpoint": {"path": "/ckpt", "step": 3}}
    again = launcher.start(["--guard-run-id=job"], script=wait, env={"FAKE_SUPERVISOR": json.dumps(style)})
    again.wait_for_output("started 3", 30)
    ready(tmp_path, 1, 0)
    file: dict[str, Any] = json.loads((run.run_dir / "run.json").read_text())
    assert (file["session"], file["clock_base_s"]) == (1, 41.5)
    again.send(signal.SIGINT)
    assert again.wait(60).returncode == 130
    assert not Path(first["socket_dir"]).exists()  # which the guardrun that was killed left
    seqs = [fact["seq"] for fact in read_facts(run.run_dir)]
    assert seqs == sorted(set(seqs)) and seqs[-1] > 1_000_000


def test_unwritable_run_directory_does_not_stop_training(launcher: GuardrunStarter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "t").mkdir()
    done = launcher.run(
        ["--guard-dir=file/runs"],
        script="print('trained')",
        env={"TMPDIR": str(tmp_path / "t"), "XDG_RUNTIME_DIR": None},
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    assert done.stderr.count("cannot write in") == 1
    [kept] = (tmp_path / "t" / f"guardrun-runs-{os.getuid()}").glob("*/latest")
    assert read_facts(kept)[-1]["type"] == "stopped"
