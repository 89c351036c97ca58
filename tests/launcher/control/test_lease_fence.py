"""Where no supervisor keeps a node's lease its launcher does: never too soon, and before the next attempt begins."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hypothesis import example, given
from hypothesis import strategies as st

from guardrun.hooks.wire.board import Field
from guardrun.launcher.control.lease_fence import LOOK_S, QUIET_S, UNANSWERED_S, LeaseFence
from guardrun.supervisor.fleet.protocol.lease import STILL_S, ranks_end_s, ranks_gone_s
from guardrun.supervisor.wire.control_messages import Lease

TERM_S = 15.0
KILL_S = 0.5
"""What the launcher takes to end its own ranks."""


def lease(at_s: float, contact_s: float, progress_s: float = -math.inf, attempt: int = 0) -> Lease:
    return Lease(attempt=attempt, at_s=at_s, contact_s=contact_s, progress_s=progress_s, term_s=TERM_S, still_s=STILL_S)


def board(joint: int, heart_s: float) -> tuple[int, list[int]]:
    """Rank 3's; its heart beats by the same clock as the lease here."""
    words = [0] * len(Field)
    words[Field.JOINT_SEQ], words[Field.HEART_NS] = joint, round(heart_s * 1e9)
    return 3, words


def end_s(fence: LeaseFence, since_s: float, until_s: float, advances: Iterable[float] = ()) -> float | None:
    """When the ranks of attempt 0 are ended, of turns four times a second; None: they are not."""
    advances = sorted(advances)
    for turn in range(round((until_s - since_s) / LOOK_S)):
        now_s = since_s + turn * LOOK_S
        beat_s = math.floor(now_s)  # a heart beats once a second
        fence.note([board(sum(at_s <= beat_s for at_s in advances), beat_s)], now_s, round(now_s * 1e9))
        if fence.find_over(0, now_s) is not None:
            return now_s
    return None


def cut_and_silent(contact_s: float = 100.0, progress_s: float = 100.0, last_s: float = 106.0) -> LeaseFence:
    """Of a node that had its last contact at contact_s, and whose supervisor spoke last at last_s."""
    fence = LeaseFence()
    fence.receive(lease(last_s, contact_s, progress_s), last_s)
    return fence


def test_a_node_that_is_cut_off_and_has_no_supervisor_ends_its_ranks() -> None:
    assert end_s(cut_and_silent(), 106.0, 200.0) == 100.0 + TERM_S


def test_ranks_that_advance_with_others_go_on() -> None:
    advances = [100.0 + 4 * number for number in range(200)]
    assert end_s(cut_and_silent(), 106.0, 800.0, advances) is None


def test_ranks_go_on_as_long_as_they_advance_and_are_as_still_as_may_be_after_it() -> None:
    ended_s = end_s(cut_and_silent(), 106.0, 200.0, [110.0, 114.0, 118.0, 122.0])
    assert ended_s == 122.0 + STILL_S


def test_what_the_boards_showed_before_is_no_progress() -> None:
    fence = LeaseFence()
    fence.receive(lease(106.0, 100.0, 90.0), 106.0)
    fence.note([board(500, 106.0)], 106.0, round(106e9))
    fence.note([board(500, 107.0)], 107.0, round(107e9))
    assert fence.cut_off_lease(0) == lease(106.0, 100.0, 90.0)


def test_progress_is_as_old_as_the_beat_that_counted_it() -> None:
    fence = cut_and_silent()
    fence.note([board(1, 106.0)], 106.0, round(106e9))
    fence.note([board(2, 106.9)], 107.5, round(107.5e9))
    left = fence.cut_off_lease(0)
    assert left is not None and left.progress_s == 106.9


# Nobody is ended --------------------------------------------------------------------------------------------------


def test_a_supervisor_that_was_in_contact_as_it_fell_silent_has_taken_the_contact_with_it() -> None:
    """It is given up, or slow to start: the network is well, and training may be, as under torchrun."""
    fence = LeaseFence()
    fence.receive(lease(100.0, 100.0 - UNANSWERED_S), 100.0)
    assert end_s(fence, 100.0, 4000.0) is None
    assert fence.cut_off_lease(0) is None


