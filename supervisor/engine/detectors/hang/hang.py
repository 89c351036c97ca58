"""From what each rank does to what the job suffers from: cause, culprits, and how patient to be.

Pure: judgements in, a finding out. The culprits are those that the waiting ranks wait for, never those that wait.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import msgspec

from guardrun.supervisor.engine.failures.mismatch_report import mismatch_text
from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.model.hang_patience import NEVER_S
from guardrun.supervisor.engine.observation.collective_calls import group_text
from guardrun.supervisor.engine.observation.collective_waits import Match, Mismatch, Wait
from guardrun.supervisor.engine.observation.frames import rank_list, ranks_text
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import IN_DRIVER, STUCK, Judgement, RankActivity

FoundT = TypeVar("FoundT", Finding, Finding | None)

# Global stall -------------------------------------------------------------------------------------------------------
# A job in which every living rank waits for the others: for what, and whether they can ever meet.


TORCH_TIMEOUT_S = 600.0
"""Of a group over NCCL whose script names none (torch/distributed/constants.py)."""
FIRST_CALL_S = 0.05
"""A member: a group's first call makes its connections, which takes the longer, the more there are."""
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"})


def all_wait(living: list[Judgement], ended: list[int], settings: Settings, matched: Match) -> Finding | None:
    """Every living rank waits for the others. None where something works in the background: a save, say."""
    if any(j.is_moving for j in living):
        return None
    ranks = sorted(j.global_rank for j in living)
    patience_s = settings.data_patience_s
    if any(j.is_in_long_work for j in living):  # which a call that its device has pending may hide
        patience_s = max(patience_s, settings.save_patience_s)
    base = Finding(cause="collective_timeout", culprits=[], waiting=ranks, confidence=0.6, patience_s=patience_s)
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
    if held := _held_by_devices(matched, ranks):
        return _on_devices(base, held, settings)
    if unmade := _unmade(base, matched):
        return unmade
    if elsewhere := [rank for rank in matched.roots if rank in ranks]:
        return _elsewhere(base, elsewhere, ranks)
    if unseen := sorted({rank for wait in matched.waits if wait.is_on_device for rank in wait.unseen}):
        why = (
            f"nothing is known of the calls of {ranks_text(unseen)}, for which others may wait, so no rank can be named"
        )
        return msgspec.structs.replace(base, why_nobody=why, patience_s=max(patience_s, TORCH_TIMEOUT_S))
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


def _held_by_devices(matched: Match, ranks: list[int]) -> list[Wait]:
    """The calls of devices that lack nobody, where all that the ranks wait for leads to these; else empty."""
    held = [wait for wait in matched.waits if wait.is_on_device and not (wait.waits_for or wait.unseen)]
    waiting = {rank for wait in matched.waits for rank in wait.ranks}
    is_root = set(matched.roots) <= {rank for wait in held for rank in wait.ranks}
    return held if is_root and waiting.issuperset(ranks) else []


def _on_devices(base: Finding, waits: list[Wait], settings: Settings) -> Finding:
    """Issued by all, completed by none: a link, or a device that is stuck in something else, and never a host.

    Nothing that the host shows tells it from a device that is busy with a kernel of minutes, or from the first call of
    a group, which makes its connections: it is given as long as torch itself would have waited. (A timeout of the
    script's own is a lower bound anyway.)
    """
    first_s = FIRST_CALL_S * max((wait.size for wait in waits if wait.seq == 1), default=0)
    patience_s = max(settings.spin_patience_s, TORCH_TIMEOUT_S + first_s)
    found = msgspec.structs.replace(base, patience_s=patience_s, is_on_devices=True)
    late = sorted({rank for wait in waits for rank in wait.not_started})
    if late and len(late) * 2 < len(base.waiting):
        return msgspec.structs.replace(
            found,
            culprits=late,
            waiting=[rank for rank in base.waiting if rank not in late],
            confidence=0.8,
            doing=RankActivity.WAITING,
        )
    held = sorted({rank for wait in waits for rank in wait.ranks})
    who = "all of them" if held == base.waiting else f"ranks {rank_list(held)}, which the others wait for,"
    # Hosts run on: both sides of a transfer may be issued, and each device be held by one that comes before.
    is_ordered = not any(wait.op in _POINT_TO_POINT for wait in waits)
    what = "a link or a device" if is_ordered else "a link, a device or the order of sends and receives"
    why = f"{who} have issued theirs and none is completed, so it is {what}, and no rank can be named"
    return msgspec.structs.replace(found, why_nobody=why)


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


