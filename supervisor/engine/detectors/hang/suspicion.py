"""The watch over a running attempt: suspicion, looks, and what two of them say.

Suspicion costs a look and nothing else. A job is suspected when no rank of it has advanced for longer than this run's
own gaps explain (`Gaps`), or when there is proof (a stopped process). It is looked at again and again, two looks
in a row are judged against each other (`judge`), what they say is put together (`find`), and only when that has been
true for as long as its kind of doubt deserves does it become a verdict (`hang_verdicts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.detectors.hang import hang_verdicts, patience, stalls
from guardrun.supervisor.engine.detectors.hang.device_findings import with_sensors
from guardrun.supervisor.engine.detectors.hang.hang import DOUBTFUL, find
from guardrun.supervisor.engine.detectors.hang.memory import HangMemory, Suspicion
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.run_view import (
    AttemptView,
    RunView,
    attempt_of,
    running_attempt,
    silence_began_s,
)
from guardrun.supervisor.engine.model.transitions import Phase, PhaseChanged
from guardrun.supervisor.engine.model.verdicts import Ended, LookWanted, Verdict
from guardrun.supervisor.engine.observation.collective_waits import match, waits_on_device
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot, LookJudged
from guardrun.supervisor.engine.observation.progress_gaps import FACTOR
from guardrun.supervisor.engine.observation.rank_activity import (
    Judgement,
    RankActivity,
    judge,
    unlooked,
)
from guardrun.supervisor.engine.observation.repeated_frames import may_loop, over_looks

LOOK_TIMEOUT_S = 45.0
"""A look that has not come back by then is asked for again: its collectors have limits of their own, well below."""
TIMES = 2
"""So many times in a row a pair of looks must say the same, …"""
NATIVE_TIMES = 3
"""… and so many times that what has been native code at work is none any more."""
QUICK_LOOK_S = 0.5
"""Between the looks at a proof: what a process state or the board says needs no two stacks far apart."""
BUSY_LOOK_MAX_S = 60.0
WAIT_PAUSE_MAX_S = 60.0
WAIT_LOOK_S = 3.0
"""Of silence, with a rank in a collective (or without a batch) all the while: a look may show calls that never meet."""

_ON_DEVICE = frozenset(
    {
        RankActivity.CHURNING,
        RankActivity.IDLE,
        RankActivity.SPINNING,
        RankActivity.UNSEEN,
        RankActivity.GIL_HELD,
        RankActivity.IO_BLOCKED,
        RankActivity.DATA,
        RankActivity.COLLECTING,
    }
)
"""How a rank may look whose device waits in a collective. Its host has issued that and stands, or spins, in a
synchronisation, keeps the GIL in a launch on a full queue, sits in the driver, waits for data. One that is stopped is
none: threads of its own move the data."""


class Hang(HangMemory, kw_only=True):
    """Is the job held up, by whom, and for how long may it be?"""

    observes: ClassVar[tuple[type, ...]] = (
        ev.NodeReport,
        ev.LookTaken,
        LookJudged,
        ev.Ticked,
        ev.AttemptStarted,
        PhaseChanged,
        ev.HoldSet,
        ev.RestartAsked,
        ev.NodeContactRestored,
        ev.TimeSkipped,
        ev.HistoryLoaded,
        ev.SupervisorRestarted,
    )

    def observe(self, event: Any, view: RunView, now_s: float) -> Sequence[Verdict | LookJudged]:
        """Watch while ranks train; learn from what ended by itself."""
        if isinstance(event, ev.HistoryLoaded):
            self.past_stalls = dict(event.stalls)
            return ()
        if isinstance(event, PhaseChanged):
            self._on_phase_changed(event, view, now_s)
            return ()
        if view.phase is not Phase.RUNNING:
            return ()
        if attempt_of(view).number != self.attempt:
            self._begin_attempt(attempt_of(view).number)
        if isinstance(event, ev.NodeReport):
            return self._on_report(view, now_s)
        if isinstance(event, ev.Ticked):
            due_s = self.next_deadline_s(view)
            return self._ask_look(view, now_s) if due_s is not None and now_s >= due_s else ()
        if isinstance(event, ev.LookTaken):
            return self._on_look_taken(event, view, now_s)
        if isinstance(event, LookJudged):
            return self._on_look_judged(event, view, now_s)
        if isinstance(event, ev.SupervisorRestarted):
            return self._ask_again(view, now_s)
        self._mind(event, view, now_s)
        return ()

    def _on_phase_changed(self, event: PhaseChanged, view: RunView, now_s: float) -> None:
        """Ranks train no more. What had been told and ended with the attempt, by itself, is kept for the summary."""
        stall = self.suspicion.stall if self.suspicion is not None and not self.suspicion.key else None
        if stall is not None and event.after not in (Phase.STOPPING, Phase.ENDING):
            stalls.note(self, view, stall, now_s)
        self._forget_suspicion()

    def _begin_attempt(self, number: int) -> None:
        self.attempt = number
        self.next_quick_s = self.next_wait_s = self.wait_pause_s = 0.0
        self._forget_suspicion()

    def _forget_suspicion(self) -> None:
        self.suspicion, self.look_since_s = None, None

    def _mind(self, event: object, view: RunView, now_s: float) -> None:
        """What makes the next look a matter of now."""
        suspicion = self.suspicion
        if suspicion is None:
            return
        if isinstance(event, ev.TimeSkipped):
            suspicion.last.clear()
            suspicion.unmoved_since_s = dict.fromkeys(attempt_of(view).ranks, now_s)
        if isinstance(event, ev.RestartAsked):
            if suspicion.stall is None:
                return
            suspicion.is_forced = True
        if not isinstance(event, ev.HoldSet) or not event.is_held:
            suspicion.next_look_s = min(suspicion.next_look_s, now_s)

    def _on_report(self, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Any progress ends a suspicion; the same stall gets more patience next time."""
        attempt, suspicion = attempt_of(view), self.suspicion
        if suspicion is None or attempt.advances == suspicion.advances:
            return ()
        if attempt.stopped:  # a rank that is stopped stays so, whatever others still do
            suspicion.advances = attempt.advances
            return ()
        for place in suspicion.places.values():
            self.remembered[place] = max(attempt.gap_s, self.remembered.get(place, 0.0))
        verdicts = stalls.withdraw(self, view, suspicion, now_s)
        self._end_suspicion(view, now_s)
        return [*verdicts, Ended()] if suspicion.is_forced else verdicts

    def _end_suspicion(self, view: RunView, now_s: float) -> None:
        self._forget_suspicion()
        # A process that is stopped and let run in turns must not be looked at all the time.
        self.next_quick_s = now_s + view.settings.look_every_s

    def _no_proof(self, view: RunView, now_s: float) -> None:
        """Looked at before the floor, for nothing: the ordinary watch goes on, and such looks come ever more seldom."""
        self._end_suspicion(view, now_s)
        self.wait_pause_s = min(max(2 * self.wait_pause_s, view.settings.look_every_s), WAIT_PAUSE_MAX_S)
        self.next_wait_s = now_s + self.wait_pause_s

    # Deadlines ---------------------------------------------------------------------------------------------

    def next_deadline_s(self, view: RunView) -> float | None:
        """When the watch next has something to do."""
        attempt = running_attempt(view)
        if attempt is None or not attempt.alive or view.is_failing:
            return None
        if view.is_node_silent:
            return None  # membership decides: what would be seen of its ranks is that they were not seen
        if self.look_since_s is not None:
            return self.look_since_s + LOOK_TIMEOUT_S
        if self.suspicion:
            return self.suspicion.next_look_s
        due_s = silence_began_s(attempt) + view.gaps.suspicious_after_s(view.settings.floor_s)
        if attempt.stopped or attempt.collecting or attempt.waiting:
            is_new = attempt.number != self.attempt
            quick_s = min(
                min(attempt.stopped.values(), default=due_s) + QUICK_LOOK_S,
                view.detectors.gc_pause.look_due_s(attempt, silence_began_s(attempt), never_s=due_s),
            )
            wait_s = _wait_due_s(view, attempt, never_s=due_s)
            due_s = min(
                due_s,
                max(quick_s, 0.0 if is_new else self.next_quick_s),
                max(wait_s, 0.0 if is_new else self.next_wait_s),
            )
        return due_s

    def _ask_look(self, view: RunView, now_s: float) -> Sequence[Verdict]:
        attempt = attempt_of(view)
        if self.suspicion is None:
            reason = _reason(view, attempt, now_s)
            self.suspicion = Suspicion(began_s=now_s, reason=reason, next_look_s=now_s, advances=attempt.advances)
        if self.look_since_s is None:
            self.look += 1  # else it is asked for again, under the same number: whichever answer comes first counts
        self.look_since_s = now_s
        return [LookWanted(look=self.look, attempt=attempt.number, reason=self.suspicion.reason)]

    def _ask_again(self, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Its answer went to the supervisor that died."""
        if self.look_since_s is None:
            return ()
        self.look_since_s = now_s
        return [LookWanted(look=self.look, attempt=attempt_of(view).number, reason="asked again")]

    # Looks -------------------------------------------------------------------------------------------------

    def _on_look_taken(self, event: ev.LookTaken, view: RunView, now_s: float) -> Sequence[LookJudged]:
        """Judge the look against the one before."""
        attempt, suspicion = attempt_of(view), self.suspicion
        if suspicion is None or self.look_since_s is None:
            return ()
        if event.look != self.look or event.attempt != attempt.number:
            return ()
        self.look_since_s = None
        if view.is_node_silent:
            suspicion.last.clear()
            suspicion.next_look_s = now_s + view.settings.look_gap_s
            return ()
        if event.folder:
            suspicion.looks.append(event.folder)
        judged = _judge_all(attempt, suspicion, event, view.settings.floor_s)
        if not judged:
            is_early = now_s - silence_began_s(attempt) < view.settings.floor_s
            is_quick = attempt.stopped or is_early or any(look.gc_since_s for look in event.ranks)
            suspicion.next_look_s = now_s + (QUICK_LOOK_S if is_quick else view.settings.look_gap_s)
            return ()
        return [LookJudged({j.global_rank: j for j in judged}, event.ranks, suspicion.looks, event)]

    def _on_look_judged(self, seen: LookJudged, view: RunView, now_s: float) -> Sequence[Verdict]:
        """A hang is acted on once it has lasted as long as its kind deserves."""
        suspicion = self.suspicion
        assert suspicion is not None
        ended = [n for n, rank in attempt_of(view).ranks.items() if rank.exitcode == 0]
        matched = match(seen.event.ranks)
        found = find(list(seen.by_rank.values()), ended, view.settings, matched)
        waits = RankActivity.WAITING
        suspicion.places = {r: j.place for r, j in seen.by_rank.items() if j.place and j.doing is not waits}
        if found is None:
            return self._nothing_found(view, list(seen.by_rank.values()), now_s)
        if found.is_on_devices and not found.culprits:
            found = with_sensors(view, found)
        return self._found(view, found, JudgedSnapshot(seen.by_rank, seen.event, matched), now_s)

    def _found(self, view: RunView, found: Finding, seen: JudgedSnapshot, now_s: float) -> Sequence[Verdict]:
        """It looks like a hang: a verdict once that has been so for long enough, and was seen so twice in a row."""
        suspicion = self.suspicion
        assert suspicion is not None
        silent_s = now_s - silence_began_s(attempt_of(view))
        is_sure = found.is_proof or found.is_certain or found.doing is RankActivity.COLLECTING
        if not is_sure and silent_s < view.settings.floor_s:
            self._no_proof(view, now_s)
            return ()
        lasted_s = patience.told_s(self, view, found, seen.event.ranks, now_s)
        left_s = patience.left_s(self, view, found, seen, now_s)
        key = f"{found.cause}:{found.culprits}:{found.told}:{found.is_native}"
        suspicion.found_times = suspicion.found_times + 1 if key == suspicion.found_key else 1
        suspicion.found_key = key
        suspicion.was_native = suspicion.was_native or found.is_native
        # One odd look at native code, which may compute for long, makes two pairs that say otherwise.
        wanted = NATIVE_TIMES if suspicion.was_native and not found.is_native else TIMES
        is_confirmed = found.is_proof or suspicion.found_times >= wanted
        if suspicion.is_forced or (left_s <= 0.05 and is_confirmed):
            return hang_verdicts.verdict(self, view, found, seen, lasted_s=lasted_s, now_s=now_s)
        verdicts: Sequence[Verdict] = ()
        if is_confirmed:
            verdicts = stalls.on_found(self, view, found, seen, lasted_s=lasted_s, left_s=left_s, now_s=now_s)
        suspicion.busy_looks = suspicion.busy_looks + 1 if found.doing in DOUBTFUL else 0
        # Soon enough to tell and to decide in time, seldom enough to cost nothing.
        shortest_s = QUICK_LOOK_S if is_confirmed or found.is_certain else view.settings.look_gap_s
        due_s = [left_s, _wait_s(view, suspicion)]
        if suspicion.stall is None:
            due_s.append(stalls.tell_s(view, found) - silent_s)
        suspicion.next_look_s = now_s + max(shortest_s, min(due_s))
        return verdicts

    def _nothing_found(self, view: RunView, judged: list[Judgement], now_s: float) -> Sequence[Verdict]:
        """Somebody gets somewhere, or seems to: look again later, ever more seldom unless it may be in a loop."""
        suspicion = self.suspicion
        assert suspicion is not None
        if suspicion.is_forced:
            return [Ended()]
        verdicts = stalls.on_nothing_found(self, view, suspicion, now_s)
        suspicion.found_key, suspicion.found_times = "", 0
        if now_s - silence_began_s(attempt_of(view)) < view.settings.floor_s:
            self._no_proof(view, now_s)
            return verdicts
        suspicion.busy_looks = 0 if may_loop(suspicion.loops, judged) else suspicion.busy_looks + 1
        suspicion.next_look_s = now_s + _wait_s(view, suspicion)
        return verdicts


def _wait_due_s(view: RunView, attempt: AttemptView, never_s: float) -> float:
    """When a rank that waits deserves a look, floor or not: what it waits in may be proof.

    The longer of a run's gaps do not count: they are learned in the start's rush, in evaluations, or on a busy node.
    Looks that find no proof come ever more seldom.
    """
    if not attempt.waiting or attempt.alive < 2:
        return never_s
    return silence_began_s(attempt) + min(max(WAIT_LOOK_S, FACTOR * view.gaps.median_s), view.settings.floor_s)


def _reason(view: RunView, attempt: AttemptView, now_s: float) -> str:
    silent_s = now_s - silence_began_s(attempt)
    if attempt.stopped:
        return "a rank is stopped"
    if view.detectors.gc_pause.look_due_s(attempt, silence_began_s(attempt), never_s=now_s + 1) <= now_s:
        return "a collection takes long"
    if attempt.waiting and silent_s < view.settings.floor_s:
        return "a rank waits"
    return f"no progress for {silent_s:.0f} s"


def _judge_all(attempt: AttemptView, suspicion: Suspicion, event: ev.LookTaken, floor_s: float) -> list[Judgement]:
    """Judge every living rank against the look before; empty where there is none of a rank yet.

    A first look vouches for floor_s before it: what was before that, in a silence that began earlier, nobody has seen.
    """
    judged = []
    is_whole = True
    for look in event.ranks:
        rank = look.global_rank
        old, suspicion.last[rank] = suspicion.last.get(rank), look
        suspicion.unmoved_since_s.setdefault(rank, look.at_s - floor_s)
        if old is None or old.process.pid != look.process.pid or look.at_s <= old.at_s:
            is_whole = False
            continue
        judgement = judge(old, look, has_ended=rank in attempt.ranks and attempt.ranks[rank].has_ended)
        judgement = over_looks(suspicion.loops, judgement, old, look, suspicion.unmoved_since_s[rank])
        judgement = with_device(judgement, old, look)
        judgement = _with_waking(suspicion, judgement)
        judged.append(judgement)
        if judgement.doing is RankActivity.SPINNING and rank in suspicion.loops:
            suspicion.unmoved_since_s[rank] = suspicion.loops[rank].began_s(look.at_s)
        if judgement.doing is RankActivity.BUSY:
            suspicion.unmoved_since_s[rank] = suspicion.moved_s[rank] = look.at_s
    if not is_whole:
        return []
    seen = {look.global_rank for look in event.ranks}
    for number, known in attempt.ranks.items():
        if number not in seen and known.exitcode is None:
            judged.append(unlooked(number, event.missing.get(number, "")))
    return judged


def _with_waking(suspicion: Suspicion, judgement: Judgement) -> Judgement:
    """The judgement on a rank that sleeps, with whether it has been seen to wake up since anything else moved."""
    rank = judgement.global_rank
    if judgement.doing is not RankActivity.IDLE:
        suspicion.awake.discard(rank)
    elif judgement.is_awake:
        suspicion.awake.add(rank)
    elif rank in suspicion.awake:
        return msgspec.structs.replace(judgement, is_awake=True)
    return judgement


def with_device(judgement: Judgement, before: RankLook, after: RankLook) -> Judgement:
    """The judgement, where what the rank really does is to wait for a collective of its device."""
    # A device is at work, too, while its kernels only wait for those of others.
    may_wait = judgement.doing in _ON_DEVICE or judgement.is_held_by_device
    if may_wait and (op := waits_on_device(before, after)):
        reason = f"its device has not completed {op}"
        return msgspec.structs.replace(
            judgement, doing=RankActivity.WAITING, reason=reason, waits_in=op, device_wait=""
        )
    return judgement


def _wait_s(view: RunView, suspicion: Suspicion) -> float:
    return min(view.settings.look_every_s * float(1.3**suspicion.busy_looks), BUSY_LOOK_MAX_S)
