"""The word that a head leaves which did not start: who may read it, whom it is for, and how long it holds."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from guardrun.launcher.base.processes import read_stat
from guardrun.supervisor.fleet.rendezvous.join_file import (
    EVERY,
    JoinError,
    NotThere,
    find_join_file,
    join_file_path,
    on_host,
    write_join_file,
)
from guardrun.supervisor.fleet.rendezvous.start_failure_files import (
    RESTART_S,
    STALE_S,
    Began,
    Refused,
    began,
    find_refused,
    holds,
    leave_word,
    now_refused,
    refused_path,
    take_back,
)
from tests.fleet.joins import made

WORDS = now_refused("12.0", "node-a", ["node-a", "10.0.0.1"], "port 29500 is taken", 71)


@pytest.fixture
def join(tmp_path: Path) -> Path:
    return join_file_path(tmp_path / "runs", "12.0")


def test_it_is_read_as_it_was_written_by_the_user_alone_and_taken_back(join: Path) -> None:
    previous = os.umask(0)
    try:
        leave_word(join, WORDS)
    finally:
        os.umask(previous)
    assert find_refused(join, [], "12.0") == WORDS
    assert stat.S_IMODE(refused_path(join).stat().st_mode) == 0o600
    assert os.listdir(join.parent) == [".join-12.0.refused"]
    again = msgspec.structs.replace(WORDS, text="something else", exit_code=2)
    leave_word(join, again)
    assert find_refused(join, [], "12.0") == again
    take_back(join)
    take_back(join)
    assert not os.listdir(join.parent) and find_refused(join, [], "12.0") is None


def test_it_is_no_join_file_and_disturbs_none(join: Path) -> None:
    """Nor does it where each host has one."""
    leave_word(join, WORDS)
    led = made()
    write_join_file(join, led)
    leave_word(join, WORDS)
    assert find_join_file(join, []) == led
    every = on_host(join, EVERY)
    leave_word(on_host(join, "node-a"), WORDS)
    with pytest.raises(NotThere):
        find_join_file(every, ["node-a"])
    assert find_refused(every, ["10.0.0.1"], "12.0") == WORDS
    assert find_refused(every, ["node-b"], "12.0") is None, "another job's head"


def test_another_jobs_is_not_heeded(join: Path) -> None:
    leave_word(join, WORDS)
    assert find_refused(join, [], "13.0") is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema":9}', b"\xff"])
def test_what_is_no_word_is_none(join: Path, data: bytes) -> None:
    leave_word(join, WORDS)
    refused_path(join).write_bytes(data)
    assert find_refused(join, [], "12.0") is None


def test_what_others_may_have_written_is_none(join: Path, tmp_path: Path) -> None:
    leave_word(join, WORDS)
    refused_path(join).chmod(0o620)
    assert find_refused(join, [], "12.0") is None
    with pytest.raises(JoinError, match="can be read by others"):
        leave_word(join, WORDS)
    own = tmp_path / "own"
    refused_path(join).rename(own)
    own.chmod(0o600)
    refused_path(join).symlink_to(own)
    assert find_refused(join, [], "12.0") is None
    take_back(join)
    assert own.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_another_users_is_none(join: Path) -> None:
    leave_word(join, WORDS)
    os.chown(refused_path(join), 65534, -1)
    assert find_refused(join, [], "12.0") is None
    take_back(join)
    assert refused_path(join).exists()


@pytest.mark.parametrize("exit_code", [0, -1, 256])
def test_a_code_that_no_refusal_has_is_none(join: Path, exit_code: int) -> None:
    """Nobody ends well by it."""
    leave_word(join, msgspec.structs.replace(WORDS, exit_code=exit_code))
    assert find_refused(join, [], "12.0") is None


BEGAN_S = 1000.0


@pytest.mark.parametrize(
    ("said_s", "now_s", "led_s", "does"),
    [
        (BEGAN_S + 5.0, BEGAN_S + 5.0, 0.0, True),
        (BEGAN_S + 5.0, BEGAN_S + 5.0, BEGAN_S - 3600.0, True),  # the join file of a head that was killed
        (BEGAN_S + 5.0, BEGAN_S + 8.0, BEGAN_S + 6.0, False),  # a head leads since
        (BEGAN_S + 1.0, BEGAN_S + 4.0, 0.0, True),  # while torch was imported here
        (BEGAN_S - 3.0, BEGAN_S + 5.0, 0.0, False),  # of the start before this one, maybe
        (BEGAN_S - 3.0, BEGAN_S + RESTART_S, 0.0, False),
        (BEGAN_S - 3.0, BEGAN_S + 4.0 + RESTART_S, 0.0, True),
        (BEGAN_S - STALE_S - 1.0, BEGAN_S + 4.0 + RESTART_S, 0.0, False),
        (BEGAN_S + 2 * STALE_S, BEGAN_S + 1.0, 0.0, False),  # a clock that is far off
    ],
)
def test_how_long_it_holds(said_s: float, now_s: float, led_s: float, does: bool) -> None:
    assert holds(said_s, Began(BEGAN_S, BEGAN_S + 4.0), now_s, led_s) is does


def test_a_node_began_when_its_guardrun_was_started() -> None:
    before_s = time.time()
    with subprocess.Popen(["sleep", "60"]) as process:
        after_s, found = time.time(), read_stat(process.pid)
        process.kill()
    assert found is not None
    node = began(found.start, before_s + 100.0)
    assert before_s - 0.1 <= node.started_s <= after_s + 0.1  # the kernel counts in hundredths
    assert node.ready_s == before_s + 100.0
    assert began(0, 5.0) == Began(5.0, 5.0)


def test_it_is_said_now() -> None:
    assert abs(now_refused("a", "b", [], "c", 2).said_wall_s - time.time()) < 60.0
    assert isinstance(WORDS, Refused)
