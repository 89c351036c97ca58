"""Exits, crashes, stopping an attempt, and what comes after it.

A rank that falls stops the attempt at once; why it fell is told when the exits of the moment have been read. When
nothing of the attempt is alive, policy decides: the next attempt, or the end.
"""

from __future__ import annotations

import math
from typing import Any

from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.actions import (
    Action,
    ChooseCheckpoint,
    FinishRun,
    ReadExits,
    Say,
    StartAttempt,
    StopAttempt,
    Summary,
)
from guardrun.supervisor.core.crash import Blame, Fall, blame, is_peer_lost, is_repeatable, is_shared_memory
from guardrun.supervisor.core.evidence import most_telling
from guardrun.supervisor.core.incidents import change, culprits_of, open_incident, write
from guardrun.supervisor.core.ledger import DETECTING, OTHER, STARTING, STOPPING
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.core.sentences import ADVICE, who
from guardrun.supervisor.core.state import Attempt, Crash, RankState, State

SETTLE_S = 0.4
"""After the first fall: others that fall of the same cause do so within this."""
CAUSE_BY_S = 1.8
"""A cause is told by then even if ranks are still being stopped (target: 2 s)."""
RAISED_MARGIN_S = 1.0
"""A rank that makes progress so long after an exception that "nobody caught" has caught it after all."""
RAISED_GRACE_S = 20.0
"""A rank that raised but does not end (its exit handlers, a teardown that hangs) counts as fallen after this."""
ANSWER_S = 30.0
"""An order that nobody answered for this long is given again."""
CHOICE_TRIES = 3
DISK_FULL_BYTES = 1024 * 1024
_CRASHED = (-4, -6, -7, -8, -11, 132, 134, 135, 136, 139)
"""Exit codes of signals that a fault raises: a stop doesn't send them."""

NO_TRACE = Blame(
    cause="unknown",
    culprits=[],
    confidence=0.3,
    key="",
    exit_code=1,
    what="ended",
    why_nobody="no rank's end was seen",
)


def _attempt(state: State) -> Attempt:
    assert state.attempt is not None
    return state.attempt


# Facts about exits ------------------------------------------------------------------------------------


def on_rank_exited(state: State, event: ev.RankExited, now_s: float) -> list[Action]:
    attempt = _attempt(state)
    rank = attempt.ranks.get(event.global_rank)
    if event.attempt != attempt.number or rank is None or rank.exitcode is not None:
        return []
    _note_exit(attempt, rank, event.exitcode, event.at_s)
    if state.phase is not Phase.RUNNING:
        return []
    if event.exitcode != 0:
        attempt.fell_s = min(attempt.fell_s or event.at_s, event.at_s)
        began_s = min(state.crash.began_s if state.crash else event.at_s, event.at_s)
        state.crash = Crash(began_s=began_s, decide_by_s=now_s + SETTLE_S)
    if not attempt.fell_s:
        return []
    if state.is_held and attempt.alive:
        return [Say(text="a rank fell; held, so the others are left as they are", level="warn")]
    return _stop(state, attempt.fell_s, now_s)


def _note_exit(attempt: Attempt, rank: RankState, exitcode: int, at_s: float) -> None:
    number = rank.rank.global_rank
    rank.exitcode, rank.exited_s, rank.state = exitcode, at_s, "X"
    attempt.stopped.pop(number, None)
    attempt.collecting.pop(number, None)
    attempt.alive -= 1


def on_rank_raised(state: State, event: ev.RankRaised, now_s: float) -> list[Action]:
    attempt = _attempt(state)
    rank = attempt.ranks.get(event.global_rank)
    if event.attempt == attempt.number and rank is not None:
        rank.error = event.error
        if state.phase is Phase.RUNNING and state.crash is None:
            # It normally exits within milliseconds, which starts the stop; this is for the one that does not.
            state.crash = Crash(began_s=event.error.at_s or now_s, decide_by_s=now_s + RAISED_GRACE_S)
    return []


