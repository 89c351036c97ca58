"""The join file: who may read it, who may write it, and which one holds."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.fleet.rendezvous.join_file import (
    MAX_BYTES,
    AlreadyLed,
    BeingWritten,
    JoinError,
    NotThere,
    OtherRun,
    join_file_path,
    read_join_file,
    remove_join_file,
    write_join_file,
)
from guardrun.supervisor.fleet.transport.curve import is_key, make_key_pair
from tests.fleet.joins import made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return join_file_path(tmp_path, "12.0")


def test_it_is_read_as_it_was_written_by_the_user_alone(path: Path) -> None:
    join = made()
    previous = os.umask(0)
    try:
        write_join_file(path, join)
    finally:
        os.umask(previous)
    assert read_join_file(path, "run") == join
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [".join-12.0"]
    remove_join_file(path, join)
    remove_join_file(path, join)
    assert not path.exists()


def test_secrets_are_not_in_its_text_form() -> None:
    join = made()
    assert join.client is not None
    assert join.client.secret not in f"{join} {join!r} {join.client} {join.client!r}"


@pytest.mark.parametrize("key", ["../../etc/passwd", "a/b", "x" * 1000, "ü ?", ""])
def test_a_key_is_never_a_path(tmp_path: Path, key: str) -> None:
    found = join_file_path(tmp_path, key)
    assert found.parent == tmp_path
    found.write_text("")


def test_not_there(path: Path) -> None:
    with pytest.raises(NotThere):
        read_join_file(path)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o666])
def test_one_that_others_can_read_is_refused_with_what_to_do(path: Path, mode: int) -> None:
    write_join_file(path, made())
    path.chmod(mode)
    with pytest.raises(JoinError, match=rf"mode {mode:04o}.*chmod 600"):
        read_join_file(path)


@pytest.mark.real("root")
def test_somebody_elses_is_refused(path: Path) -> None:
    write_join_file(path, made())
    os.chown(path, 65534, -1)
    with pytest.raises(JoinError, match="belongs to uid 65534"):
        read_join_file(path)
    with pytest.raises(JoinError, match="belongs to uid 65534"):
        write_join_file(path, made(session=1))


def test_a_link_is_not_followed(path: Path) -> None:
    real = path.with_name("real")
    write_join_file(real, made())
    path.symlink_to(real)
    with pytest.raises(JoinError):
        read_join_file(path)


def test_a_folder_or_a_fifo_is_none(path: Path) -> None:
    path.mkdir()
    with pytest.raises(JoinError, match="no file"):
        read_join_file(path)
    path.rmdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(JoinError, match="no file"):
        read_join_file(path)


@pytest.mark.parametrize(
    "change",
    [
        {"port": 0},
        {"addresses": []},
        {"server_key": "short"},
        {"server_key": "x" * 39 + "\n"},
        {"client": {"public": "a", "secret": "b"}},
        {"session": "1"},
        {"schema": 2},
        {"protocol": 99},
    ],
)
def test_what_does_not_hold_together_is_refused(path: Path, change: dict[str, object]) -> None:
    data = msgspec.to_builtins(made()) | change
    path.write_bytes(msgspec.json.encode(data))
    path.chmod(0o600)
    with pytest.raises(JoinError):
        read_join_file(path)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 10_000, b"\xff", b"x" * (MAX_BYTES + 1)])
def test_garbage_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(JoinError, match="no join file"):
        read_join_file(path)


def test_what_says_the_same_needs_no_writing(path: Path) -> None:
    """Not even room for a lock file: a supervisor that is started anew may find the disk full."""
    join = made()
    write_join_file(path, join)
    before = path.stat()
    path.with_name(f"{path.name}.lock").touch()
    write_join_file(path, msgspec.structs.replace(join, created_wall_s=9.0))
    assert path.stat().st_ino == before.st_ino and read_join_file(path).created_wall_s == 1.0
    with pytest.raises(BeingWritten):
        write_join_file(path, msgspec.structs.replace(join, port=4001))


def test_a_supervisor_that_has_lost_its_keys_is_still_its_guardruns(path: Path) -> None:
    write_join_file(path, made(token="mine"))
    write_join_file(path, made(token="mine", port=4002))
    assert read_join_file(path).port == 4002
    with pytest.raises(AlreadyLed):
        write_join_file(path, made(token="another"))


def test_another_run_or_an_earlier_session(path: Path) -> None:
    write_join_file(path, made(session=3))
    with pytest.raises(OtherRun, match="is run run's, not other's"):
        read_join_file(path, "other")
    with pytest.raises(OtherRun, match="session 3, which is over"):
        read_join_file(path, "run", after_session=3)
    assert read_join_file(path, "run", after_session=2).session == 3


def test_a_requeued_head_replaces_its_predecessors(path: Path) -> None:
    write_join_file(path, made(session=0, token="old"))
    write_join_file(path, made(session=1, token="new"))
    write_join_file(path, made(run_id="another", session=0))
    assert read_join_file(path).run_id == "another"


def test_a_second_head_does_not(path: Path) -> None:
    first = made(session=1, token="first")
    write_join_file(path, first)
    write_join_file(path, msgspec.structs.replace(first, port=4001))  # its own, anew
    with pytest.raises(AlreadyLed, match="head leads session 1"):
        write_join_file(path, made(session=1, token="second", head="other"))
    with pytest.raises(AlreadyLed):
        write_join_file(path, made(session=0, token="late"))
    remove_join_file(path, made(session=0, token="late"))
    assert read_join_file(path).port == 4001


def test_of_two_at_once_one_leads(path: Path) -> None:
    results: list[str] = []
    barrier = threading.Barrier(8)

    def lead(number: int) -> None:
        join = made(token=str(number))
        barrier.wait()
        try:
            write_join_file(path, join)
            results.append(join.token)
        except AlreadyLed:
            pass

    threads = [threading.Thread(target=lead, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [read_join_file(path).token]
    assert os.listdir(path.parent) == [path.name]


def test_a_crashed_writers_lock_is_in_nobodys_way(path: Path) -> None:
    lock = path.with_name(f"{path.name}.lock")
    lock.touch()
    with pytest.raises(AlreadyLed, match="just writing"):
        write_join_file(path, made())
    long_ago_s = time.time() - 100
    os.utime(lock, (long_ago_s, long_ago_s))
    write_join_file(path, made())
    assert not lock.exists()


def test_keys_have_their_form() -> None:
    pair = make_key_pair()
    assert is_key(pair.public)
    assert is_key(pair.secret)
    assert not is_key(pair.public[:-1])
    assert not is_key(pair.public[:-1] + "\n")
