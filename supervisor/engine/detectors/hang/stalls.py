"""A stall is told early, and once; when it ends by itself, that is told too. Telling changes nothing.

looks find somebody who holds the job up ── tell_s ──▶ told: a line, `stall` in the status
    ├── it ends by itself ──▶ a line, `stalls` in summary.json; the place gets more patience
    └── patience is over, or there is proof, or a person says so ──▶ an incident, `detected` when it was told
"""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.engine.detectors.hang.hang import DOUBTFUL
from guardrun.supervisor.engine.detectors.hang.memory import HangMemory, Stall, Suspicion
from guardrun.supervisor.engine.incidents.sentences import hang_sentence, who
from guardrun.supervisor.engine.model.hang_patience import NEVER_S
from guardrun.supervisor.engine.model.looks import GroupLook
from guardrun.supervisor.engine.model.run_view import RunView, attempt_of, silence_began_s
from guardrun.supervisor.engine.model.verdicts import Remark, Verdict
from guardrun.supervisor.engine.observation.collective_waits import pending
from guardrun.supervisor.engine.observation.frames import base_name
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import RankActivity

ALONE = 4.0
"""Where nobody is seen to wait it is told so many times later: a server between two requests is no news."""
COMPUTING = 20.0
"""The same of what computes, and may be an evaluation, while others wait for it."""
MARGIN = 2.0
"""A stall that once ended by itself after d seconds is given twice that the next time, at the same place."""
SECOND_STOP = 4.0
"""Times the patience at a place where the run has been stopped before; from then on, the hard limit."""
DOUBTS = 3
_KEPT = 50


def place_of(found: Finding, seen: JudgedSnapshot) -> str:
    """Where the first culprit is, or who waits where nobody is to blame, as Judgement has it; empty: nobody knows."""
    ranks = found.culprits or found.waiting
    return next((seen.by_rank[rank].place for rank in ranks if rank in seen.by_rank and seen.by_rank[rank].place), "")


def short(place: str) -> str:
    """`file:function` as `function (file.py)`: the same wherever the script lies."""
    file, _, function = place.rpartition(":")
    return f"{function} ({base_name(file)})" if function else ""


def known_s(memory: HangMemory, found: Finding, seen: JudgedSnapshot) -> float:
    """The longest stall at the culprits' places that ended by itself: in this run, or in one before it."""
    places = {seen.by_rank[rank].place for rank in found.culprits if rank in seen.by_rank}
    return max(
        (max(memory.remembered.get(place, 0.0), memory.past_stalls.get(short(place), 0.0)) for place in places),
        default=0.0,
    )


def patience_s(memory: HangMemory, view: RunView, found: Finding, seen: JudgedSnapshot) -> float:
    """How long a stall without proof may last; NEVER_S: it is left alone."""
    settings = view.settings
    hard_s = settings.hard_timeout_s or NEVER_S
    wanted_s = found.patience_s
    if settings.is_sure:
        if found.is_alone and not _may_act_alone(view, found):
            return NEVER_S
        if found.is_alone:
            wanted_s = hard_s
        stops = memory.stops_at.get(place_of(found, seen), 0)
        wanted_s = wanted_s if not stops else SECOND_STOP * wanted_s if stops == 1 else hard_s
    elif not attempt_of(view).has_progress and not found.waiting:
        # It may wait for data that another job prepares, or have no steps at all: nobody is seen to be held up by it.
        wanted_s = hard_s
    return max(min(wanted_s, hard_s), _said_s(found, seen))


def _may_act_alone(view: RunView, found: Finding) -> bool:
    """Training that has come to stand still, and nothing of it runs; not what spins, computes or never trained."""
    attempt = attempt_of(view)
    return attempt.first_step is not None and found.is_still and not has_ended(view)


def has_ended(view: RunView) -> bool:
    """Whether a rank's script has come to its end: the others are at most on their way there, or wait for it."""
    return any(
        rank.exitcode == 0 or (rank.has_ended and rank.error is None) for rank in attempt_of(view).ranks.values()
    )


def _said_s(found: Finding, seen: JudgedSnapshot) -> float:
    """The longest timeout that the script itself has given a group in which somebody waits."""
    waiting = set(found.waiting)
    return max(
        (_told(told) for look in seen.event.ranks if look.global_rank in waiting for told in look.groups), default=0.0
    )


def _told(told: GroupLook) -> float:
    return told.timeout_s if pending(told) is not None else 0.0


# Telling -----------------------------------------------------------------------------------------------