def _unmade(base: Finding, matched: Match) -> Finding | None:
    """Ranks wait in a group for one whose hooks tell of its groups, and of none like that; None: none do."""
    for wait in matched.waits:
        if unmade := sorted(set(matched.hooked).intersection(wait.unseen)):
            who = f"{ranks_text(wait.ranks)} {'waits' if len(wait.ranks) == 1 else 'wait'} in {wait.op}"
            have = "has" if len(unmade) == 1 else "have"
            group = group_text(wait.group, wait.desc)
            why = f"{who} of {group}, which {ranks_text(unmade)} {have} not made: who is wrong cannot be told"
            return msgspec.structs.replace(base, cause="collective_mismatch", confidence=0.8, why_nobody=why)
    return None


# Hang ---------------------------------------------------------------------------------------------------------------


UNREAD_CONFIDENCE = 0.6
"""In whom nobody could ask what it has issued: it may have issued more since its hooks last ran."""
DOUBTFUL = frozenset({RankActivity.CHURNING, RankActivity.UNLOOKED})
"""Neither seen to get somewhere nor seen to stand still: only the hard limit ends the doubt."""
_MAY_WAIT = STUCK - {RankActivity.STOPPED, RankActivity.TRACED} | {RankActivity.CHURNING}
"""How a host may look whose device waits for those of others."""
LEAVING_PATIENCE_S = 300.0
"""torchrun's exit barrier (`exit_barrier_timeout` of its agent's WorkerSpec)."""

_PRECEDENCE = (
    RankActivity.STOPPED,
    RankActivity.TRACED,
    RankActivity.GIL_HELD,
    RankActivity.COLLECTING,
    RankActivity.IO_BLOCKED,
    RankActivity.DATA,
    RankActivity.IDLE,
    RankActivity.UNSEEN,
    RankActivity.SPINNING,
)
_CAUSE = {
    RankActivity.STOPPED: ("rank_stopped", 0.99),
    RankActivity.TRACED: ("rank_stopped", 0.95),
    RankActivity.GIL_HELD: ("gil_held", 0.95),
    RankActivity.COLLECTING: ("gc_pause", 0.95),
    RankActivity.IO_BLOCKED: ("io_blocked", 0.9),
    RankActivity.DATA: ("dataloader_stall", 0.9),
    RankActivity.IDLE: ("rank_blocked", 0.95),
    RankActivity.UNSEEN: ("rank_blocked", 0.6),
    RankActivity.SPINNING: ("rank_spinning", 0.85),
}

_STILL = frozenset({RankActivity.IO_BLOCKED, RankActivity.DATA, RankActivity.IDLE, RankActivity.UNSEEN})
_LONG_WORK = frozenset(
    {RankActivity.IO_BLOCKED, RankActivity.IDLE, RankActivity.UNSEEN, RankActivity.SPINNING, RankActivity.GIL_HELD}
)
"""What a rank in a save may well look like: one write to slow storage moves no counter until it returns."""