def on_rank_ended(state: State, event: ev.RankEnded, now_s: float) -> list[Action]:
    attempt = _attempt(state)
    if event.attempt == attempt.number and event.global_rank in attempt.ranks:
        attempt.ranks[event.global_rank].has_ended = True
    return []


def stop_for(state: State, incident_id: str, *, onset_s: float, now_s: float) -> list[Action]:
    """Stop the attempt because of an incident that has been told."""
    state.verdict_incident = incident_id
    state.exit_code = 1
    return _stop(state, onset_s, now_s)


def _stop(state: State, onset_s: float, now_s: float) -> list[Action]:
    attempt = _attempt(state)
    state.phase = Phase.STOPPING
    state.suspicion, state.look_since_s = None, None
    state.ordered_s = attempt.stop_began_s = now_s
    state.ledger.reclassify(DETECTING, max(onset_s, attempt.started_s), now_s)
    state.ledger.switch(STOPPING, now_s)
    return [StopAttempt(attempt=attempt.number, grace_s=state.settings.stop_grace_s)]


def on_unheld(state: State, now_s: float) -> list[Action]:
    """Hands are back on: a rank that fell (or raised, which has been told) meanwhile stops the rest now."""
    if not _attempt(state).fell_s and not state.verdict_incident:
        return []
    return _stop(state, _attempt(state).fell_s or now_s, now_s)


def on_exits_read(state: State, event: ev.ExitsRead, now_s: float) -> list[Action]:
    crash = state.crash
    if crash is None or event.attempt != _attempt(state).number:
        return []
    if crash.is_stale:
        crash.is_stale = False
        return _ask_exits(state, crash, now_s)
    crash.traces, crash.oom_kills, crash.oom_pids = event.traces, event.oom_kills, event.oom_pids
    crash.disk_free_bytes = event.disk_free_bytes
    crash.is_asked = False
    for trace in event.traces:
        rank = _attempt(state).ranks.get(trace.global_rank)
        if rank is not None and trace.error and rank.error is None:
            rank.error = trace.error
    return _tell_crash(state, now_s)


def _tell_crash(state: State, now_s: float) -> list[Action]:
    """Open the crash's incident, once what is known says enough (or it is time)."""
    crash, attempt = state.crash, _attempt(state)
    assert crash is not None
    falls = _falls(state, crash)
    found = blame(falls) if falls else NO_TRACE
    if state.verdict_incident:
        state.crash = None
        return _retell_crash(state, crash, found, falls) + _next(state, now_s)
    is_sure = bool(found.culprits) and found.cause != "exit_code"
    if not is_sure and attempt.alive and now_s - crash.began_s < CAUSE_BY_S:
        # Ranks that lost a peer, or whose error nobody could read: the one to blame may still be dying.
        crash.decide_by_s = max(min(now_s + SETTLE_S, crash.began_s + CAUSE_BY_S), now_s)
        return []
    actions = _open_crash(state, crash, found, falls, now_s)
    state.crash = None
    return actions + (_next(state, now_s) if state.phase is Phase.STOPPING else [])


def _falls(state: State, crash: Crash) -> list[Fall]:
    attempt = _attempt(state)
    tails = {t.global_rank: t.stderr_tail for t in crash.traces}
    full = any(0 <= free < DISK_FULL_BYTES for free in crash.disk_free_bytes.values())
    falls = []
    for number, rank in attempt.ranks.items():
        if rank.exitcode is None and rank.error is None:
            continue
        falls.append(
            Fall(
                global_rank=number,
                exitcode=rank.exitcode,
                at_s=rank.exited_s or (rank.error.at_s if rank.error else 0.0),
                stopped_by_us=_is_ours(state, rank),
                error=rank.error,
                stderr_tail=tails.get(number, ""),
                was_oom_killed=_was_oom_killed(rank, crash),
                is_disk_full=full,
            )
        )
    return falls


