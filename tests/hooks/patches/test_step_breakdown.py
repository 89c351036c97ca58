"""What steps are seen to go to, in ranks that really train in step over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.hooks.patches.steps import ODD, PUBLISH_NS, StepBreakdown
from guardrun.hooks.rank.rank import private_words
from guardrun.hooks.wire.board import Milestone
from guardrun.hooks.wire.messages import HookFailed
from guardrun.supervisor.collect.ranks.boards import spent_of
from guardrun.supervisor.engine.model import events as ev
from tests.hooks.bed import Bed, finish
from tests.support.keep_group import KEEP_GROUP
from tests.support.ports import free_ports

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "spent.py")
MS = 1_000_000


def train(*arguments: object) -> list[ev.StepBreakdown]:
    """Run the script's two ranks to their end."""
    [port] = free_ports(1)
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with Bed(world_size=2) as bed:
        ranks = [bed.start([KEEP_GROUP, SCRIPT, *map(str, arguments)], rank=rank, more=more) for rank in range(2)]
        done = [finish(rank) for rank in ranks]
        assert [rank.returncode for rank in done] == [0, 0], done
        assert bed.hear_all(HookFailed) == []
        both = [spent_of(bed.board(rank).read()) for rank in range(2)]
    assert both[0] is not None and both[1] is not None
    return [each for each in both if each is not None]


def own_s(spent: ev.StepBreakdown) -> float:
    """Of a step, what was the rank's own."""
    return (spent.took_s - spent.waited_s) / spent.steps


@pytest.mark.parametrize(("how", "slow"), [("ddp", 1), ("calls", 0), ("accumulate", 1), ("fsdp", 1)])
def test_the_others_are_seen_to_wait_for_a_slow_rank(how: str, slow: int) -> None:
    spent = train(how, 45, slow, 0.1)
    assert all(each.steps >= 8 for each in spent)
    took_s = [each.took_s / each.steps for each in spent]
    assert took_s[0] == pytest.approx(took_s[1], rel=0.5), "they are in step"
    check_lag(spent[slow], spent[1 - slow])


def test_waiting_for_rank_0s_buffers_is_waiting() -> None:
    """Before each forward pass all take the buffers of rank 0: where it is slow, they wait there."""
    spent = train("buffers", 45, 0, 0.1)
    check_lag(spent[0], spent[1])


def check_lag(slow: ev.StepBreakdown, other: ev.StepBreakdown) -> None:
    """Its lag of 0.1 s is the slow rank's own, and not the other's. On a busy machine some of it shows as waiting.

    Waits are those of some steps times all: where these were longer than others, of the 0.02 s of each rank's own some
    is missing.
    """
    assert own_s(slow) >= 0.1 and own_s(other) >= 0.008, (slow, other)
    assert own_s(slow) - own_s(other) >= 0.05, (slow, other)


def test_evaluations_and_saves_are_left_out() -> None:
    spent = train("ddp", 150, -1, 0.0, "odd")
    # Each of the two long pauses of rank 0's would add 0.02 s to a step of its own.
    assert own_s(spent[0]) == pytest.approx(own_s(spent[1]), abs=0.015), spent


class _Timer:
    """A device's, for as long as it is on: steps of 100 ms, of which 40 are waits."""

    def __init__(self) -> None:
        self.steps = 0
        self.is_off = self.has_seen_waits = False

    def on_step(self) -> bool:
        self.steps += not self.is_off
        return not self.is_off

    def pop_sums(self) -> list[int]:
        steps, self.steps = self.steps, 0
        return [steps, 100 * MS * steps, 40 * MS * steps, 2 * MS * steps, MS * steps]


class _Rank:
    """As much of a rank as sums need."""

    def __init__(self) -> None:
        self.words = private_words()
        self.device_timer: _Timer | None = None
        self.marked: list[Milestone] = []

    def mark(self, milestone: Milestone) -> None:
        self.marked.append(milestone)

    def fail(self, hook: str, error: BaseException) -> None:
        raise error


