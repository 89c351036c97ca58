"""From what each rank does to what the job suffers from: cause, culprits, and how patient to be.

Pure: judgements in, a finding out. The culprits are those that the waiting ranks wait for, never those that wait.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from guardrun.supervisor.core.collectives import Match, Mismatch
from guardrun.supervisor.core.events import Settings
from guardrun.supervisor.core.frames import rank_list
from guardrun.supervisor.core.judge import STUCK, Doing, Judgement
from guardrun.supervisor.core.unmet import mismatch_text


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What the looks say, whether or not it is time to act on it."""

    cause: str
    culprits: list[int]
    waiting: list[int]
    confidence: float
    patience_s: float
    """Counted from the last progress (for a stopped process: from when it was seen stopped)."""
    is_proof: bool = False
    """Counts from when it was seen, and waits for no floor."""
    why_nobody: str = ""
    """Where no culprit can be told: why."""
    doing: Doing = Doing.WAITING
    """What the culprits do."""
    is_certain: bool = False
    """Shown by what the ranks recorded: waits for no floor either, but counts from the last progress."""
    told: str = ""
    """What they recorded, in words: a clause with the culprits as its subject, a sentence where there are none."""


DOUBTFUL = frozenset({Doing.CHURNING, Doing.UNLOOKED})
"""Neither seen to get somewhere nor seen to stand still: only the hard limit ends the doubt."""
LEAVING_PATIENCE_S = 300.0
"""torchrun's exit barrier (`exit_barrier_timeout` of its agent's WorkerSpec)."""
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"})

_PRECEDENCE = (
    Doing.STOPPED,
    Doing.TRACED,
    Doing.GIL_HELD,
    Doing.COLLECTING,
    Doing.IO_BLOCKED,
    Doing.DATA,
    Doing.IDLE,
    Doing.UNSEEN,
    Doing.SPINNING,
)
_CAUSE = {
    Doing.STOPPED: ("rank_stopped", 0.99),
    Doing.TRACED: ("rank_stopped", 0.95),
    Doing.GIL_HELD: ("gil_held", 0.95),
    Doing.COLLECTING: ("gc_pause", 0.95),
    Doing.IO_BLOCKED: ("io_blocked", 0.9),
    Doing.DATA: ("dataloader_stall", 0.9),
    Doing.IDLE: ("rank_blocked", 0.95),
    Doing.UNSEEN: ("rank_blocked", 0.6),
    Doing.SPINNING: ("rank_spinning", 0.85),
}


_LONG_WORK = frozenset({Doing.IO_BLOCKED, Doing.IDLE, Doing.UNSEEN, Doing.SPINNING, Doing.GIL_HELD})
"""What a rank in a save may well look like: one write to slow storage moves no counter until it returns."""


def find(judged: list[Judgement], ended: list[int], settings: Settings, matched: Match | None = None) -> Finding | None:
    """Say what holds the job up, by one judgement for each living rank; `ended` are ranks that exited with 0.

    matched: what their collectives say. None: somebody gets somewhere, or there is nothing to judge.
    """
    matched = matched or Match()
    living = [j for j in judged if j.doing is not Doing.GONE]
    proven = [j for j in living if j.doing is Doing.STOPPED] or [j for j in living if j.doing is Doing.TRACED]
    waiting = [j for j in living if j.doing is Doing.WAITING]
    if proven:
        return _of(proven, proven, _numbers(waiting), settings)
    if not living or any(j.doing is Doing.BUSY for j in living):
        return None
    doubtful = [j for j in living if j.doing in DOUBTFUL]
    if doubtful:
        return _doubtful(doubtful, _numbers(waiting), settings)
    stuck = [j for j in living if j.doing in STUCK]
    leaving = [j for j in living if j.doing is Doing.LEAVING]
    if not stuck:
        if not waiting:
            return _lingering(leaving)
        return _all_wait(waiting, sorted([*ended, *_numbers(leaving)]), settings, matched)
    rivals, held_up = _by_waits(stuck, waiting, matched) or _split(stuck, waiting)
    first = min(rivals, key=lambda j: _PRECEDENCE.index(j.doing)).doing
    found = _of([j for j in rivals if j.doing is first], rivals, _numbers(held_up), settings)
    return _as_init(found, living)