def _is_ours(state: State, rank: RankState) -> bool:
    """Whether the rank ended because the attempt was being stopped.

    A crash that was under way then (a core dump takes its time) is not ours, nor a SIGKILL that we had not sent yet.
    """
    began_s = _attempt(state).stop_began_s
    if not began_s or rank.exited_s <= began_s or rank.exitcode in (None, *_CRASHED):
        return False
    if rank.exitcode in (-9, 137):
        return rank.exited_s > began_s + state.settings.stop_grace_s * 0.9
    return rank.error is None or rank.error.at_s > began_s


def _was_oom_killed(rank: RankState, crash: Crash) -> bool:
    if rank.exitcode not in (-9, 137):
        return False
    return rank.rank.pid in crash.oom_pids or (crash.oom_kills > 0 and not crash.oom_pids)


def _open_crash(state: State, crash: Crash, found: Blame, falls: list[Fall], now_s: float) -> list[Action]:
    summary = _crash_sentence(state, found)
    incident = open_incident(
        state,
        kind="crash",
        cause=found.cause,
        confidence=found.confidence,
        summary=summary,
        culprits=found.culprits,
        onset_s=crash.began_s,
        now_s=now_s,
        evidence=_crash_evidence(state, crash, found, falls),
        looks=[],
        action="restart" if state.settings.act and not state.is_held else "none",
    )
    state.verdict_incident = incident.id
    state.exit_code = found.exit_code
    return [Say(text=f"incident {incident.id}: {summary}", level="bad"), write(state, incident.id, is_new=True)]


def _retell_crash(state: State, crash: Crash, found: Blame, falls: list[Fall]) -> list[Action]:
    """An incident without a culprit, told because it was time, gets one: it took long to die."""
    if not crash.incident_id or not found.culprits:
        return []
    summary = _crash_sentence(state, found)
    state.exit_code = found.exit_code
    told = change(
        state,
        crash.incident_id,
        cause=found.cause,
        confidence=found.confidence,
        summary=summary,
        culprits=culprits_of(_attempt(state), found.culprits),
        evidence=_crash_evidence(state, crash, found, falls),
        advice=ADVICE.get(found.cause, ""),
    )
    return [Say(text=f"incident {crash.incident_id}: {summary}", level="bad"), told]


def _crash_evidence(state: State, crash: Crash, found: Blame, falls: list[Fall]) -> dict[str, Any]:
    attempt = _attempt(state)
    by_rank = {fall.global_rank: fall for fall in falls}
    evidence: dict[str, Any] = {
        "exits": [
            {
                "rank": n,
                "pid": attempt.ranks[n].rank.pid,
                "exitcode": by_rank[n].exitcode,
                "error": f"{e.error}: {e.message[:2000]}" if (e := by_rank[n].error) else None,
                "stopped_by_guardrun": by_rank[n].stopped_by_us,
                "lost_a_peer": is_peer_lost(by_rank[n]),
            }
            for n in most_telling(sorted(by_rank), found.culprits)
        ],
        "oom_kills": crash.oom_kills,
        "key": found.key,
    }
    if crash.disk_free_bytes and found.cause in ("disk_full", "bus_error"):
        evidence["disk_free_bytes"] = crash.disk_free_bytes
    if found.error:
        evidence["error"] = found.error.error
        evidence["traceback"] = found.error.traceback
    if found.cause == "disk_full" and is_shared_memory(found.error):
        evidence["folder"] = "/dev/shm"
    return evidence


def _crash_sentence(state: State, found: Blame) -> str:
    attempt = _attempt(state)
    step = f" at step {attempt.step}" if attempt.step else ""
    if found.culprits:
        return f"{who(attempt, found.culprits)} {found.what}{step}."
    if found is NO_TRACE:
        return f"The attempt ended{step}, and {found.why_nobody}."
    fallen = sorted(n for n, r in attempt.ranks.items() if r.exitcode not in (None, 0) or r.error)
    return f"{who(attempt, fallen)} {found.what}{step}, but who is to blame cannot be told: {found.why_nobody}."


