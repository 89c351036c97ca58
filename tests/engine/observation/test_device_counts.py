"""What the recorder counts, without a word of the device: who gets on, who stands still, and what is neither."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model.looks import GroupLook, ProcessLook, RankLook
from guardrun.supervisor.engine.observation.device_counts import Counts, gets_on, is_still, reads_all

BEFORE = {"0": [52, -1, 51], "1": [9, -1, 9]}


@pytest.mark.parametrize(
    ("after", "still", "on"),
    [
        (BEFORE, True, False),
        ({"0": [52, -1, 52], "1": [9, -1, 9]}, True, True),  # completed: nothing is pending, and it came further
        ({"0": [54, -1, 53], "1": [9, -1, 9]}, False, True),  # the device works off what its host has launched
        ({"0": [54, -1, 51], "1": [9, -1, 9]}, False, False),  # the host launches on, in front of a device that stands
        ({"0": [52, 52, 51], "1": [9, -1, 9]}, False, True),  # it has begun
        ({"0": [52, -1, 51], "1": [11, -1, 11]}, True, False),  # a thread of the script's checks its peers' health
        ({"0": [52, -1, 51], "1": [10, -1, 9]}, False, False),  # and is just at it
        ({"0": [52, -1, 51], "1": [9, -1, 9], "2": [1, -1, -1]}, False, False),  # a new group's first call
        ({"0": [3, -1, 51]}, False, False),  # sends and receives, after collectives
        ({}, True, False),
    ],
)
def test_what_moved_between_two_looks(after: Counts, still: bool, on: bool) -> None:
    assert (is_still(BEFORE, after), gets_on(BEFORE, after)) == (still, on)


def test_of_what_was_not_known_before_nothing_is_said() -> None:
    assert not is_still({}, BEFORE)
    assert is_still({}, {"1": [9, -1, 9]})
    assert not gets_on({}, BEFORE)


def look(rank: int, **fields: object) -> RankLook:
    group = GroupLook(name="0", backend="nccl", ranks=[0, 1])
    known = {"groups": [group], "device_counts": BEFORE, **fields}
    return RankLook(global_rank=rank, at_s=1.0, process=ProcessLook(pid=1), **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "is_read"),
    [
        ({}, True),
        ({"is_unread": True}, False),
        ({"device_counts": {}}, False),
        ({"groups": [GroupLook(name="1", backend="nccl")]}, False),
    ],
    ids=["all", "entries that nobody may ask for", "no answer", "a group whose members nobody knows"],
)
def test_a_job_is_read_where_every_rank_and_group_is(other: dict[str, object], is_read: bool) -> None:
    assert reads_all([look(0), look(1, **other)]) is is_read


def test_gloo_s_jobs_have_no_devices_to_be_read() -> None:
    assert not reads_all([look(rank, device_counts={}) for rank in range(2)])
    assert not reads_all([])