def _numbers(judged: list[Judgement]) -> list[int]:
    return [j.global_rank for j in judged]


def _of(culprits: list[Judgement], rivals: list[Judgement], waiting: list[int], settings: Settings) -> Finding:
    """The finding on these culprits. rivals: all that may be to blame; the most doubtful of them sets the patience."""
    doing = culprits[0].doing
    cause, confidence = _CAUSE[doing]
    return Finding(
        cause=cause,
        culprits=sorted(_numbers(culprits)),
        waiting=sorted(waiting),
        confidence=confidence if waiting or doing in (Doing.STOPPED, Doing.TRACED) else round(confidence - 0.2, 2),
        patience_s=max(_patience_s(rival, not waiting, settings) for rival in rivals),
        is_proof=doing in (Doing.STOPPED, Doing.TRACED),
        is_certain=all(rival.is_broken for rival in rivals),
        doing=doing,
    )


def _patience_s(rival: Judgement, nobody_waits: bool, settings: Settings) -> float:
    patience_s = settings.stopped_patience_s if rival.is_broken else _by_doing_s(rival.doing, nobody_waits, settings)
    if rival.is_in_long_work and rival.doing in _LONG_WORK:
        return max(patience_s, settings.save_patience_s)
    return patience_s


def _by_doing_s(doing: Doing, nobody_waits: bool, settings: Settings) -> float:
    return {
        Doing.STOPPED: settings.stopped_patience_s,
        Doing.TRACED: settings.traced_patience_s,
        Doing.GIL_HELD: settings.gil_patience_s,
        Doing.COLLECTING: settings.gil_patience_s,
        Doing.IO_BLOCKED: settings.data_patience_s,
        Doing.DATA: settings.data_patience_s,
        # Nobody is seen to wait for it: it may be a pause on purpose, or a source that all ranks share.
        Doing.IDLE: settings.data_patience_s if nobody_waits else settings.idle_patience_s,
        Doing.UNSEEN: settings.spin_patience_s if nobody_waits else settings.data_patience_s,
        Doing.SPINNING: settings.spin_patience_s,
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
        doing=min((j.doing for j in doubtful), key=lambda doing: doing is Doing.UNLOOKED),
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
        doing=Doing.LEAVING,
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
    """Who may be to blame, and who is held up. An async wait or a device's sync shows no frame of torch, so:

    by the order of collectives, those that are behind hold up the rest. Else, where nobody is seen to wait, by place:
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


def _as_init(found: Finding, living: list[Judgement]) -> Finding:
    """The same, told as `init` where the others wait in process-group creation and the culprits aren't through it."""
    by_rank = {j.global_rank: j for j in living}
    if any(by_rank[rank].is_in_init for rank in found.waiting) and found.doing is not Doing.COLLECTING:
        return msgspec.structs.replace(found, cause="init")
    return found


def _all_wait(living: list[Judgement], ended: list[int], settings: Settings, matched: Match) -> Finding | None:
    """Every living rank waits for the others. None where something works in the background: a save, say."""
    if any(j.is_moving for j in living):
        return None
    ranks = sorted(j.global_rank for j in living)
    base = Finding(
        cause="collective_timeout", culprits=[], waiting=ranks, confidence=0.6, patience_s=settings.data_patience_s
    )
    if any(j.is_in_init for j in living):
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
    """Ranks have recorded calls that can never meet: no doubt is left but about who is wrong."""
    culprits = mismatch.culprits
    return msgspec.structs.replace(
        base,
        cause="collective_mismatch",
        culprits=culprits,
        waiting=[rank for rank in base.waiting if rank not in culprits],
        confidence=0.97 if culprits else 0.9,
        patience_s=settings.mismatch_patience_s,
        why_nobody="" if culprits else mismatch.why,
        is_certain=True,
        told=mismatch_text(mismatch),
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