# Deadlines ---------------------------------------------------------------------------------------------


def deadline_s(state: State) -> float | None:
    """When something is due about exits, orders or answers."""
    times = []
    if state.crash:
        times.append(state.crash.decide_by_s if not state.crash.is_asked else state.crash.decide_by_s + ANSWER_S)
    if _order_due_s(state) < math.inf:
        times.append(_order_due_s(state))
    return min(times) if times else None


def _order_due_s(state: State) -> float:
    """When an order without an answer is given again."""
    if state.phase in (Phase.STARTING, Phase.CHOOSING):
        return state.ordered_s + ANSWER_S
    if state.phase is Phase.STOPPING and state.attempt and state.attempt.ended_s is None:
        return state.ordered_s + state.settings.stop_grace_s + ANSWER_S
    # While the user's signal ends the ranks (ENDING), and while what well-ended ranks have left behind is cleared up,
    # it is the launcher that keeps the time.
    return math.inf


def on_tick(state: State, now_s: float) -> list[Action]:
    actions: list[Action] = []
    if state.crash and now_s >= state.crash.decide_by_s:
        actions += _crash_due(state, now_s)
    if now_s >= _order_due_s(state):
        actions += order_again(state, now_s)
    return actions


def _crash_due(state: State, now_s: float) -> list[Action]:
    crash, attempt = state.crash, _attempt(state)
    assert crash is not None
    if crash.is_asked and now_s < crash.decide_by_s + ANSWER_S:
        return []
    if state.phase is Phase.RUNNING and not attempt.fell_s and attempt.alive:
        # Raised, and did not end by itself.
        if not _has_raised(attempt):
            state.crash = None
            return []
        if not state.is_held:
            return [*_stop(state, crash.began_s, now_s), *_ask_exits(state, crash, now_s)]
    return _ask_exits(state, crash, now_s)


def _has_raised(attempt: Attempt) -> bool:
    """Whether a rank has really failed. One that trained on has only shown an exception, by sys.excepthook, say."""
    for rank in attempt.ranks.values():
        error = rank.error
        if error and error.at_s and rank.exitcode is None and rank.progress_s > error.at_s + RAISED_MARGIN_S:
            rank.error = None
    return any(rank.error for rank in attempt.ranks.values())


def _ask_exits(state: State, crash: Crash, now_s: float) -> list[Action]:
    crash.is_asked, crash.decide_by_s = True, now_s
    return [ReadExits(attempt=_attempt(state).number)]


def order_again(state: State, now_s: float) -> list[Action]:
    """Repeat the order that is outstanding; all of them are idempotent."""
    state.ordered_s = now_s
    if state.phase is Phase.STARTING:
        return [StartAttempt(attempt=state.next_attempt, checkpoint=state.checkpoint)]
    if state.phase is Phase.STOPPING:
        return [StopAttempt(attempt=_attempt(state).number, grace_s=state.settings.stop_grace_s)]
    if state.phase is Phase.CHOOSING:
        return [ChooseCheckpoint(choice=state.choice)]  # the same, so that a slow answer counts
    return []


# After the stop ------------------------------------------------------------------------------------------