def test_a_supervisor_that_speaks_keeps_the_lease_itself() -> None:
    """It may know better: it asks a head that does not run whether its ranks are still meant."""
    fence = LeaseFence()
    for at_s in range(100, 160):
        fence.receive(lease(float(at_s), 90.0, 90.0), float(at_s))
        assert end_s(fence, float(at_s), at_s + 1.0) is None


def test_what_it_has_said_once_is_not_its_word_again() -> None:
    fence, said = LeaseFence(), lease(106.0, 100.0)
    for turn in range(40):
        fence.receive(said, 106.0 + turn * LOOK_S)
    assert fence.find_over(0, 116.0) is not None


def test_nobody_is_ended_where_no_lease_was_ever_told() -> None:
    assert end_s(LeaseFence(), 0.0, 100.0) is None


def test_another_attempt_has_a_lease_of_its_own() -> None:
    fence = cut_and_silent()
    assert fence.find_over(1, 150.0) is None and fence.cut_off_lease(1) is None
    fence.note([board(70, 150.0)], 150.0, round(150e9))
    fence.receive(lease(160.0, 150.0, 150.0, attempt=1), 160.0)
    fence.note([board(4, 160.0)], 160.0, round(160e9))
    left = fence.cut_off_lease(1)
    assert left is not None and left.progress_s == 150.0 and fence.cut_off_lease(0) is None


def test_a_node_that_did_not_run_leaves_its_supervisor_the_time_to_say_so() -> None:
    """Frozen as a whole, or suspended, and awake again long after the lease's end."""
    fence = cut_and_silent()
    assert fence.find_over(0, 106.0) is None
    assert fence.find_over(0, 500.0) is None
    fence.receive(lease(501.0, 100.0, 100.0), 501.0)
    assert end_s(fence, 500.25, 502.5) is None
    assert end_s(fence, 502.5, 510.0) == 501.0 + QUIET_S


# Both sides -------------------------------------------------------------------------------------------------------

SECONDS = st.floats(0.0, 60.0)


@given(
    hangs_s=st.floats(UNANSWERED_S + 1.01, 80.0),
    advances=st.lists(SECONDS, max_size=20),
    others_end_s=SECONDS,
    phase_s=st.floats(0.0, 1.0),
)
@example(hangs_s=TERM_S, advances=[], others_end_s=0.0, phase_s=0.999)
def test_ranks_are_gone_before_the_head_goes_on(
    hangs_s: float, advances: list[float], others_end_s: float, phase_s: float
) -> None:
    """A node is cut off at second 0; its supervisor hangs then, or a good while later, for good."""
    joint = sorted(at_s for at_s in advances if at_s <= others_end_s)

    def progress_s(now_s: float) -> float:
        return max((at_s for at_s in joint if at_s <= now_s), default=0.0)

    fence, ended = LeaseFence(), None
    spoken_s = -math.inf
    for turn in range(round(200 / LOOK_S)):
        now_s = turn * LOOK_S
        look_s = math.floor(now_s - phase_s) + phase_s
        if look_s > spoken_s and 0 <= look_s < hangs_s:
            spoken_s = look_s
            if look_s >= ranks_end_s(0.0, progress_s(look_s), term_s=TERM_S, still_s=STILL_S):
                return  # it has ended them itself
            fence.receive(lease(look_s, 0.0, progress_s(look_s)), now_s)
        beat_s = float(math.floor(now_s))
        fence.note([board(sum(at_s <= beat_s for at_s in joint), beat_s)], now_s, round(now_s * 1e9))
        if fence.find_over(0, now_s) is not None:
            ended = now_s
            break
    assert ended is not None, "they train for ever"
    assert ended >= ranks_end_s(0.0, progress_s(math.floor(ended - 1.0)), term_s=TERM_S, still_s=STILL_S)
    assert ended + KILL_S <= ranks_gone_s(0.0, others_end_s, term_s=TERM_S, still_s=STILL_S)
