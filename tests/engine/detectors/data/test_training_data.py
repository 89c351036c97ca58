"""Ranks that share samples, orders that repeat, loaders of different length: told once; what only looks so, never."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told
from tests.engine.detectors.data.job import LOSS_STEPS, Job, Losses, order, own, same

# The same samples --------------------------------------------------------------------------------------------------


def test_ranks_that_train_on_the_same_samples_are_told_once(told: Told) -> None:
    job = Job(told)
    job.tell([order("f")] * 4)
    assert job.said == [], "indices alone are no proof"
    job.lose(same)
    note = job.notes["same_samples"]
    assert note.text == (
        "all 4 ranks train on the same samples: the first 32 batches have the same indices in the same order, and the "
        "losses at 16 steps (48 to 288) are equal bit for bit."
    )
    assert "DistributedSampler" in note.advice
    assert note.evidence["ranks"] == "0-3" and note.evidence["batches"] == 32 and note.evidence["equal_losses"] >= 12
    assert job.said == [f"note: {note.text} {note.advice}"]
    job.tell([order("g", loader=1)] * 4)
    job.lose(lambda rank, step: 3.0 / step)
    assert len(job.said) == 1, "once a run"
    assert [one["topic"] for one in told.engine.summary(told.now_s).notes] == ["same_samples"]


def test_only_the_ranks_that_share_them_are_named(told: Told) -> None:
    job = Job(told)
    job.tell([order("a"), order("b"), order("a"), order("c")])
    job.lose(lambda rank, step: own(rank % 2 if rank < 3 else 7, step))
    assert job.notes["same_samples"].evidence["ranks"] == "0,2"


def test_losses_may_come_before_all_ranks_have_told_their_order(told: Told) -> None:
    job = Job(told, 2)
    job.tell([order("a", members=2)], ranks=[0])
    job.lose(same)
    assert job.said == []
    job.tell([order("a", members=2)], ranks=[1])
    assert "same_samples" in job.notes


def test_another_attempt_is_judged_by_itself(told: Told) -> None:
    job = Job(told)
    job.tell([order("a")] * 4)
    told.crashed()
    told.restarted(step=20)
    told.step(40, told.now_s + 1.0)
    job.lose(same)
    job.tell([order(f"{rank}") for rank in range(4)])
    job.lose(same)
    assert told.state.remarks == {}
    job.tell([order("b", loader=1)] * 4)
    job.lose(same)
    assert told.state.remarks["same_samples"].attempt == 1


Decoy = tuple[list[ev.SampleOrder], Losses]
FIRST = order("a")
DECOYS: dict[str, Decoy] = {
    "a dataset of its own for each rank, of which all take the same places": ([FIRST] * 4, own),
    "a loss that the script reduces, of samples of their own": ([order(f"{rank}") for rank in range(4)], same),
    "tensor or pipeline parallel: no gradients are averaged": ([order("a", group="", members=0)] * 4, same),
    "data parallel groups of tensor parallel ranks": (
        [order("ab"[rank // 2], group="xy"[rank % 2], members=2) for rank in range(4)],
        lambda rank, step: own(rank // 2, step),
    ),
    "epochs of one batch": ([order("a", batches=1, distinct=1)] * 4, same),
    "one batch, again and again, by intention": ([order("a", distinct=16)] * 4, same),
    "fewer samples than ranks": ([order("a", batches=32, distinct=3)] * 4, same),
    "a loss that stands still, of datasets of their own": ([FIRST] * 4, lambda rank, step: 0.6931471805599453),
    "losses that are equal in part": ([FIRST] * 4, lambda rank, step: own(rank * (step > 150), step)),
    "a last bit that differs": ([FIRST] * 4, lambda rank, step: 2.0 / step + rank * 1e-15),
    "sampling with replacement, or by weight, by seeds of their own": (
        [order(f"w{rank}", distinct=200) for rank in range(4)],
        own,
    ),
    "the same start, another number of batches": ([order("a", batches=20 + rank) for rank in range(4)], same),
    "a rank that has not told its order": ([FIRST] * 3, same),
    "later passes alone": ([order("a", turn=1)] * 4, same),
    "too few losses": ([FIRST] * 4, lambda rank, step: same(rank, step) if step < 128 else own(rank, step)),
}


@pytest.mark.parametrize("name", DECOYS)
def test_what_looks_like_the_same_samples(told: Told, name: str) -> None:
    orders, losses = DECOYS[name]
    job = Job(told)
    job.tell(orders, ranks=range(len(orders)))
    job.lose(losses)
    assert job.said == [] and job.notes == {}


def test_losses_of_few_steps_decide_nothing(told: Told) -> None:
    job = Job(told)
    job.tell([FIRST] * 4)
    job.lose(same, LOSS_STEPS[:10])
    assert job.said == []
    job.lose(same, LOSS_STEPS[10:])
    assert "same_samples" in job.notes


# The same order ----------------------------------------------------------------------------------------------------


def test_an_order_that_repeats_although_it_is_to_be_shuffled(told: Told) -> None:
    job = Job(told)
    for turn in range(4):
        job.tell([order(f"{rank}", turn=turn, epoch=0, shuffles=True, step=100 * turn) for rank in range(4)])
        assert len(job.said) == (turn >= 2)
    note = job.notes["same_order"]
    assert "first 32 batches of 3 epochs in a row" in note.text and "set_epoch" in note.advice
    assert (note.evidence["rank"], note.evidence["sampler_epoch"], note.evidence["step"]) == (0, 0, 200)


Orders = Callable[[int], ev.SampleOrder]
"""turn → what is told."""
ORDERS: dict[str, Orders] = {
    "shuffle=False by wish, a curriculum's own sampler": lambda turn: order("a", turn=turn, epoch=0),
    "set_epoch is called": lambda turn: order(f"{turn}", turn=turn, epoch=turn, shuffles=True),
    "set_epoch is called, and the sampler has only one order": lambda turn: order(
        "a", turn=turn, epoch=turn, shuffles=True
    ),
    "a trial of the first epoch, and then epochs": lambda turn: order(
        f"{max(turn, 1)}", turn=turn, epoch=max(turn - 1, 0), shuffles=True
    ),
    "a resumed epoch begins in its middle, another seed follows": lambda turn: order(
        f"{turn}", turn=turn, epoch=0, shuffles=True
    ),
    "loaders in turn": lambda turn: order("a", loader=turn % 2, turn=turn // 2, epoch=0, shuffles=True),
    "epochs of one batch": lambda turn: order("a", turn=turn, batches=1, distinct=64, epoch=0, shuffles=True),
    "one batch, again and again": lambda turn: order("a", turn=turn, distinct=16, epoch=0, shuffles=True),
    "every other epoch is alike": lambda turn: order(f"{turn % 2}", turn=turn, epoch=0, shuffles=True),
}


@pytest.mark.parametrize("name", ORDERS)
def test_what_looks_like_the_same_order(told: Told, name: str) -> None:
    job = Job(told)
    for turn in range(4):
        job.tell([ORDERS[name](turn)], ranks=[0])
    assert job.said == [] and job.notes == {}


# Lengths -----------------------------------------------------------------------------------------------------------


def test_loaders_of_different_length(told: Told) -> None:
    job = Job(told)
    job.tell([order(f"{rank}", length=99 if rank == 2 else 100) for rank in range(4)])
    note = job.notes["uneven_loaders"]
    assert "99 batches on rank 2, and 100 on ranks 0-1,3" in note.text and "Join" in note.advice
    job.tell([order(f"{rank}", loader=1, length=50 + rank) for rank in range(4)])
    assert len(job.said) == 1


LENGTHS: dict[str, list[ev.SampleOrder]] = {
    "equal": [order(f"{rank}", length=100) for rank in range(4)],
    "within torch's join()": [order(f"{rank}", length=100 + rank, is_joined=True) for rank in range(4)],
    "samplers that are not asked": [order(f"{rank}", length=-1 if rank else 100) for rank in range(4)],
    "other data for each rank, by intention": [order(f"{rank}", length=100 * (1 + rank)) for rank in range(4)],
    "no gradients are averaged": [order(f"{rank}", length=100 + rank, group="", members=0) for rank in range(4)],
    "not all have told": [order(f"{rank}", length=100 + rank) for rank in range(3)],
    "in a later pass": [order(f"{rank}", length=100 + rank, turn=1) for rank in range(4)],
    "of two groups": [order(f"{rank}", length=100 + rank // 2, group="xy"[rank // 2], members=2) for rank in range(4)],
}


@pytest.mark.parametrize("name", LENGTHS)
def test_what_looks_like_different_length(told: Told, name: str) -> None:
    job = Job(told)
    job.tell(LENGTHS[name], ranks=range(len(LENGTHS[name])))
    assert job.said == [] and job.notes == {}
