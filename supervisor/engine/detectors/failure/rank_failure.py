"""Ranks that fall: the rest is stopped at once; why is told when the exits of the moment have been read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.detectors.failure.crash_verdict import detected, find_root_cause, retold
from guardrun.supervisor.engine.detectors.failure.falls import falls_of
from guardrun.supervisor.engine.detectors.failure.memory import Crash
from guardrun.supervisor.engine.failures.root_cause import blame
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.derived_events import AttemptReplaced, ExitBooked, ExitsExplained, TickBegan
from guardrun.supervisor.engine.model.run_view import AttemptView, RankView, RunView, attempt_of
from guardrun.supervisor.engine.model.transitions import Phase, PhaseChanged
from guardrun.supervisor.engine.model.verdicts import ExceptionsCaught, ExitsWanted, Remark, StopWanted, Verdict

SETTLE_S = 0.4
"""After the first fall: others that fall of the same cause do so within this."""
CAUSE_BY_S = 1.8
"""A cause is told by then even if ranks are still being stopped (target: 2 s)."""
RAISED_MARGIN_S = 1.0
"""A rank that makes progress so long after an exception that "nobody caught" has caught it after all."""
RAISED_GRACE_S = 20.0
"""A rank that raised but does not end (its exit handlers, a teardown that hangs) counts as fallen after this."""
ANSWER_S = 30.0
"""Exits that have not been read for so long are asked for again."""
SILENT_NODE_S = 1.0
"""Between looks at ranks that lost a peer while a node is not heard: it is back in a moment, or it is lost."""


class RankFailure(msgspec.Struct, kw_only=True):
    """Has a rank failed, and what did it die of?

    Exits and exceptions are booked before they are seen here (engine/progress.py). A crash is forgotten untold where
    others know why ranks fell (ExitsExplained), and where the run comes to a phase in which it can't be told any more.
    """

    observes: ClassVar[tuple[type, ...]] = (
        ExitBooked,
        ev.UncaughtExceptionReported,
        ev.ExitsRead,
        ev.AttemptStopped,
        AttemptReplaced,
        ExitsExplained,
        PhaseChanged,
        TickBegan,
        ev.HoldSet,
        ev.TimeSkipped,
        ev.SupervisorRestarted,
    )
    crash: Crash | None = None
    """The one that is under way: the restart waits until it is told."""

    def observe(self, event: Any, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take in what happens to ranks; most of it says something only while a crash is under way."""
        if isinstance(event, ExitBooked):
            return self._on_exit(event, view, now_s)
        if isinstance(event, ev.UncaughtExceptionReported):
            self._on_raised(event, view, now_s)
        elif isinstance(event, ev.AttemptStopped):
            return self._on_attempt_stopped(event, view, now_s)
        elif isinstance(event, ev.HoldSet):
            return self._on_hold_set(view, now_s)
        elif self.crash is not None:
            return self._on_crash(event, self.crash, view, now_s)
        return ()

    def _on_crash(self, event: object, crash: Crash, view: RunView, now_s: float) -> Sequence[Verdict]:
        """What goes on with the crash that is under way."""
        if isinstance(event, ev.ExitsRead):
            return self._on_exits_read(event, crash, view, now_s)
        if isinstance(event, TickBegan):
            return self._on_tick(crash, view, now_s)
        if isinstance(event, ev.TimeSkipped):
            crash.decide_by_s += event.gap_s
        elif isinstance(event, ev.SupervisorRestarted):
            # What was read went to the supervisor that died.
            return [_want_exits(crash, view, now_s)] if crash.is_asked else ()
        elif isinstance(event, AttemptReplaced):
            self.crash = None
            falls = falls_of(view, crash)
            return [detected(view, crash, blame(falls, nodes=view.hosts), falls)] if falls else ()
        elif isinstance(event, ExitsExplained) or (isinstance(event, PhaseChanged) and not _may_tell(event.after)):
            self.crash = None
        return ()

    def takes_exits(self, attempt: int, view: RunView) -> bool:
        """Whether what was read of an attempt's exits is wanted: a crash of it is under way, and all have been read."""
        is_current = view.attempt is not None and view.attempt.number == attempt
        return is_current and self.crash is not None and not self.crash.is_stale

    # Facts -------------------------------------------------------------------------------------------------

    def _on_exit(self, event: ExitBooked, view: RunView, now_s: float) -> Sequence[Verdict]:
        """A rank that fails has the others stopped at once, unless held; the cause is sought SETTLE_S later."""
        attempt = attempt_of(view)
        if event.exitcode != 0:
            began_s = min(self.crash.began_s if self.crash else event.at_s, event.at_s)
            self.crash = Crash(began_s=began_s, decide_by_s=now_s + SETTLE_S)
        if not attempt.fell_s:
            return ()
        if view.is_held and attempt.alive:
            return [Remark(text="a rank fell; held, so the others are left as they are", level="warn")]
        return [StopWanted(since_s=attempt.fell_s)]

    def _on_raised(self, event: ev.UncaughtExceptionReported, view: RunView, now_s: float) -> None:
        """A rank that has not exited RAISED_GRACE_S later counts as fallen."""
        attempt = attempt_of(view)
        is_ours = event.attempt == attempt.number and event.global_rank in attempt.ranks
        if is_ours and view.phase is Phase.RUNNING and self.crash is None:
            # It normally exits within milliseconds, which starts the stop; this is for the one that does not.
            self.crash = Crash(began_s=event.error.at_s or now_s, decide_by_s=now_s + RAISED_GRACE_S)

    def _on_hold_set(self, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Hands are back on: a rank that fell meanwhile (or raised, which is told or is being read) stops the rest."""
        if view.is_held or view.phase is not Phase.RUNNING:
            return ()
        attempt = attempt_of(view)
        is_being_read = self.crash is not None and self.crash.is_asked and attempt.alive > 0
        if not attempt.fell_s and view.verdict is None and not is_being_read:
            return ()
        return [StopWanted(since_s=attempt.fell_s or now_s)]

    def _on_attempt_stopped(self, event: ev.AttemptStopped, view: RunView, now_s: float) -> Sequence[Verdict]:
        """All exits are known now: what they left is read at once, unless it is known why the attempt ended."""
        attempt = attempt_of(view)
        if event.attempt != attempt.number or view.phase is not Phase.STOPPING:
            return ()  # it ended well, or somebody wanted its end
        told = view.verdict
        if self.crash is None and told is None:
            self.crash = Crash(began_s=attempt.fell_s or now_s, decide_by_s=now_s)
        elif self.crash is None and told is not None and told.kind == "crash" and not told.culprits:
            self.crash = Crash(began_s=told.onset_s, decide_by_s=now_s, key=view.verdict_key)
        if self.crash is None:
            return ()
        self.crash.is_stale = self.crash.is_asked
        return () if self.crash.is_asked else [_want_exits(self.crash, view, now_s)]

    def _on_exits_read(self, event: ev.ExitsRead, crash: Crash, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Name the cause from what the ranks left behind; read once more where ranks have ended meanwhile."""
        if event.attempt != attempt_of(view).number:
            return ()
        if crash.is_stale:
            crash.is_stale = False
            return [_want_exits(crash, view, now_s)]
        crash.traces, crash.oom_kills, crash.oom_pids = event.traces, event.oom_kills, event.oom_pids
        crash.disk_free_bytes, crash.readings = event.disk_free_bytes, event.readings
        crash.last_words = event.last_words
        crash.is_asked = False
        return self._report_crash(crash, view, now_s)

    def _report_crash(self, crash: Crash, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Report the crash, once what is known says enough (or it is time)."""
        attempt = attempt_of(view)
        falls = falls_of(view, crash)
        found = find_root_cause(view, crash, falls)
        if view.verdict is not None:
            self.crash = None
            return [retold(view, crash, found, falls)] if crash.key and found.culprits else ()
        is_sure = bool(found.culprits) and found.cause != "exit_code"
        if not found.culprits and view.is_node_silent:
            crash.decide_by_s = now_s + SILENT_NODE_S
            return ()
        if not is_sure and attempt.alive and now_s - crash.began_s < CAUSE_BY_S:
            # Ranks that lost a peer, or whose error nobody could read: the one to blame may still be dying.
            crash.decide_by_s = max(min(now_s + SETTLE_S, crash.began_s + CAUSE_BY_S), now_s)
            return ()
        self.crash = None
        return [detected(view, crash, found, falls)]

    # Deadlines ---------------------------------------------------------------------------------------------

    def next_deadline_s(self, view: RunView) -> float | None:
        """When exits are to be read (again)."""
        if self.crash is None:
            return None
        return self.crash.decide_by_s + (ANSWER_S if self.crash.is_asked else 0.0)

    def _on_tick(self, crash: Crash, view: RunView, now_s: float) -> Sequence[Verdict]:
        due_s = self.next_deadline_s(view)
        if due_s is None or now_s < due_s:
            return ()
        attempt, verdicts = attempt_of(view), list[Verdict]()
        if view.phase is Phase.RUNNING and not attempt.fell_s and attempt.alive:
            # Raised, and did not end by itself.
            caught = _caught(attempt)
            if caught:
                verdicts.append(ExceptionsCaught(global_ranks=caught))
            if not any(rank.error for number, rank in attempt.ranks.items() if number not in caught):
                self.crash = None
                return verdicts
            if not view.is_held:
                verdicts.append(StopWanted(since_s=crash.began_s))
        return [*verdicts, _want_exits(crash, view, now_s)]


def _may_tell(phase: Phase) -> bool:
    """Whether a crash may still be told: elsewhere the attempt has been dealt with, or its end is somebody's wish."""
    return phase in (Phase.RUNNING, Phase.STOPPING)


def _want_exits(crash: Crash, view: RunView, now_s: float) -> ExitsWanted:
    """Have the ranks' last traces read; ExitsRead is the answer."""
    crash.is_asked, crash.decide_by_s = True, now_s
    return ExitsWanted(attempt=attempt_of(view).number)


def _caught(attempt: AttemptView) -> list[int]:
    """Ranks that trained on, and have only shown an exception: by sys.excepthook, say."""
    return [number for number, rank in attempt.ranks.items() if _has_gone_on(rank)]


def _has_gone_on(rank: RankView) -> bool:
    error = rank.error
    if error is None or not error.at_s or rank.exitcode is not None:
        return False
    return rank.progress_s > error.at_s + RAISED_MARGIN_S
