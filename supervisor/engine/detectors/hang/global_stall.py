"""A job in which every living rank waits for the others: for what, and whether they can ever meet."""

from __future__ import annotations

from collections import Counter

import msgspec

from guardrun.supervisor.engine.failures.mismatch_report import mismatch_text
from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.observation.collective_waits import Match, Mismatch
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import Judgement

_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"})


def all_wait(living: list[Judgement], ended: list[int], settings: Settings, matched: Match) -> Finding | None:
    """Every living rank waits for the others. None where something works in the background: a save, say."""
    if any(j.is_moving for j in living):
        return None
    ranks = sorted(j.global_rank for j in living)
    base = Finding(
        cause="collective_timeout", culprits=[], waiting=ranks, confidence=0.6, patience_s=settings.data_patience_s
    )
    alone = [j for j in living if j.is_in_init]
    if len(alone) == 1 < len(living) and alone[0].global_rank in matched.roots and not ended:
        return _alone_in_init(base, alone[0], settings)
    if alone:
        why, patience_s = "every rank that is alive waits there", settings.spin_patience_s
        if ended:
            why, patience_s = f"rank {rank_list(ended)} ended before it got there", base.patience_s
        return msgspec.structs.replace(
            base, cause="init", culprits=sorted(ended), confidence=0.8, why_nobody=why, patience_s=patience_s
        )
    if matched.mismatch and not ended:
        return _recorded(base, matched.mismatch, settings)
    if ended:
        why = f"rank {rank_list(ended)} had already ended, and the others still wait for it"
        return msgspec.structs.replace(base, cause="collective_mismatch", confidence=0.8, why_nobody=why)
    if elsewhere := [rank for rank in matched.roots if rank in ranks]:
        return _elsewhere(base, elsewhere, ranks)
    groups = Counter((j.waits_in, j.order) for j in living)
    if matched.is_all_in and {rank for wait in matched.waits for rank in wait.ranks}.issuperset(ranks):
        groups = Counter({("", 0): len(living)})  # sub-groups, each complete: their numbers need not be equal
    if len(groups) > 1 and any(j.waits_in in _POINT_TO_POINT for j in living):
        why = "they wait in point-to-point calls, which differ from rank to rank, so no rank can be named"
        return msgspec.structs.replace(base, why_nobody=why)
    if len(groups) > 1:
        return _mismatch(base, living, groups)
    # Doubtful: the first collective of thousands of ranks makes their connections, which takes its time.
    why = "all of them have entered the same one, so it is the network or a device, and no rank can be named"
    return msgspec.structs.replace(base, why_nobody=why, patience_s=settings.spin_patience_s)


def _mismatch(base: Finding, living: list[Judgement], groups: Counter[tuple[str, int]]) -> Finding:
    key, count = groups.most_common(1)[0]
    odd = sorted(j.global_rank for j in living if (j.waits_in, j.order) != key)
    told = count * 2 > len(living)
    return msgspec.structs.replace(
        base,
        cause="collective_mismatch",
        culprits=odd if told else [],
        waiting=[r for r in base.waiting if r not in odd] if told else base.waiting,
        confidence=0.85 if told else 0.75,
        why_nobody="" if told else "they wait in different collectives, and which of them is wrong cannot be told",
    )


def _recorded(base: Finding, mismatch: Mismatch, settings: Settings) -> Finding:
    """Ranks have recorded calls that cannot meet. Where two sides are still in them, nothing can end that."""
    culprits = mismatch.culprits
    is_certain = mismatch.is_pending
    return msgspec.structs.replace(
        base,
        cause="collective_mismatch",
        culprits=culprits,
        waiting=[rank for rank in base.waiting if rank not in culprits],
        confidence=(0.97 if culprits else 0.9) if is_certain else (0.87 if culprits else 0.8),
        patience_s=settings.mismatch_patience_s if is_certain else base.patience_s,
        why_nobody="" if culprits else mismatch.why,
        is_certain=is_certain,
        told=mismatch_text(mismatch),
    )


def _alone_in_init(base: Finding, alone: Judgement, settings: Settings) -> Finding:
    """One rank makes a group whose other members have passed that by, and wait for it in a later collective."""
    where = f"{alone.waits_in} at {alone.spot}" if alone.spot else alone.waits_in
    return msgspec.structs.replace(
        base,
        cause="collective_mismatch",
        confidence=0.9,
        patience_s=settings.mismatch_patience_s,
        is_certain=True,
        told=f"rank {alone.global_rank} waits in {where} for ranks that have gone on, and wait for it elsewhere",
        why_nobody="whether it makes a group too many or another rank one too few cannot be told",
    )


def _elsewhere(base: Finding, elsewhere: list[int], ranks: list[int]) -> Finding:
    """The others wait in a collective for ranks which wait in something that is none of theirs."""
    return msgspec.structs.replace(
        base,
        cause="collective_mismatch",
        culprits=elsewhere,
        waiting=[rank for rank in ranks if rank not in elsewhere],
        confidence=0.85,
    )
