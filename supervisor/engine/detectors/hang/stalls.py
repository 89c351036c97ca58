"""A stall is told early, and once; when it ends by itself, that is told too. Telling changes nothing.

looks find somebody who holds the job up ── tell_s ──▶ told: a line, `stall` in the status
    ├── it ends by itself ──▶ a line, `stalls` in summary.json; the place gets more patience
    └── patience is over, or there is proof, or a person says so ──▶ an incident, `detected` when it was told
"""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.engine.detectors.hang.hang import DOUBTFUL
from guardrun.supervisor.engine.detectors.hang.hang_verdicts import tell_blind
from guardrun.supervisor.engine.detectors.hang.memory import HangMemory, Stall, Suspicion
from guardrun.supervisor.engine.detectors.hang.patience import short
from guardrun.supervisor.engine.incidents.sentences import hang_sentence, who
from guardrun.supervisor.engine.model.hang_patience import NEVER_S
from guardrun.supervisor.engine.model.run_view import RunView, attempt_of, silence_began_s
from guardrun.supervisor.engine.model.verdicts import Remark, Verdict
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import RankActivity

ALONE = 4.0
"""Where nobody is seen to wait it is told so many times later: a server between two requests is no news."""
DEVICE = 4.0
"""The same of who waits for its device, which may be at work, while others wait for it."""
COMPUTING = 20.0
"""The same of what computes, and may be an evaluation, while others wait for it."""
DOUBTS = 3
_KEPT = 50


def tell_s(view: RunView, found: Finding) -> float:
    """After how long it is told; NEVER_S: not at all."""
    settings = view.settings
    if not settings.tell_s or found.is_proof or found.doing is RankActivity.COLLECTING:
        return NEVER_S  # told as an incident, at once
    is_computing = found.is_native or found.doing in DOUBTFUL
    if is_computing and found.is_alone:
        return NEVER_S  # and nobody waits
    if is_computing:
        factor = DEVICE if found.waits_for_device else COMPUTING
    else:
        factor = ALONE if found.is_alone else 1.0
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
    place = seen.place_of(found)
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
    said = Remark(text=f"stall: {summary} {outlook(view, stall, now_s)}", level="warn")
    return [said, *tell_blind(memory, seen.event.ranks)] if any(look.is_unread for look in seen.event.ranks) else [said]


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
