"""What the recorder counts, without a word of the device: who gets on, who stands still, and what is neither."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.observation.device_counts import Counts, gets_on, is_still

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