def on_attempt_stopped(state: State, event: ev.AttemptStopped, now_s: float) -> list[Action]:
    attempt = _attempt(state)
    if event.attempt != attempt.number:
        return []
    for number, code in event.exitcodes.items():
        rank = attempt.ranks.get(number)
        if rank is not None and rank.exitcode is None:
            _note_exit(attempt, rank, code, now_s)
    attempt.alive = 0
    attempt.stopped, attempt.collecting = {}, {}
    attempt.ended_s = now_s
    state.suspicion, state.look_since_s = None, None
    actions: list[Action] = []
    if event.survivors:
        actions.append(Say(text=f"processes {event.survivors} could not be ended, not even by SIGKILL", level="warn"))
    if state.signum:
        return actions + _end(state, "interrupted", 128 + state.signum, f"signal {state.signum}", now_s)
    if state.phase is Phase.RUNNING:
        state.phase = Phase.STOPPING
        state.ledger.switch(STOPPING, now_s)
    if state.crash is None and all(_ended_well(state, r) for r in attempt.ranks.values()):
        return actions + _end(state, "finished", 0, "training ended well", now_s)
    if state.crash is None and not state.verdict_incident:
        state.crash = Crash(began_s=attempt.fell_s or now_s, decide_by_s=now_s)
    if state.crash is None and state.verdict_incident:
        told = state.incidents[state.verdict_incident]
        if told.kind == "crash" and not told.culprits:
            state.crash = Crash(began_s=told.onset_s, decide_by_s=now_s, incident_id=told.id)
    if state.crash is None:
        return actions + _next(state, now_s)
    # All exits are known now: read what they left at once.
    state.crash.is_stale = state.crash.is_asked
    return [*actions, *([] if state.crash.is_asked else _ask_exits(state, state.crash, now_s))]


def _ended_well(state: State, rank: RankState) -> bool:
    """Whether a rank's script came to its end; its process may have lingered until it was stopped."""
    return rank.exitcode == 0 or (rank.has_ended and rank.error is None and _is_ours(state, rank))


def _next(state: State, now_s: float) -> list[Action]:
    """Both the cause is told and nothing is alive: restart, or give up."""
    attempt = _attempt(state)
    if attempt.ended_s is None or not state.verdict_incident:
        return []
    incident = state.incidents[state.verdict_incident]
    reason, poison = _why_not(state)
    attempt.incident_id = incident.id
    record_attempt(state, incident.cause)
    state.verdict_incident = ""
    if reason:
        actions = [change(state, incident.id, action="give_up" if state.settings.act else "none")]
        if poison:
            actions.append(_poison(state, incident.id))
        if state.settings.act:
            actions.append(Say(text=f"giving up: {reason}", level="bad"))
        outcome = "gave_up" if state.settings.act else "failed"
        return actions + _end(state, outcome, state.exit_code or 1, reason, now_s)
    state.restarts += 1
    state.next_attempt = attempt.number + 1
    state.resuming_incident = incident.id
    state.ledger.switch(STARTING, now_s)
    return [change(state, incident.id, action="restart"), *choose(state, now_s)]


def _why_not(state: State) -> tuple[str, bool]:
    """Why there is no next attempt (empty: there is), and whether it is a poison step. Books progress."""
    attempt, incident = _attempt(state), state.incidents[state.verdict_incident]
    key = str(incident.evidence.get("key", ""))
    is_same_step = state.last_stop_step == attempt.step
    is_same = bool(key) and key == state.last_error_key and is_same_step
    is_no_further = attempt.number > 0 and bool(state.attempts) and attempt.step <= state.best_step
    if attempt.has_hooks:
        state.no_progress = state.no_progress + 1 if is_no_further else 0
        if not is_no_further or not is_same_step:
            state.same_step = 0
        else:
            state.same_step += 1
    state.last_error_key, state.last_stop_step = key, attempt.step
    if not state.settings.act:
        return "[policy] act = false", False
    if state.settings.is_torchrun_agent:
        return "torchrun's agent has ended", False
    if incident.kind == "crash":
        found = Blame(
            cause=incident.cause,
            culprits=[],
            confidence=1,
            key=key,
            exit_code=0,
            what="",
            error=ev.ErrorRecord(error=str(incident.evidence.get("error", ""))),
        )
        repeat = is_repeatable(found, is_same)
        if repeat:
            return repeat, False
    if state.no_progress >= state.settings.max_no_progress > 0:
        is_poison = state.same_step >= state.settings.max_no_progress
        where = f" than step {state.best_step}" if state.best_step else ""
        return f"{state.no_progress} restarts in a row got no further{where}", is_poison
    if state.restarts >= state.settings.max_restarts:
        return _used_up(state.settings.max_restarts), False
    return "", False


