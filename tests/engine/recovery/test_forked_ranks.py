"""After an attempt whose ranks were forked from a warm process, and that got nowhere, one is executed; it is free."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.verdicts import Detected
from guardrun.supervisor.engine.recovery.decide import decide
from tests.engine.conftest import ERROR, Told, kinds
from tests.engine.recovery.falling import end_crash

STEP_10 = ev.Checkpoint(path="/out/a.pt", step=10)


def forked(told: Told, ranks: tuple[int, ...] = (0, 1), **settings: object) -> Told:
    """A first attempt has come to step 10 and fallen; of the next one's ranks, which resume there, these are forked."""
    told.running(**{"max_restarts": 1, **settings})
    told.crashed()
    told.chosen(STEP_10)
    told.started(1, at_s=told.now_s + 0.5, forked=ranks)
    return told


def falls(told: Told, exitcode: int = 1, error: ev.ErrorRecord | None = None) -> list[ac.Action]:
    """Of what follows on a rank's fall, once nothing is alive, and the next attempt's order."""
    actions = told.crashed(exitcode, error)
    return [*actions, *told.chosen(STEP_10)] if "ChooseCheckpoint" in kinds(actions) else actions


def order(actions: list[ac.Action]) -> ac.StartAttempt | None:
    return next((one for one in actions if isinstance(one, ac.StartAttempt)), None)


@pytest.mark.parametrize("error", [ERROR, None])
@pytest.mark.parametrize("exitcode", [1, -11])
def test_one_that_falls_before_a_step_is_executed_once_more_at_no_cost(
    told: Told, exitcode: int, error: ev.ErrorRecord | None
) -> None:
    actions = falls(forked(told), exitcode, error)
    start = order(actions)
    assert start is not None and start.is_cold and start.checkpoint == STEP_10
    assert told.state.restarts == 1 and told.state.no_progress == 0
    assert told.incidents["002"].evidence["warm"] == {"forked": [0, 1], "why": "no step was done"}
    said = [one.text for one in actions if isinstance(one, ac.Say)]
    assert "its ranks were forked, which may be why: from now on all are executed" in said


def test_the_next_one_counts_and_is_compared_with_the_one_before_the_fork(told: Told) -> None:
    """The same error in an executed attempt: it was the script's own."""
    falls(forked(told, max_restarts=9), 1, ERROR)
    told.started(2, at_s=told.now_s + 0.5)
    start = order(falls(told, 1, ERROR))
    assert start is not None and start.is_cold and told.state.restarts == 2
    told.started(3, at_s=told.now_s + 0.5)
    [summary] = [one.summary for one in falls(told, 1, ERROR) if isinstance(one, ac.FinishRun)]
    assert summary.reason == "the same error at the same step twice"


def test_so_is_one_that_hangs_before_a_step(told: Told) -> None:
    """By a lock that nobody holds any more, say."""
    told = told.branch()  # which is told a verdict by hand
    forked(told)
    found = Detected(
        key="h", kind="hang", cause="rank_blocked", confidence=1.0, summary="It waits.", culprits=[1],
        onset_s=told.now_s, stops_since_s=told.now_s, evidence={},
    )  # fmt: skip
    decide(told.state, [found], told.now_s)
    start = order([*told.stopped(told.now_s + 1.0), *told.chosen(STEP_10)])
    assert start is not None and start.is_cold and told.state.restarts == 1


def test_without_a_restart_left_it_is_over(told: Told) -> None:
    falls(forked(told))
    told.started(2, at_s=told.now_s + 0.5)
    [summary] = [one.summary for one in falls(told) if isinstance(one, ac.FinishRun)]
    assert summary.restarts == 1 and summary.reason == "the only restart is used up"


def test_one_that_has_trained_has_stood_the_fork(told: Told) -> None:
    forked(told, max_restarts=2).step(11, told.now_s + 5.0)
    start = order(falls(told))
    assert start is not None and not start.is_cold and told.state.restarts == 2
    assert "warm" not in told.incidents["002"].evidence


def test_it_is_the_fallen_rank_s_steps_that_count(told: Told) -> None:
    """Nothing makes others wait for it."""
    forked(told).step(13, told.now_s + 5.0, ranks=range(1))
    start = order(falls(told))
    assert start is not None and start.is_cold


def test_what_ranks_do_until_their_first_step_is_none(told: Told) -> None:
    """They meet, and broadcast their parameters."""
    forked(told)
    reports = [ev.RankReport(global_rank=n, progress=3, progress_s=told.now_s + 1, step=10, joint=3) for n in range(2)]
    told.tell(ev.NodeReport(node="node-a", attempt=1, ranks=reports), told.now_s + 1)
    start = order(falls(told))
    assert start is not None and start.is_cold


def test_where_no_steps_are_seen_what_advances_counts(told: Told) -> None:
    told.opened(2, max_restarts=2)
    for attempt in (0, 1):
        told.started(attempt, at_s=told.now_s + 0.5, forked=range(2) if attempt else ())
        reports = [ev.RankReport(global_rank=n, progress=3, progress_s=told.now_s + 1) for n in range(2)]
        told.tell(ev.NodeReport(node="node-a", attempt=attempt, ranks=reports), told.now_s + 1)
        start = order(falls(told, -11))
        assert start is not None and not start.is_cold
    assert told.state.restarts == 2


def test_a_rank_that_could_not_go_on_as_one_is_believed_after_steps_too(told: Told) -> None:
    forked(told).step(15, told.now_s + 5.0)
    why = "heavy reads HEAVY_SETTING, which is not what it was"
    told.tell(ev.RankExited(attempt=1, global_rank=0, pid=200, exitcode=1, at_s=told.now_s, refusal=why))
    start = order([*end_crash(told), *told.chosen(STEP_10)])
    assert start is not None and start.is_cold and told.state.restarts == 1
    assert told.incidents["002"].evidence["warm"] == {"forked": [0, 1], "why": why}


def test_a_rank_that_was_executed_does_not_fall_for_the_others_fork(told: Told) -> None:
    """On another node, say, that had no warm process."""
    summaries = [one.summary for one in falls(forked(told, ranks=(0,))) if isinstance(one, ac.FinishRun)]
    assert summaries and summaries[0].reason == "the only restart is used up"


def test_a_restart_that_somebody_asks_for_says_nothing_of_the_fork(told: Told) -> None:
    forked(told)
    told.tell(ev.RestartAsked(who="ada"), told.now_s + 1.0)
    actions = [*told.stopped(told.now_s + 1.0), *told.chosen(STEP_10)]
    start = order(actions)
    assert start is not None and not start.is_cold


def test_only_watching_restarts_nothing(told: Told) -> None:
    told.opened(2, act=False)
    told.started(at_s=1.0, forked=range(2))
    assert order(falls(told)) is None and not told.state.is_warm_bad


def test_a_quarantined_machine_is_not_started_on_for_that(told: Told) -> None:
    told = told.branch()  # whose state is changed by hand here, which no replay would do
    forked(told)
    told.state.nodes.isolated["node-a"] = "001"
    [summary] = [one.summary for one in falls(told) if isinstance(one, ac.FinishRun)]
    assert "node-a is quarantined" in summary.reason


def test_a_rank_is_written_as_before_where_none_is_forked() -> None:
    plain = ev.Rank(global_rank=0, local_rank=0, pid=1, node="a")
    assert msgspec.to_builtins(plain) == {"global_rank": 0, "local_rank": 0, "pid": 1, "node": "a"}
