"""Which batches are left out after a rollback, so that what poisoned the parameters is not met again.

Each rank names its batches around its first step that is not finite (hooks/data/batch_trail.py). All batches of that
step are left out, of every rank its own: of a step whose gradients are reduced among ranks, and of the several batches
that a step may accumulate, nobody else could be left with a batch more than others. Ranks whose batches are unknown, or
lie elsewhere in their passes than those of others, keep everybody from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, pairwise

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import OwnBatches, SkipOrder
from guardrun.supervisor.engine.model.verdicts import BadStep, Poisoned
from guardrun.supervisor.engine.observation.frames import ranks_text

MAX_RANKS = 256
"""That can agree: hooks/guards/agreement.MAX_RANKS."""
MAX_BATCHES = 256
"""Of a rank."""
MAX_INDICES = 60_000
"""Of all ranks and rollbacks, those by which batches are known included: well below control_messages.MAX_CONTROL_BYTES,
which is what a launcher can be sent."""
MAX_SHOWN = 8
"""Ranks in an incident, …"""
MAX_SHOWN_BATCHES = 8
"""… batches of each, …"""
MAX_SHOWN_INDICES = 64
"""… and indices of each of these."""


class Unknown(Exception):
    """Why nothing is left out."""


def plan(
    verdict: Poisoned, ranks: Collection[int], incident: str, earlier: Sequence[SkipOrder] = ()
) -> tuple[list[SkipOrder], str]:
    """What is to be left out, and why it can be left out by the script alone; empty: by guardrun.

    ranks: all of the attempt. incident: its id. earlier: orders that stand. Where batches are not known, the new ones
    name the steps alone.
    """
    bad = verdict.bad_step
    steps = [verdict.step] if bad is not None and bad.is_clear else [max(1, verdict.step - 1), verdict.step]
    try:
        if bad is None:
            raise Unknown("which batches did it isn't known")
        orders = _orders(bad, verdict.step, sorted(set(steps)), ranks, incident)
        if sum(map(_count, [*earlier, *orders])) > MAX_INDICES:
            raise Unknown(f"it would be more than {MAX_INDICES:,} samples")
        return orders, ""
    except Unknown as unknown:
        ids = [(f"{incident}-{number}", step) for number, step in enumerate(sorted(set(steps)))]
        return [SkipOrder(id=id_, incident=incident, step=step) for id_, step in ids], str(unknown)


def _orders(bad: BadStep, step: int, steps: Sequence[int], ranks: Collection[int], incident: str) -> list[SkipOrder]:
    """step: the first that was not finite. steps: those whose batches may have done it."""
    if len(ranks) > MAX_RANKS:
        raise Unknown(f"more than {MAX_RANKS} ranks would have to agree")
    if not bad.is_step_known:
        raise Unknown("values are not seen in each step, so it isn't known which one was the first")
    named = {rank: bad.named[rank] for rank in sorted(ranks) if rank in bad.named}
    silent = [rank for rank in sorted(ranks) if rank not in named]
    if silent:
        raise Unknown(f"{ranks_text(silent)} did not name any batch")
    for rank, one in named.items():
        if one.why:
            raise Unknown(f"rank {rank}: {one.why}")
    is_ahead = any(one.ahead == 1 for one in named.values())
    found = {rank: _runs(rank, one, steps, is_ahead=is_ahead) for rank, one in named.items()}
    shapes = {rank: [(run[0].position, len(run)) for run in runs] for rank, runs in found.items()}
    _compare(shapes)
    _compare({rank: [run[0].epoch for run in runs] for rank, runs in found.items()})
    count = len(next(iter(shapes.values())))
    return [
        SkipOrder(
            id=f"{incident}-{number}",
            incident=incident,
            step=step,
            ranks={rank: _own(named[rank], runs[number]) for rank, runs in found.items()},
        )
        for number in range(count)
    ]


def _runs(rank: int, named: ev.BatchesNamed, steps: Sequence[int], *, is_ahead: bool) -> list[list[ev.NamedBatch]]:
    """A rank's batches of these steps, one list for each pass over its sampler.

    is_ahead: some rank takes batches before it trains on them.
    """
    wanted = [batch for batch in named.batches if batch.step in steps]
    before = [batch for batch in named.batches if batch.step < steps[0]]
    if is_ahead and before:
        wanted = [before.pop(), *wanted]
    if not wanted:
        raise Unknown(f"rank {rank} took no batch in step {steps[-1]}")
    if not before and wanted[0].position > 1:
        raise Unknown(f"rank {rank} does not know all batches of step {steps[0]}")
    runs = [list(run) for _, run in groupby(wanted, key=lambda batch: batch.run)]
    for run in runs:
        if not all(batch.indices for batch in run):
            raise Unknown(f"rank {rank} does not know all indices")
        if any(after.position != one.position + 1 for one, after in pairwise(run)):
            raise Unknown(f"batches of rank {rank} do not follow on each other")
    if len(wanted) > MAX_BATCHES:
        raise Unknown(f"it would be more than {MAX_BATCHES} batches of a rank")
    return runs


def _compare(facts: Mapping[int, object]) -> None:
    """Ranks that leave out another number of batches, or elsewhere, would come apart. Raises Unknown."""
    first, *others = facts
    for rank in others:
        if facts[rank] != facts[first]:
            raise Unknown(f"rank {rank} took its batches elsewhere in its pass over the data than rank {first}")


def _own(named: ev.BatchesNamed, run: Sequence[ev.NamedBatch]) -> OwnBatches:
    first = run[0]
    before = [b for b in named.batches if b.run == first.run and b.position == first.position - 1]
    return OwnBatches(
        batches=[batch.indices for batch in run],
        before=before[0].indices if before else None,
        is_first=first.position == 1,
        loader=named.loader,
        epoch=first.epoch,
    )


def _count(order: SkipOrder) -> int:
    """Indices of it."""
    return sum(sum(map(len, own.batches)) + len(own.before or ()) for own in order.ranks.values())


def show(ranks: Mapping[int, Sequence[Sequence[int]]]) -> dict[str, list[list[int]]]:
    """Batches by rank, as evidence has them: the first of each."""
    return {
        str(rank): [list(batch[:MAX_SHOWN_INDICES]) for batch in ranks[rank][:MAX_SHOWN_BATCHES]]
        for rank in sorted(ranks)[:MAX_SHOWN]
    }