def _used_up(max_restarts: int) -> str:
    few = {0: "no restart is allowed (max_restarts is 0)", 1: "the only restart is used up"}
    return few.get(max_restarts, f"all {max_restarts} restarts are used up")


def _poison(state: State, incident_id: str) -> Action:
    """Retell the last stop as what it is: the same step stops the run every time."""
    incident = state.incidents[incident_id]
    evidence = {
        **incident.evidence,
        "own_kind": incident.kind,
        "own_cause": incident.cause,
        "own_summary": incident.summary,
    }
    summary = (
        f"Step {_attempt(state).step} has stopped the run {state.same_step + 1} times in a row, "
        f"the last time so: {incident.summary}"
    )
    return change(
        state,
        incident_id,
        kind="hang",
        cause="poison_step",
        summary=summary,
        evidence=evidence,
        advice=ADVICE["poison_step"],
    )


def on_attempt_restarted(state: State, event: ev.AttemptStarted, now_s: float) -> list[Action]:
    """torchrun's own agent started its workers anew: the old attempt is over, whatever was being found out about it."""
    old = _attempt(state)
    if event.attempt <= old.number:
        return []
    actions: list[Action] = []
    if state.crash is not None and (falls := _falls(state, state.crash)):
        actions += _open_crash(state, state.crash, blame(falls), falls, now_s)
    state.crash = None
    outcome = "restarted"
    if state.verdict_incident:
        actions.append(change(state, state.verdict_incident, action="restart"))
        outcome, old.incident_id = state.incidents[state.verdict_incident].cause, state.verdict_incident
        state.verdict_incident = ""
    old.ended_s = now_s
    record_attempt(state, outcome)
    state.restarts += 1
    state.ledger.switch(STARTING, now_s)
    state.next_attempt = event.attempt
    return actions + on_attempt_started(state, event, now_s)


def on_attempt_started(state: State, event: ev.AttemptStarted, now_s: float) -> list[Action]:
    """Ranks are alive: watch them."""
    if event.attempt != state.next_attempt or (state.attempt and state.attempt.number == event.attempt):
        return []
    state.attempt = Attempt(
        number=event.attempt,
        started_s=now_s,
        resumed_from=event.resumed_from,
        ranks={r.global_rank: RankState(rank=r) for r in event.ranks},
        alive=len(event.ranks),
    )
    state.suspicion, state.look_since_s, state.crash = None, None, None
    if state.signum:
        state.phase = Phase.ENDING
        return []
    state.phase = Phase.RUNNING
    return []


def on_attempt_not_started(state: State, event: ev.AttemptNotStarted, now_s: float) -> list[Action]:
    """The machine refused (no memory, no ports, no interpreter): the same again would be refused again."""
    if event.attempt != state.next_attempt:
        return []
    say = Say(text=f"attempt {event.attempt} could not be started: {event.error}", level="bad")
    return [say, *_end(state, "failed", 1, f"could not start the ranks: {event.error}", now_s)]


def record_attempt(state: State, outcome: str) -> None:
    """Add the attempt that is over to the history; once."""
    attempt = _attempt(state)
    if not state.attempts or state.attempts[-1]["attempt"] != attempt.number:
        attempt.outcome = outcome
        state.attempts.append(attempt_record(attempt))
        state.best_step = max(state.best_step, attempt.step)


def attempt_record(attempt: Attempt) -> dict[str, Any]:
    resumed = attempt.resumed_from
    return {
        "attempt": attempt.number,
        "started_s": round(attempt.started_s, 3),
        "ended_s": round(attempt.ended_s or attempt.started_s, 3),
        "outcome": attempt.outcome,
        "first_step": attempt.first_step,
        "last_step": attempt.step or None,
        "resumed_from": {"path": resumed.path, "step": resumed.step} if resumed else None,
        "incident": attempt.incident_id or None,
    }