def tell_s(view: RunView, found: Finding) -> float:
    """After how long it is told; NEVER_S: not at all."""
    settings = view.settings
    if not settings.tell_s or found.is_proof or found.doing is RankActivity.COLLECTING:
        return NEVER_S  # told as an incident, at once
    is_computing = found.is_native or found.doing in DOUBTFUL
    if is_computing and found.is_alone:
        return NEVER_S  # and nobody waits
    factor = COMPUTING if is_computing else ALONE if found.is_alone else 1.0
    return factor * view.gaps.suspicious_after_s(settings.tell_s)


def on_found(
    memory: HangMemory,
    view: RunView,
    found: Finding,
    seen: JudgedSnapshot,
    *,
    lasted_s: float,
    left_s: float,
    now_s: float,
) -> Sequence[Verdict]:
    """Tell of it, once it has lasted long enough. left_s: until it would be acted on."""
    suspicion = memory.suspicion
    assert suspicion is not None
    acts_s = now_s + max(left_s, 0.0) if left_s < NEVER_S / 2 else None
    stall = suspicion.stall
    summary = hang_sentence(attempt_of(view), found, seen.by_rank, lasted_s)
    if stall is not None:
        # What is known by now: the culprits may have become more, or others.
        stall.summary, stall.culprits, stall.acts_s, stall.cause = summary, list(found.culprits), acts_s, found.cause
        stall.doubts = 0
        return []
    if now_s - silence_began_s(attempt_of(view)) < tell_s(view, found) - 0.05:
        return []
    ranks = found.culprits or found.waiting
    place = place_of(found, seen)
    stall = suspicion.stall = Stall(
        summary=summary,
        culprits=list(found.culprits),
        place=place,
        spot=next((seen.by_rank[rank].spot for rank in ranks if rank in seen.by_rank and seen.by_rank[rank].spot), ""),
        cause=found.cause,
        onset_s=max(0.0, now_s - lasted_s),
        told_s=now_s,
        acts_s=acts_s,
        looks=list(suspicion.looks[-2:]),
    )
    if place in memory.told_places or suspicion.key:
        return []
    memory.told_places = [*memory.told_places, place][-_KEPT:]
    stall.is_said = True
    return [Remark(text=f"stall: {summary} {outlook(view, stall, now_s)}", level="warn")]


def outlook(view: RunView, stall: Stall, now_s: float) -> str:
    """What guardrun will do about it, and what a person can, in a sentence."""
    if not view.settings.act:
        return "guardrun only watches ([policy] act = false); guardctl restart ends it."
    if view.is_held:
        return "guardrun is held, and changes nothing; guardctl restart ends it."
    if stall.acts_s is None:
        return "guardrun leaves it alone; guardctl restart ends it."
    left_s = max(0.0, stall.acts_s - now_s)
    return f"guardrun acts in {left_s:.0f} s; guardctl restart acts now, guardctl hold never."


def on_nothing_found(memory: HangMemory, view: RunView, suspicion: Suspicion, now_s: float) -> Sequence[Verdict]:
    """Somebody seems to be at work: a single look may be mistaken in that."""
    if suspicion.stall is None:
        return []
    suspicion.stall.doubts += 1
    suspicion.stall.acts_s = None
    return withdraw(memory, view, suspicion, now_s) if suspicion.stall.doubts >= DOUBTS else []


def withdraw(memory: HangMemory, view: RunView, suspicion: Suspicion, now_s: float) -> Sequence[Verdict]:
    """It has ended by itself."""
    stall, suspicion.stall = suspicion.stall, None
    if stall is None or suspicion.key:
        return []
    note(memory, view, stall, now_s)
    if not stall.is_said:
        return []
    seconds = now_s - stall.onset_s
    whom = who(attempt_of(view), stall.culprits) if stall.culprits else "The job"
    where = f" in {stall.spot}" if stall.spot else ""
    goes = "go on" if len(stall.culprits) > 1 else "goes on"
    return [Remark(text=f"stall over: {whom} {goes}, after {seconds:.0f} s{where}", level="good")]


def note(memory: HangMemory, view: RunView, stall: Stall, now_s: float) -> None:
    """Keep it for summary.json: it became no incident."""
    attempt = attempt_of(view)
    known = [attempt.ranks[rank].rank for rank in stall.culprits if rank in attempt.ranks]
    memory.stalls = [
        *memory.stalls,
        {
            "place": short(stall.place),
            "seconds": round(now_s - stall.onset_s, 1),
            "who": [{"rank": rank.global_rank, "node": rank.node} for rank in known],
            "attempt": attempt.number,
            "cause": stall.cause,
            "summary": stall.summary,
        },
    ][-_KEPT:]
