"""The word that a node leaves which does not take part: who may read it, whom it is for, how long it holds."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.fleet.rendezvous.join_file import (
    EVERY,
    NotThere,
    find_join_file,
    join_file_path,
    on_host,
)
from guardrun.supervisor.fleet.rendezvous.start_failure_files import (
    RESTART_S,
    STALE_S,
    Began,
    JoinRejection,
    absence_path,
    heed_absences,
    leave_absence,
    take_back_absence,
)

BEGAN_S = 1000.0
HEAD = Began(BEGAN_S, BEGAN_S + 4.0)
NOW_S = BEGAN_S + 10.0
SAID = JoinRejection(
    key="12.0", node="n2", slot=1, text="n2 is quarantined", exit_code=69, is_final=True, said_wall_s=BEGAN_S + 3.0
)


@pytest.fixture
def join(tmp_path: Path) -> Path:
    return join_file_path(tmp_path / "runs", "12.0")


def heed(join: Path, *names: str, now_s: float = NOW_S, key: str = "12.0") -> list[JoinRejection]:
    return heed_absences(join, key, names, HEAD, now_s)


def test_it_is_heeded_once_and_is_the_users_alone(join: Path) -> None:
    previous = os.umask(0)
    try:
        leave_absence(join, SAID)
    finally:
        os.umask(previous)
    assert os.listdir(join.parent) == [".join-12.0.absent-n2"]
    assert stat.S_IMODE(absence_path(join, "12.0", "n2").stat().st_mode) == 0o600
    other = msgspec.structs.replace(SAID, node="n3", text="x" * 9999)
    leave_absence(join, other)
    first, second = heed(join)
    assert first == SAID and second.node == "n3" and len(second.text) < 9999
    assert heed(join) == [] and not os.listdir(join.parent)


def test_the_node_itself_takes_it_back(join: Path) -> None:
    take_back_absence(join, "12.0", "n2")
    leave_absence(join, SAID)
    take_back_absence(join, "12.0", "n3")
    assert os.listdir(join.parent)
    take_back_absence(join, "12.0", "n2")
    assert not os.listdir(join.parent)


def test_where_each_host_may_have_a_head_it_is_for_one(join: Path) -> None:
    """The node knows a pattern of places, the head its own: both find the same file."""
    leave_absence(on_host(join, EVERY), msgspec.structs.replace(SAID, names=["node-a", "10.0.0.1"]))
    with pytest.raises(NotThere):
        find_join_file(on_host(join, EVERY), ["node-a"])
    assert heed(on_host(join, "node-b"), "node-b") == []
    assert [one.node for one in heed(on_host(join, "node-a"), "node-a.cluster", "10.0.0.1")] == ["n2"]


def test_another_jobs_is_left_alone(join: Path) -> None:
    """Though its key begins alike."""
    leave_absence(join, SAID)
    assert heed(join, key="12") == [] and heed(join, key="13.0") == []
    assert len(heed(join)) == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema":9}', b"\xff"])
def test_what_is_no_word_is_none(join: Path, data: bytes) -> None:
    leave_absence(join, SAID)
    absence_path(join, "12.0", "n2").write_bytes(data)
    assert heed(join) == []


def test_what_others_may_have_written_is_none(join: Path) -> None:
    leave_absence(join, SAID)
    absence_path(join, "12.0", "n2").chmod(0o620)
    assert heed(join) == []


@pytest.mark.parametrize(
    ("said_s", "now_s", "does", "stays"),
    [
        (BEGAN_S + 3.0, NOW_S, True, False),
        (BEGAN_S - 3.0, NOW_S, False, True),  # of the start before this one, maybe: the node would take it back
        (BEGAN_S - 3.0, BEGAN_S + 4.0 + RESTART_S, True, False),
        (BEGAN_S - STALE_S - 1.0, BEGAN_S + 4.0 + RESTART_S, False, False),
    ],
)
def test_how_long_it_holds(join: Path, said_s: float, now_s: float, does: bool, stays: bool) -> None:
    leave_absence(join, msgspec.structs.replace(SAID, said_wall_s=said_s))
    assert bool(heed(join, now_s=now_s)) is does
    assert bool(os.listdir(join.parent)) is stays