def find(judged: list[Judgement], ended: list[int], settings: Settings, matched: Match | None = None) -> Finding | None:
    """Say what holds the job up, by one judgement for each living rank; `ended` are ranks that exited with 0.

    matched: what their collectives say. None: somebody gets somewhere, or there is nothing to judge.
    """
    matched = matched or Match()
    judged = _in_company(judged, matched)
    living = [j for j in judged if j.doing is not RankActivity.GONE]
    proven = [j for j in living if j.doing is RankActivity.STOPPED] or [
        j for j in living if j.doing is RankActivity.TRACED
    ]
    waiting = [j for j in living if j.doing is RankActivity.WAITING]
    if proven:
        return _of(proven, proven, _numbers(waiting), settings, is_alone=not waiting)
    if not living or any(j.doing is RankActivity.BUSY for j in living):
        return None
    drivers = _drivers(living)
    doubtful = [j for j in living if j.doing in DOUBTFUL and j.global_rank not in drivers]
    if doubtful:
        return _doubtful(doubtful, _numbers(waiting), settings)
    stuck = [j for j in living if j.doing in STUCK or j.doing in DOUBTFUL]
    leaving = [j for j in living if j.doing is RankActivity.LEAVING]
    if not stuck:
        if not waiting:
            return _lingering(leaving)
        return _as_torch(all_wait(waiting, sorted([*ended, *_numbers(leaving)]), settings, matched), living)
    by_waits = _by_waits(stuck, waiting, matched)
    rivals, held_up = by_waits or _split(stuck, waiting)
    # Who stands elsewhere, or has been in fewer collectives, may be waited for: that they are, nobody has seen.
    is_alone = not (waiting or by_waits)
    # A group's creation waits for whoever is not in it, whatever that one's device does.
    is_init = any(j.is_in_init for j in waiting)
    named = [j for j in rivals if by_waits or j.global_rank not in drivers or (is_init and not j.is_in_init)]
    if not named:
        return _as_torch(_in_driver(rivals, held_up, settings, is_alone=is_alone), living)
    if doubtful := [j for j in named if j.doing in DOUBTFUL]:
        return _doubtful(doubtful, _numbers(held_up), settings)
    first = min(named, key=lambda j: _PRECEDENCE.index(j.doing)).doing
    doubted = rivals if by_waits or _are_behind(rivals, held_up) else _with_drivers(rivals, held_up)
    found = _of([j for j in named if j.doing is first], doubted, _numbers(held_up), settings, is_alone=is_alone)
    return _as_init(_as_torch(found, living) if is_alone else found, living)


def _as_torch(found: FoundT, living: list[Judgement]) -> FoundT:
    """The same, as patient as torch, where all look alike and nobody can read what devices do. Proof needs none."""
    if found is None or found.is_certain or found.is_proof or not any(j.is_unread for j in living):
        return found
    return msgspec.structs.replace(found, patience_s=max(found.patience_s, TORCH_TIMEOUT_S))


def _in_company(judged: list[Judgement], matched: Match) -> list[Judgement]:
    """The same, where a rank whose recorder was not read has counted what the others' devices have pending.

    Whatever its host does, its device may well be in there with theirs.
    """
    ops = {rank: wait.op for wait in matched.waits for rank in wait.ranks if rank in matched.untold}
    return [
        msgspec.structs.replace(j, doing=RankActivity.WAITING, waits_in=ops[j.global_rank])
        if j.global_rank in ops and j.doing in _MAY_WAIT
        else j
        for j in judged
    ]


def _numbers(judged: list[Judgement]) -> list[int]:
    return [j.global_rank for j in judged]