class _Steps:
    """Steps told by the clock."""

    def __init__(self) -> None:
        self.rank = _Rank()
        self.spent = StepBreakdown(self.rank)  # type: ignore[arg-type]  # as much as it needs
        self.now_ns = 10**12

    def take(self, *steps_ns: int) -> None:
        for took_ns in steps_ns:
            self.now_ns += took_ns
            self.spent.on_step(self.now_ns)

    def told(self) -> tuple[int, int]:
        """Steps, and milliseconds."""
        spent = spent_of(self.rank.words.tolist())
        return (0, 0) if spent is None else (spent.steps, round(1000 * spent.took_s))


def test_the_first_step_counts_for_nothing() -> None:
    steps = _Steps()
    steps.take(60_000 * MS, *[100 * MS] * 10)
    assert steps.told() == (10, 1000)


def test_an_odd_step_takes_what_was_not_told_yet_with_it() -> None:
    steps = _Steps()
    steps.take(0, *[100 * MS] * 15, ODD * 100 * MS + 1, *[100 * MS] * 10)
    assert steps.told() == (20, 2000)


class _Replica:
    """A DDP model of which every step is timed: torch writes what one has waited when the next has begun."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.logger = self
        self.ints_map: dict[str, int] = {}
        self._waited_ns = self._steps = 0

    def _get_ddp_logging_data(self) -> _Replica:
        return self

    def _set_ddp_runtime_logging_sample_rate(self, steps: int) -> None:
        pass

    def take(self, waited_ns: int) -> None:
        """A forward and a backward pass; no two steps take quite the same time."""
        self.ints_map = {"backward_comm_time": self._waited_ns}
        self._steps += 1
        self._waited_ns = waited_ns + self._steps


def test_what_an_odd_step_has_waited_is_left_out_though_torch_tells_it_a_step_later() -> None:
    steps, model = _Steps(), _Replica()
    steps.spent.add_replica(model)

    for took_ms, waited_ms in [(100, 10)] * 15 + [(3000, 2900)] + [(100, 10)] * 15:
        model.take(waited_ms * MS)
        steps.take(took_ms * MS)
    spent = spent_of(steps.rank.words.tolist())
    assert spent is not None and spent.steps >= 20
    assert spent.waited_s / spent.steps == pytest.approx(0.01, rel=0.01)


def test_what_comes_again_and_again_is_ordinary() -> None:
    """Every fifth step takes long, and there is no second without one."""
    steps = _Steps()
    steps.take(0, *[100 * MS] * 10)
    steps.take(*([100 * MS] * 4 + [900 * MS]) * 40)
    count, took_ms = steps.told()
    assert count > 50
    assert took_ms / count == pytest.approx(260, rel=0.4)


def test_steps_longer_than_a_second_are_told_each() -> None:
    steps = _Steps()
    steps.take(0, *[2 * PUBLISH_NS] * 3)
    assert steps.told() == (3, 6000)


def test_a_page_that_is_being_written_is_not_read() -> None:
    steps = _Steps()
    steps.take(0, *[100 * MS] * 10)
    words = steps.rank.words.tolist()
    words[words.index(10, 33, 39)] = 9
    assert spent_of(words) is None


def test_sums_are_the_device_s_where_that_is_timed_and_the_host_s_once_it_is_not() -> None:
    """The host is ahead at times and waits at others: its steps say nothing."""
    steps = _Steps()
    steps.rank.device_timer = timer = _Timer()  # type: ignore[assignment]  # as much of a timer as it needs
    timer.has_seen_waits = True
    steps.take(*[MS] * 30, *[1000 * MS] * 2)
    spent = spent_of(steps.rank.words.tolist())
    assert spent == ev.StepBreakdown(32, 3.2, 1.28, 0.064, 0.032)
    timer.is_off = True
    steps.take(*[200 * MS] * 12)
    assert steps.told() == (32 + 10, 3200 + 2000), "the first two are odd, and what they are measured by"
    assert steps.rank.marked == []


def test_where_the_device_sees_no_waits_that_is_said_once() -> None:
    steps = _Steps()
    steps.rank.device_timer = _Timer()  # type: ignore[assignment]
    steps.take(*[1000 * MS] * 5)
    assert steps.rank.marked == [Milestone.WAITS_UNSEEN]