def choose(state: State, now_s: float) -> list[Action]:
    """Have the checkpoint for the next attempt chosen."""
    if state.phase is not Phase.CHOOSING:
        state.choice_tries = 0
    state.phase = Phase.CHOOSING
    state.choice += 1
    state.choice_tries += 1
    state.ordered_s = now_s
    return [ChooseCheckpoint(choice=state.choice)]


def on_checkpoint_chosen(state: State, event: ev.CheckpointChosen, now_s: float) -> list[Action]:
    if event.choice != state.choice:
        return []
    if event.error:
        if state.choice_tries < CHOICE_TRIES:
            return choose(state, now_s)
        # Starting anew where there may be checkpoints would overwrite them: that is not ours to decide.
        return _end(state, "gave_up", 1, f"no checkpoint could be chosen: {event.error}", now_s)
    state.checkpoint = event.checkpoint
    actions: list[Action] = [
        Say(text=f"{word} checkpoint {s.path}: {s.reason}", level="warn")
        for word, found in (("skipped", event.skipped), ("beware of", event.warnings))
        for s in found[:3]
    ]
    if state.resuming_incident:
        evidence = state.incidents[state.resuming_incident].evidence
        if event.skipped:
            skipped = [{"path": s.path, "reason": s.reason} for s in event.skipped]
            evidence = {**evidence, "skipped_checkpoints": skipped}
        actions.append(change(state, state.resuming_incident, resumed_from=event.checkpoint, evidence=evidence))
        state.resuming_incident = ""
    if state.attempt:
        where = (
            f"resuming from {event.checkpoint.path} (step {event.checkpoint.step})"
            if event.checkpoint
            else "no whole checkpoint, so from the beginning"
        )
        actions.append(Say(text=f"starting attempt {state.next_attempt}: {where}", level="info"))
    state.phase = Phase.STARTING
    state.ordered_s = now_s
    return [*actions, StartAttempt(attempt=state.next_attempt, checkpoint=event.checkpoint)]


def on_stop_requested(state: State, event: ev.StopRequested, now_s: float) -> list[Action]:
    """The launcher is already stopping the ranks; wait for it to say that nothing is left."""
    if state.phase is Phase.ENDING:
        return []
    state.signum = event.signum
    state.suspicion, state.look_since_s, state.crash = None, None, None
    state.ledger.switch(OTHER, now_s)
    if state.attempt is None or state.attempt.ended_s is not None:
        return _end(state, "interrupted", 128 + event.signum, f"signal {event.signum}", now_s)
    state.phase = Phase.ENDING
    return []


def _end(state: State, outcome: str, exit_code: int, reason: str, now_s: float) -> list[Action]:
    """Finish the run."""
    if state.attempt is not None:
        state.attempt.ended_s = state.attempt.ended_s or now_s
        record_attempt(state, outcome)
    state.ledger.switch(OTHER, now_s)
    state.phase = Phase.ENDED
    state.outcome, state.exit_code, state.give_up_reason = outcome, exit_code, reason
    return [FinishRun(exit_code=exit_code, summary=summary(state, now_s))]


def summary(state: State, now_s: float) -> Summary:
    """summary.json's content as of now."""
    return Summary(
        outcome=state.outcome,
        exit_code=state.exit_code,
        reason=state.give_up_reason,
        attempts=state.attempts,
        incidents=[
            {
                "id": i.id,
                "kind": i.kind,
                "cause": i.cause,
                "summary": i.summary,
                "action": i.action,
                "attempt": i.attempt,
            }
            for i in state.incidents.values()
        ],
        restarts=state.restarts,
        wall_s=round(now_s - state.opened_s, 3),
        goodput=round(state.ledger.goodput(now_s), 4),
        lost_s=state.ledger.lost_s(now_s),
        last_step=state.best_step or None,
    )