def _of(
    culprits: list[Judgement], rivals: list[Judgement], waiting: list[int], settings: Settings, *, is_alone: bool
) -> Finding:
    """The finding on these culprits. rivals: all that may be to blame; the most doubtful of them sets the patience.

    is_alone: nobody is seen to wait for them. What looks like a deadlock then may wait for a signal.
    """
    doing = culprits[0].doing
    cause, confidence = _CAUSE[doing]
    if any(rival.is_unread and rival.doing is RankActivity.GIL_HELD for rival in rivals):
        confidence = min(confidence, UNREAD_CONFIDENCE)
    return Finding(
        cause=cause,
        culprits=sorted(_numbers(culprits)),
        waiting=sorted(waiting),
        confidence=confidence
        if waiting or doing in (RankActivity.STOPPED, RankActivity.TRACED)
        else round(confidence - 0.2, 2),
        patience_s=max(_patience_s(rival, not waiting, settings) for rival in rivals),
        is_proof=doing in (RankActivity.STOPPED, RankActivity.TRACED),
        is_certain=all(rival.is_broken or (rival.proof and not is_alone) for rival in rivals),
        is_alone=is_alone,
        is_still=all(rival.doing in _STILL and not rival.is_awake and not rival.is_in_doubt for rival in rivals),
        is_native=settings.native_patience_s > 0 and all(rival.is_native for rival in rivals),
        proof=next((rival.proof for rival in culprits if rival.proof), ""),
        doing=doing,
    )


def _in_driver(
    rivals: list[Judgement], held_up: list[Judgement], settings: Settings, *, is_alone: bool
) -> Finding | None:
    """The finding on ranks that are in a device's driver, where nothing that was recorded says for whom others wait.

    Their devices may be at work for minutes, or wait for those of others: nobody is named, and it is given as long as
    torch would wait, and as the same ranks would get without a word from their drivers.
    """
    patience_s = max(_patience_s(rival, is_alone, settings) for rival in rivals)
    if patience_s >= NEVER_S and not settings.hard_timeout_s:
        return None
    return Finding(
        cause="collective_timeout",
        culprits=[],
        waiting=sorted(_numbers([*rivals, *held_up])),
        confidence=0.5,
        patience_s=max(patience_s, settings.spin_patience_s, TORCH_TIMEOUT_S),
        is_alone=is_alone,
        is_native=any(rival.doing in DOUBTFUL for rival in rivals) or all(rival.is_native for rival in rivals),
        is_in_driver=True,
        waits_for_device=True,
        why_nobody="what for is not known, so no rank can be named",
    )


def _patience_s(rival: Judgement, nobody_waits: bool, settings: Settings) -> float:
    if rival.proof:
        return settings.proof_patience_s
    patience_s = settings.stopped_patience_s if rival.is_broken else _by_doing_s(rival.doing, nobody_waits, settings)
    if rival.is_native:
        patience_s = max(patience_s, settings.native_patience_s)
    if rival.is_awake:
        patience_s = max(patience_s, settings.awake_patience_s)
    if rival.is_unread and rival.doing is RankActivity.GIL_HELD:
        patience_s = max(patience_s, TORCH_TIMEOUT_S)
    if rival.is_in_long_work and rival.doing in _LONG_WORK:
        return max(patience_s, settings.save_patience_s)
    return max(patience_s, settings.spin_patience_s) if rival.is_in_doubt else patience_s


def _by_doing_s(doing: RankActivity, nobody_waits: bool, settings: Settings) -> float:
    return {
        RankActivity.STOPPED: settings.stopped_patience_s,
        RankActivity.TRACED: settings.traced_patience_s,
        RankActivity.GIL_HELD: settings.gil_patience_s,
        RankActivity.COLLECTING: settings.gil_patience_s,
        RankActivity.IO_BLOCKED: settings.data_patience_s,
        RankActivity.DATA: settings.data_patience_s,
        # Nobody is seen to wait for it: it may be a pause on purpose, or a source that all ranks share.
        RankActivity.IDLE: settings.data_patience_s if nobody_waits else settings.idle_patience_s,
        RankActivity.UNSEEN: settings.spin_patience_s if nobody_waits else settings.data_patience_s,
        RankActivity.SPINNING: settings.spin_patience_s,
        RankActivity.CHURNING: settings.hard_timeout_s or NEVER_S,
    }[doing]


