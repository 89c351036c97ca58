"""For how long a job has been held up, and for how long it may be before that is a hang.

What there is to know of a finding is handed in; nothing is said or changed here.
"""

from __future__ import annotations

from guardrun.supervisor.engine.detectors.hang.memory import HangMemory
from guardrun.supervisor.engine.model.hang_patience import NEVER_S
from guardrun.supervisor.engine.model.looks import GroupLook, RankLook
from guardrun.supervisor.engine.model.run_view import RunView, attempt_of, is_near_end, silence_began_s
from guardrun.supervisor.engine.observation.collective_calls import pending
from guardrun.supervisor.engine.observation.frames import base_name
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import RankActivity

MARGIN = 2.0
"""A stall that once ended by itself after d seconds is given twice that the next time, at the same place."""
SECOND_STOP = 4.0
"""Times the patience at a place where the run has been stopped before; from then on, the hard limit."""


def _lasted_s(memory: HangMemory, view: RunView, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been as it is: since the last progress, or since anything of the culprits moved."""
    attempt, suspicion = attempt_of(view), memory.suspicion
    assert suspicion is not None
    if found.is_proof:
        return now_s - min(attempt.stopped.get(rank, now_s) for rank in found.culprits)
    if found.doing is RankActivity.COLLECTING:
        return now_s - min((k.gc_since_s for k in looks if k.gc_since_s), default=now_s)
    began_s = silence_began_s(attempt)
    for rank in found.culprits or found.waiting:
        began_s = max(began_s, suspicion.unmoved_since_s.get(rank, 0.0))
    return now_s - began_s


def told_s(memory: HangMemory, view: RunView, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been so for all that is known. Patience is the more careful: it counts what was looked at."""
    suspicion = memory.suspicion
    assert suspicion is not None
    if found.is_proof or found.doing is RankActivity.COLLECTING:
        return _lasted_s(memory, view, found, looks, now_s)
    moved = [suspicion.moved_s.get(rank, 0.0) for rank in found.culprits or found.waiting]
    return now_s - max([silence_began_s(attempt_of(view)), *moved])


def left_s(memory: HangMemory, view: RunView, found: Finding, seen: JudgedSnapshot, now_s: float) -> float:
    """How much longer it may be so before it is a hang; 0 or less: it is one."""
    lasted = _lasted_s(memory, view, found, seen.event.ranks, now_s)
    if found.is_proof or found.is_certain:
        return found.patience_s - lasted
    # The job as a whole must have been silent for longer than is usual for it, and for this place.
    usual_s = max(view.gaps.suspicious_after_s(view.settings.floor_s), MARGIN * _known_s(memory, found, seen))
    may_s = _patience_s(memory, view, found, seen)
    if may_s >= NEVER_S:
        return NEVER_S
    usual_s = min(usual_s, max(view.settings.hard_timeout_s, may_s)) if view.settings.hard_timeout_s else usual_s
    return max(may_s - lasted, usual_s - (now_s - silence_began_s(attempt_of(view))))


# Without proof ---------------------------------------------------------------------------------------


def short(place: str) -> str:
    """`file:function` as `function (file.py)`: the same wherever the script lies."""
    file, _, function = place.rpartition(":")
    return f"{function} ({base_name(file)})" if function else ""


def _known_s(memory: HangMemory, found: Finding, seen: JudgedSnapshot) -> float:
    """The longest stall at the culprits' places that ended by itself: in this run, or in one before it."""
    places = {seen.by_rank[rank].place for rank in found.culprits if rank in seen.by_rank}
    return max(
        (max(memory.remembered.get(place, 0.0), memory.past_stalls.get(short(place), 0.0)) for place in places),
        default=0.0,
    )


def _patience_s(memory: HangMemory, view: RunView, found: Finding, seen: JudgedSnapshot) -> float:
    """How long a stall without proof may last; NEVER_S: it is left alone."""
    settings = view.settings
    hard_s = settings.hard_timeout_s or NEVER_S
    wanted_s = found.patience_s
    if settings.is_sure:
        if found.is_alone and not _may_act_alone(view, found):
            return NEVER_S
        if found.is_alone:
            wanted_s = hard_s
        stops = memory.stops_at.get(seen.place_of(found), 0)
        wanted_s = wanted_s if not stops else SECOND_STOP * wanted_s if stops == 1 else hard_s
    elif not attempt_of(view).has_progress and not found.waiting:
        # It may wait for data that another job prepares, or have no steps at all: nobody is seen to be held up by it.
        wanted_s = hard_s
    return max(min(wanted_s, hard_s), _said_s(found, seen))


def _may_act_alone(view: RunView, found: Finding) -> bool:
    """Training that has come to stand still, and nothing of it runs; not what spins, computes or never trained."""
    attempt = attempt_of(view)
    return attempt.first_step is not None and found.is_still and not is_near_end(view)


def _said_s(found: Finding, seen: JudgedSnapshot) -> float:
    """The longest timeout that the script itself has given a group in which somebody waits."""
    waiting = set(found.waiting)
    return max(
        (
            _pending_timeout_s(group)
            for look in seen.event.ranks
            if look.global_rank in waiting
            for group in look.groups
        ),
        default=0.0,
    )


def _pending_timeout_s(group: GroupLook) -> float:
    return group.timeout_s if pending(group) is not None else 0.0
