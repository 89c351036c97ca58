"""Socket folders that a killed guardrun left: the next one sweeps them, never one that lives, or that nobody knows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from guardrun.launcher.base.socket_folder import MARK, Occupied, make_socket_folder, sweep_left_behind
from guardrun.supervisor.rundir.run_directory import read_run_file
from tests.support.guardrun_run import GuardrunRun, GuardrunStarter
from tests.support.waiting import wait_until

OWNER = """
import sys
from pathlib import Path
from guardrun.launcher.base.socket_folder import Occupied
from guardrun.launcher.base.socket_folder import make_socket_folder
folder = Path(sys.argv[1] or make_socket_folder({"TMPDIR": sys.argv[2]}))
share = Occupied.join(folder) if sys.argv[1] else Occupied.claim(folder)
print(folder, flush=True)
sys.stdin.read()
"""

TRAIN = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
(folder / "pid").write_text(str(os.getpid()))
while not (folder / "go").exists():
    time.sleep(0.05)
"""

Start = Callable[[Path | None], tuple[subprocess.Popen[str], Path]]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Start]:
    """Processes that live in a folder: one of their own, or the one named."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path | None = None) -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder or ""), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(60)


def sweep(parent: Path) -> list[Path]:
    """In this folder alone, of those where socket folders are made."""
    return [folder for folder in sweep_left_behind({"TMPDIR": str(parent)}) if folder.parent == parent]


def test_a_folder_is_swept_once_nobody_lives_in_it(owner: Start, tmp_path: Path) -> None:
    process, folder = owner(None)
    (folder / "board-0").touch()
    assert sweep(tmp_path) == [] and folder.is_dir()
    supervisor, joined = owner(folder)
    assert joined == folder
    kill(process)
    assert sweep(tmp_path) == [] and folder.is_dir(), "a supervisor outlives its guardrun for a moment"
    kill(supervisor)
    assert sweep(tmp_path) == [folder] and not folder.exists()
    assert sweep(tmp_path) == []


def test_a_folder_of_a_rank_that_lives_is_not_swept(owner: Start, tmp_path: Path) -> None:
    process, folder = owner(None)
    kill(process)
    environment = {**os.environ, "GUARDRUN_HOOKS": json.dumps({"board": f"/é/{folder.name}/board-0"})}
    with subprocess.Popen(["sleep", "1000"], env=environment) as rank:
        try:
            environ = Path(f"/proc/{rank.pid}/environ")
            wait_until(lambda: folder.name.encode() in environ.read_bytes(), 10, "the rank's environment")
            assert sweep(tmp_path) == [] and folder.is_dir()
        finally:
            rank.kill()
    assert sweep(tmp_path) == [folder]


def test_what_nobody_knows_is_left_alone(owner: Start, tmp_path: Path) -> None:
    unmarked = make_socket_folder({"TMPDIR": str(tmp_path)})
    elsewhere = make_socket_folder({"TMPDIR": str(tmp_path)})
    (elsewhere / MARK).write_text("the boot of another machine")
    for name in ("guardrun-runs-0", "guardrun-ABCDEFGH", "guardrun-abcdefghi"):
        (tmp_path / name).mkdir()
    process, target = owner(None)
    kill(process)
    odd = tmp_path / "guardrun-abcdefgh"
    odd.symlink_to(target)
    pipe = tmp_path / "guardrun-hgfedcba"
    pipe.mkdir()
    os.mkfifo(pipe / MARK)  # is not waited for
    there = set(tmp_path.iterdir())
    assert sweep(tmp_path) == [target]
    assert set(tmp_path.iterdir()) == there - {target}
    assert unmarked in there and elsewhere in there and pipe in there


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_left_alone(owner: Start, tmp_path: Path) -> None:
    process, folder = owner(None)
    kill(process)
    os.chown(folder, 65534, 65534)
    assert sweep(tmp_path) == [] and folder.is_dir()


def test_a_share_that_cannot_be_had_is_none(tmp_path: Path) -> None:
    for share in (Occupied.claim(tmp_path / "nowhere"), Occupied.join(tmp_path)):
        share.release()
    folder = make_socket_folder({"TMPDIR": str(tmp_path)})
    share = Occupied.claim(folder)
    share.release()
    share.release()
    assert [path.name for path in folder.iterdir()] == [MARK]


def test_what_a_killed_run_leaves_is_gone_with_the_next_and_a_living_one_goes_on(tmp_path: Path) -> None:
    parent = tmp_path / "t"
    parent.mkdir()
    starter = GuardrunStarter(tmp_path)
    env: dict[str, str | None] = {"TMPDIR": str(parent), "XDG_RUNTIME_DIR": None}

    def start(name: str) -> tuple[GuardrunRun, Path]:
        run = starter.start([f"--guard-run-id={name}"], script=TRAIN, script_args=[name], env=env)
        wait_until((tmp_path / name / "pid").exists, 60, "the rank")
        return run, Path(read_run_file(tmp_path / "guardrun-runs" / name).socket_dir)

    try:
        dead, left = start("dead")
        alive, used = start("alive")
        for supervisor in dead.find("guardrund"):  # one, and what it is forking just now
            with suppress(ProcessLookupError):
                os.kill(supervisor.pid, signal.SIGSTOP)  # it would clear up
        dead.close()
        assert left.is_dir() and used.is_dir()
        (tmp_path / "third").mkdir()
        (tmp_path / "third" / "go").touch()
        third, _ = start("third")
        assert third.wait().returncode == 0
        assert list(parent.glob("guardrun-*")) == [used]
        log = (tmp_path / "guardrun-runs" / "third" / "guardrun.log").read_text()
        swept = [Path(one["folder"]) for line in log.splitlines() if (one := json.loads(line))["event"] == "swept"]
        assert [folder for folder in swept if folder.parent == parent] == [left], "in /tmp others leave theirs, too"
        (tmp_path / "alive" / "go").touch()
        assert alive.wait().returncode == 0
    finally:
        starter.close()
    assert not list(parent.glob("guardrun-*"))
