"""guardrun, supervisor and all, where whoever starts it makes things hard. Ranks that do not import torch."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.launcher.base.resilient_loop import FAILURES, keep_turning
from guardrun.launcher.base.socket_folder import ensure_socket_folder
from guardrun.launcher.base.terminal_lines import Log
from guardrun.supervisor.base.printable import encode_json, encode_msgpack
from guardrun.supervisor.rundir.run_directory import read_run_file
from guardrun.supervisor.wire.control_messages import Started
from tests.support.guardrun_run import GuardrunStarter
from tests.support.waiting import wait_until

GUARDRUN = str(Path(sys.executable).with_name("guardrun"))
FLAGS = ["--nproc_per_node=2", "--max-restarts=0"]

NOTE = """
import os, pathlib, sys
rank = os.environ["RANK"]
pathlib.Path(f"rank-{rank}").write_bytes(repr((sys.stdin, sys.stdout, sys.stderr, os.fsencode(sys.argv[-1]))).encode())
"""
OTHER_IS_NOTED = """
import time
while not os.path.exists("rank-0") or not os.path.getsize("rank-0"): time.sleep(0.01)
"""


@pytest.fixture
def shell_starter(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GuardrunStarter]:
    """Runs of guardrun that a shell starts with these redirections."""
    starter = GuardrunStarter(tmp_path, ["bash", "-c", f'exec "$@" {request.param}', "bash", GUARDRUN])
    try:
        yield starter
    finally:
        starter.close()


@pytest.mark.parametrize(
    ("shell_starter", "streams"),
    [("<&- >&- 2>&-", ["None"] * 3)],
    indirect=["shell_starter"],
    ids=["all"],
)
def test_closed_standard_streams_stay_closed_and_harm_nobody(
    shell_starter: GuardrunStarter, streams: list[str], tmp_path: Path
) -> None:
    done = shell_starter.run(FLAGS, script=NOTE, script_args=["x"])
    assert done.returncode == 0, done
    seen = [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)]
    assert seen == [f"({', '.join(streams)}, b'x')"] * 2
    assert done.run_dir is not None and done.summary is not None and done.summary["outcome"] == "finished"
    # What is said to nobody must not land in a file that got stderr's number.
    for line in (done.run_dir / "guardrun.log").read_text().splitlines():
        assert line.startswith("{"), line


def test_arguments_and_folders_that_are_no_utf8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    starter = GuardrunStarter(folder, [GUARDRUN])
    try:
        script = NOTE + OTHER_IS_NOTED + "if rank == '1': raise ValueError(chr(0xdcff))\n"
        done = starter.run([*FLAGS, "--log-dir=logs", "--redirects=3"], script=script, script_args=["a\udcffb"])
    finally:
        starter.close()
    assert done.returncode == 1, done
    assert (folder / "rank-0").read_text().endswith("b'a\\xffb')")
    assert [incident["cause"] for incident in done.incidents] == ["exception"]


SLOW = """
import os, pathlib, time
pathlib.Path(f"pid-{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").write_text(str(os.getpid()))
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def test_a_socket_folder_that_was_cleaned_away_is_made_anew(tmp_path: Path) -> None:
    """Sockets, boards and all: for the next supervisor, and for the next attempt."""
    starter = GuardrunStarter(tmp_path, [GUARDRUN])
    try:
        run = starter.start(["--nproc_per_node=1", "--max-restarts=1"], script=SLOW)
        pid = wait_until(lambda: (tmp_path / "pid-0-0").exists() and (tmp_path / "pid-0-0").read_text(), 30, "a rank")
        assert run.run_dir is not None
        folder = Path(read_run_file(run.run_dir).socket_dir)
        [supervisor] = run.supervisors()
        shutil.rmtree(folder)
        os.kill(supervisor.pid, signal.SIGKILL)
        wait_until((folder / "control").exists, 30, "the next supervisor")
        assert folder.stat().st_mode & 0o777 == 0o700
        os.kill(int(pid), signal.SIGKILL)
        wait_until((tmp_path / "pid-0-1").exists, 30, "the next attempt")
        (tmp_path / "go").touch()
        done = run.wait(60)
    finally:
        starter.close()
    assert done.returncode == 0, done
    assert [incident["cause"] for incident in done.incidents] == ["killed"]
    assert not folder.exists()


def test_a_socket_folder_that_somebody_else_made_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "guardrun-x").symlink_to("elsewhere")
    with pytest.raises(PermissionError):
        ensure_socket_folder(tmp_path / "guardrun-x")


def test_what_is_no_unicode_is_escaped_and_the_rest_left_alone() -> None:
    message = Started(seq=1, attempt=0, ranks=[], error_files={0: "/tmp/\udcff"})
    assert b"/tmp/\\udcff" in encode_msgpack(message) and b'"/tmp/\\\\udcff"' in encode_json(message)
    assert encode_json({"a": ["é", 1]}) == '{"a":["é",1]}'.encode()


def test_a_turn_that_raises_ends_nothing_while_ranks_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns: list[int] = []

    def turn() -> int | None:
        turns.append(1)
        if len(turns) < 3 * FAILURES:
            raise OSError(24, "Too many open files")
        return 7 if len(turns) > 3 * FAILURES else None

    log = Log(tmp_path)
    assert keep_turning(turn, log, lambda: True, pause_s=0) == 7
    assert log.close()
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "guardrun.log").read_text().count("turn_failed") == 1


def test_a_turn_that_goes_on_raising_is_the_end_once_the_ranks_are_dead(tmp_path: Path) -> None:
    def turn() -> int | None:
        raise ValueError("a bug")

    log = Log(tmp_path)
    with pytest.raises(ValueError, match="a bug"):
        keep_turning(turn, log, lambda: False, pause_s=0)
    assert log.close()
