"""Which batches are left out after a rollback: of all ranks their own of that step, or of nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from guardrun.hooks.guards import agreement
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.verdicts import BadStep, Poisoned
from guardrun.supervisor.engine.recovery.voluntary.batch_skips import MAX_BATCHES, MAX_INDICES, MAX_RANKS, plan
from guardrun.supervisor.wire.control_messages import MAX_CONTROL_BYTES, Start
from tests.engine.conftest import Told
from tests.engine.detectors.numeric.curves import Curve, instead, plain, poisoned
from tests.engine.detectors.numeric.training import only
from tests.engine.recovery.rollbacks import BAD_AT, GOOD, ROLLS_BACK, Heard, begin_next

Named = dict[int, ev.BatchesNamed]
Change = Callable[[Named], object]


def indices(rank: int, position: int) -> list[int]:
    return [1000 * position + 10 * rank + each for each in range(2)]


def name_batches(
    rank: int, step: int = BAD_AT, *, accumulate: int = 1, attempt: int = 0, **more: Any
) -> ev.BatchesNamed:
    """What a rank says whose batch N was taken in step N: of four steps before this one, of it and of one after."""
    first, last = accumulate * (step - 5) + 1, accumulate * (step + 1)
    batches = [ev.NamedBatch(1 + (at - 1) // accumulate, 1, 0, at, indices(rank, at)) for at in range(first, last + 1)]
    fields = {"step": step, "loader": "a", "why": "", "ahead": 0, "batches": batches, **more}
    return ev.BatchesNamed(attempt=0, global_rank=rank, **fields)


def verdict(named: Named, *, is_clear: bool = True, is_step_known: bool = True) -> Poisoned:
    bad_step = BadStep(named=named, is_clear=is_clear, is_step_known=is_step_known)
    return Poisoned(key="", step=BAD_AT, since_s=0.0, from_step=BAD_AT - 1, bad_step=bad_step)


def planned(named: Named, **more: bool) -> dict[int, list[list[int]]]:
    """Rank → its batches, of the one order that there is."""
    [order], why = plan(verdict(named, **more), list(named), "001")
    assert not why and order.id == "001-0" and order.step == BAD_AT
    return {rank: own.batches for rank, own in order.ranks.items()}


def test_each_rank_s_own_batch_of_that_step() -> None:
    named = {rank: name_batches(rank) for rank in (0, 1, 2)}
    assert planned(named) == {rank: [indices(rank, BAD_AT)] for rank in named}
    [order], _ = plan(verdict(named), [0, 1, 2], "001")
    own = order.ranks[2]
    assert (own.before, own.is_first, own.loader, own.epoch) == (indices(2, BAD_AT - 1), False, "a", 0)


def test_a_rank_whose_first_bad_step_was_the_next_one_names_the_same() -> None:
    named = {0: name_batches(0, BAD_AT + 1), 1: name_batches(1)}
    assert planned(named) == {rank: [indices(rank, BAD_AT)] for rank in named}


def test_all_batches_that_a_step_accumulates() -> None:
    named = {rank: name_batches(rank, accumulate=3) for rank in (0, 1)}
    last = 3 * BAD_AT
    assert planned(named)[1] == [indices(1, at) for at in (last - 2, last - 1, last)]


def test_where_the_step_before_may_have_done_it_those_of_both() -> None:
    named = {rank: name_batches(rank) for rank in (0, 1)}
    assert planned(named, is_clear=False)[0] == [indices(0, BAD_AT - 1), indices(0, BAD_AT)]


def test_one_loader_that_fetches_ahead_concerns_all_ranks() -> None:
    named = {0: name_batches(0), 1: name_batches(1, ahead=1)}
    assert planned(named) == {rank: [indices(rank, BAD_AT - 1), indices(rank, BAD_AT)] for rank in named}


def test_over_the_end_of_a_pass_there_are_two_orders() -> None:
    named = {}
    for rank in (0, 1):
        one = name_batches(rank)
        batches = [
            batch if batch.step < BAD_AT else ev.NamedBatch(batch.step, 2, 1, 1 + batch.step - BAD_AT, batch.indices)
            for batch in one.batches
        ]
        named[rank] = msgspec.structs.replace(one, batches=batches)
    (last, first), why = plan(verdict(named, is_clear=False), [0, 1], "001")
    assert not why and (last.id, first.id) == ("001-0", "001-1")
    assert last.ranks[1].batches == [indices(1, BAD_AT - 1)] and last.ranks[1].epoch == 0
    assert first.ranks[1].batches == [indices(1, BAD_AT)] and first.ranks[1].is_first and first.ranks[1].epoch == 1


def changed(**fields: Any) -> Change:
    """Of rank 1."""
    return lambda named: named.update({1: msgspec.structs.replace(named[1], **fields)})


def with_batches(make: Callable[[ev.NamedBatch], ev.NamedBatch | None]) -> Change:
    def change(named: Named) -> None:
        batches = [kept for batch in named[1].batches if (kept := make(batch)) is not None]
        named[1] = msgspec.structs.replace(named[1], batches=batches)

    return change


def moved(batch: ev.NamedBatch, **fields: int | list[int]) -> ev.NamedBatch:
    return msgspec.structs.replace(batch, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda named: named.pop(1), "rank 1 did not name any batch", id="silent"),
        pytest.param(changed(why="it is blue"), "rank 1: it is blue", id="unknown"),
        pytest.param(changed(batches=[]), f"rank 1 took no batch in step {BAD_AT}", id="none at all"),
        pytest.param(
            with_batches(lambda batch: None if batch.step == BAD_AT else batch), "rank 1 took no batch", id="none then"
        ),
        pytest.param(
            with_batches(lambda batch: moved(batch, position=batch.position + 1)),
            "rank 1 took its batches elsewhere in its pass over the data than rank 0",
            id="another place",
        ),
        pytest.param(with_batches(lambda batch: moved(batch, epoch=3)), "elsewhere", id="another epoch"),
        pytest.param(
            with_batches(lambda batch: None if batch.step < BAD_AT else batch),
            f"rank 1 does not know all batches of step {BAD_AT}",
            id="too long ago",
        ),
        pytest.param(with_batches(lambda batch: moved(batch, indices=[])), "not know all indices", id="no indices"),
        pytest.param(
            lambda named: named.update({1: name_batches(1, accumulate=2)}), "elsewhere", id="more batches a step"
        ),
        pytest.param(
            lambda named: named.update(
                {
                    rank: msgspec.structs.replace(
                        one, batches=[batch for batch in one.batches if batch.position != 3 * BAD_AT - 1]
                    )
                    for rank in named
                    for one in [name_batches(rank, accumulate=3)]
                }
            ),
            "do not follow on each other",
            id="one in the middle unknown",
        ),
        pytest.param(lambda named: named.update({1: name_batches(1, 300)}), "rank 1 took no batch", id="an older one"),
        pytest.param(
            lambda named: named.update({rank: name_batches(rank, accumulate=MAX_BATCHES + 1) for rank in named}),
            f"more than {MAX_BATCHES} batches",
            id="very many",
        ),
        pytest.param(
            lambda named: named.update(
                {
                    rank: msgspec.structs.replace(
                        one, batches=[moved(batch, indices=list(range(60_000))) for batch in one.batches]
                    )
                    for rank, one in named.items()
                }
            ),
            "more than 60,000 samples",
            id="very large",
        ),
    ],
)
def test_one_rank_of_which_it_is_unknown_keeps_all_from_it(change: Change, words: str) -> None:
    named = {rank: name_batches(rank) for rank in (0, 1)}
    change(named)
    orders, why = plan(verdict(named), [0, 1], "001")
    assert words in why
    assert [(order.step, order.ranks) for order in orders] == [(BAD_AT, {})]


def test_of_all_rollbacks_together_it_is_bounded() -> None:
    named = {
        rank: msgspec.structs.replace(
            name_batches(rank), batches=[moved(batch, indices=[7] * 6_000) for batch in name_batches(rank).batches]
        )
        for rank in (0, 1)
    }
    orders: list[ac.SkipOrder] = []
    for number in range(6):
        new, why = plan(verdict(named), [0, 1], f"00{number}", orders)
        orders += new
        assert bool(why) == (number >= 2), "24,000 of each, batches and those before them"
    assert len(orders) == 6


def test_the_largest_order_fits_into_what_a_launcher_is_sent() -> None:
    """Numbers of ten digits, in as many ranks as can agree."""
    each = MAX_INDICES // MAX_RANKS // 2
    named = {
        rank: msgspec.structs.replace(
            name_batches(rank), batches=[moved(batch, indices=[10**9] * each) for batch in name_batches(rank).batches]
        )
        for rank in range(MAX_RANKS)
    }
    orders, why = plan(verdict(named), list(named), "001")
    assert not why and len(orders[0].ranks) == agreement.MAX_RANKS == MAX_RANKS
    for encode in (msgspec.json.encode, msgspec.msgpack.encode):
        assert len(encode(Start(attempt=1, skips=orders))) < 0.9 * MAX_CONTROL_BYTES
    named[MAX_RANKS] = named[0]
    assert "more than 256 ranks" in plan(verdict(named), list(named), "001")[1]


def test_nothing_is_left_out_where_values_are_not_seen_in_each_step() -> None:
    named = {rank: name_batches(rank) for rank in (0, 1)}
    orders, why = plan(verdict(named, is_step_known=False, is_clear=False), [0, 1], "001")
    assert "not seen in each step" in why
    assert [(order.step, order.ranks) for order in orders] == [(BAD_AT - 1, {}), (BAD_AT, {})]


# In a run -----------------------------------------------------------------------------------------------------------


def goes_wrong(told: Told, named: Named, curve: Curve | None = None, **settings: object) -> Heard:
    told.running(ranks=2, **{**ROLLS_BACK, **settings})
    curve = curve or poisoned(plain(1), 1, BAD_AT)
    heard = Heard(told).go(curve, 800).saves(GOOD).go(curve, BAD_AT - 800)
    for one in named.values():
        heard.actions += told.tell(one)
    return heard.go(curve, 80)


def started(actions: list[ac.Action]) -> ac.StartAttempt:
    [start] = [action for action in actions if isinstance(action, ac.StartAttempt)]
    return start


def chosen(told: Told, checkpoint: ev.Checkpoint = GOOD) -> list[ac.Action]:
    """Nothing of the attempt is alive, and a checkpoint is chosen."""
    told.stopped(told.now_s + 1.0)
    return told.tell(ev.CheckpointChosen(choice=told.state.choice, checkpoint=checkpoint))


def test_the_ranks_of_the_next_attempt_are_told(told: Told) -> None:
    heard = goes_wrong(told, {rank: name_batches(rank) for rank in (0, 1)})
    assert heard.is_stopped
    evidence = only(told).evidence
    assert evidence["indices"] == {"1": [indices(1, BAD_AT)], "0": [indices(0, BAD_AT)]}
    assert f"(samples {', '.join(map(str, indices(1, BAD_AT)))})" in only(told).advice
    assert evidence["batches_to_leave_out"] == {"0": [indices(0, BAD_AT)], "1": [indices(1, BAD_AT)]}
    assert any("without the batches of it" in text for text in heard.training.said)
    [order] = started(chosen(told)).skips
    assert order.ranks.keys() == {0, 1} and order.ranks[1].batches == [indices(1, BAD_AT)]


def test_a_checkpoint_from_after_it_has_nothing_to_leave_out(told: Told) -> None:
    goes_wrong(told, {rank: name_batches(rank) for rank in (0, 1)})
    assert started(chosen(told, ev.Checkpoint(path="/out/ckpt_900.pt", step=900))).skips == []


def test_by_default_it_is_only_told_which_batch_it_was(told: Told) -> None:
    goes_wrong(told, {rank: name_batches(rank) for rank in (0, 1)}, rolls_back=False)
    evidence = only(told).evidence
    assert evidence["indices"]["1"] == [indices(1, BAD_AT)] and "batches_to_leave_out" not in evidence
    assert not told.state.skip_orders


def test_of_a_loader_that_fetches_ahead_the_batch_before_is_named(told: Told) -> None:
    goes_wrong(told, {rank: name_batches(rank, ahead=1) for rank in (0, 1)}, rolls_back=False)
    evidence = only(told).evidence
    assert evidence["indices"]["1"] == [indices(1, BAD_AT - 1)] and evidence["is_fetched_ahead"]


def test_what_was_left_out_is_in_the_incident_and_in_the_summary(told: Told) -> None:
    goes_wrong(told, {rank: name_batches(rank) for rank in (0, 1)})
    begin_next(told)
    said: list[str] = []
    for rank in (0, 1):
        assert "left_out_batches" not in only(told).evidence
        left_out = ev.BatchesLeftOut(
            attempt=1, global_rank=rank, order="001-0", step=BAD_AT, batches=[indices(rank, BAD_AT)]
        )
        said += [action.text for action in told.tell(left_out) if isinstance(action, ac.Say)]
    assert said == [f"incident 001: the batch of step {BAD_AT} left out on both ranks"]
    shown = {str(rank): [indices(rank, BAD_AT)] for rank in (0, 1)}
    assert only(told).evidence["left_out_batches"] == shown
    [booked] = told.engine.summary(told.now_s).left_out
    assert booked == {"order": "001-0", "incident": "001", "attempt": 1, "step": BAD_AT, "ranks": shown}
    for stranger in ({"order": "007-0"}, {"attempt": 0}, {"global_rank": 5}):
        assert told.tell(msgspec.structs.replace(left_out, **stranger)) == []  # type: ignore[arg-type]
    assert len(told.state.left_out) == 1


@pytest.mark.parametrize("is_met", [True, False])
def test_it_is_said_where_they_were_not_met_again(told: Told, is_met: bool) -> None:
    goes_wrong(told, {rank: name_batches(rank) for rank in (0, 1)})
    begin_next(told)
    for rank in (0, 1) if is_met else ():
        told.tell(ev.BatchesLeftOut(attempt=1, global_rank=rank, order="001-0", step=BAD_AT, batches=[[1]]))
    heard = Heard(told, step=800).go(plain(2), 100)
    [past] = [text for text in heard.training.said if "training is past incident 001" in text]
    assert ("not all ranks met its batches again" in past) is not is_met


def test_without_batches_it_goes_back_all_the_same_and_says_so(told: Told) -> None:
    heard = goes_wrong(told, {0: name_batches(0)})
    assert heard.is_stopped and only(told).evidence["batches_not_left_out"] == "rank 1 did not name any batch"
    assert any("its batches are not left out: rank 1" in text for text in heard.training.said)
    [order] = started(chosen(told)).skips
    assert (order.step, order.ranks) == (BAD_AT, {})


def test_losses_of_all_ranks_in_one_step_may_be_the_fault_of_the_step_before(told: Told) -> None:
    """Gradients that overflow where no norm is seen: the loss of the next step is the first sign."""
    nan = float("nan")
    losses = plain(1)
    unseen = instead(losses, lambda rank, step: losses(rank, step)._replace(grad_norm=None))
    curve = instead(unseen, lambda _, step: unseen(0, step)._replace(loss=nan) if step >= BAD_AT else None)
    goes_wrong(told, {rank: name_batches(rank) for rank in (0, 1)}, curve)
    both = [indices(1, BAD_AT - 1), indices(1, BAD_AT)]
    assert only(told).evidence["batches_to_leave_out"]["1"] == both