def _doubtful(doubtful: list[Judgement], waiting: list[int], settings: Settings) -> Finding | None:
    """CPU time alone is no proof of work, and what cannot be seen none of anything: wait for the hard limit."""
    if not settings.hard_timeout_s:
        return None
    return Finding(
        cause="unknown",
        culprits=sorted(_numbers(doubtful)),
        waiting=sorted(waiting),
        confidence=0.5,
        patience_s=settings.hard_timeout_s,
        is_alone=not waiting,
        waits_for_device=all(j.device_wait for j in doubtful),
        doing=min((j.doing for j in doubtful), key=lambda doing: doing is RankActivity.UNLOOKED),
    )


def _lingering(leaving: list[Judgement]) -> Finding | None:
    """Every script has ended; a process that does not is waited for as long as torchrun would wait."""
    if not leaving:
        return None
    return Finding(
        cause="rank_blocked",
        culprits=sorted(_numbers(leaving)),
        waiting=[],
        confidence=0.8,
        patience_s=LEAVING_PATIENCE_S,
        doing=RankActivity.LEAVING,
        is_alone=True,
    )


def _by_waits(
    stuck: list[Judgement], waiting: list[Judgement], matched: Match
) -> tuple[list[Judgement], list[Judgement]] | None:
    """The same as _split, by the graph of waits: its roots are to blame. None where it does not lead to any of them."""
    roots = [j for j in stuck if j.global_rank in matched.roots]
    if not roots:
        return None
    held_by = {rank for wait in matched.waits if wait.waits_for for rank in wait.ranks}
    free = [j for j in stuck if j not in roots and j.global_rank not in held_by]
    if free and not waiting:
        return None  # Who stands still without a recorded wait may be the cause of it all.
    return roots, sorted([*waiting, *(j for j in stuck if j not in roots)], key=lambda j: j.global_rank)


def _split(stuck: list[Judgement], waiting: list[Judgement]) -> tuple[list[Judgement], list[Judgement]]:
    """Who may be to blame, and who is held up.

    An async wait or a device's sync shows no frame of torch, so those that are behind in the order of collectives hold
    up the rest. Else, where nobody is seen to wait, by place:
    where most ranks are is where they wait. Else all are as guilty as each other.
    """
    furthest = max(j.order for j in [*stuck, *waiting])
    behind = [j for j in stuck if j.order < furthest]
    if behind:
        return behind, [*waiting, *(j for j in stuck if j.order == furthest)]
    if waiting:
        return stuck, waiting
    places = Counter(j.place for j in stuck)
    place, count = places.most_common(1)[0]
    if len(places) > 1 and count * 2 > len(stuck):
        return [j for j in stuck if j.place != place], [j for j in stuck if j.place == place]
    return stuck, []


def _drivers(living: list[Judgement]) -> set[int]:
    """The ranks that are seen in a device's driver, and those that show the same as one and could not be asked."""
    shown = {(j.doing, j.spot) for j in living if j.device_wait and j.doing is not RankActivity.IDLE}
    return {
        j.global_rank
        for j in living
        if j.doing in IN_DRIVER and (j.device_wait or (not j.is_in_own_code and (j.doing, j.spot) in shown))
    }


def _are_behind(rivals: list[Judgement], held_up: list[Judgement]) -> bool:
    """Whether all of them have been in fewer collectives than somebody else."""
    return max(j.order for j in rivals) < max((j.order for j in held_up), default=0)


def _with_drivers(rivals: list[Judgement], held_up: list[Judgement]) -> list[Judgement]:
    """Them, and those that count as held up by their place alone, and would be taken for work but for their drivers."""
    return [*rivals, *(j for j in held_up if j.doing in DOUBTFUL)]


def _as_init(found: Finding, living: list[Judgement]) -> Finding:
    """The same, told as `init` where the others wait in process-group creation and the culprits aren't through it."""
    by_rank = {j.global_rank: j for j in living}
    if any(by_rank[rank].is_in_init for rank in found.waiting) and found.doing is not RankActivity.COLLECTING:
        return msgspec.structs.replace(found, cause="init")
    return found
