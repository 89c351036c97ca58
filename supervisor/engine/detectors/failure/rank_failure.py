"""Ranks that fall: the rest is stopped at once; why is told when the exits of the moment have been read."""

from __future__ import annotations

from collections import Counter
from typing import Any

from guardrun.supervisor.engine.detectors.failure.crash_evidence import (
    DISK_FULL_BYTES,
    crash_evidence,
    failed_load,
    words,
)
from guardrun.supervisor.engine.failures.exception_chain import error_in_log
from guardrun.supervisor.engine.failures.failure_causes import last_words
from guardrun.supervisor.engine.failures.mismatch_report import explain, last_calls
from guardrun.supervisor.engine.failures.root_cause import SYSTEM_EXIT, Fall, RootCause, blame
from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.incidents.evidence import of_collectives
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, ReadExits
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Detected
from guardrun.supervisor.engine.observation.collective_waits import match
from guardrun.supervisor.engine.observation.rank_findings import wrong_with
from guardrun.supervisor.engine.recovery.decide import announce, report, stop
from guardrun.supervisor.engine.recovery.launcher_orders import ANSWER_S
from guardrun.supervisor.engine.recovery.preemption import is_end_of_notice
from guardrun.supervisor.engine.recovery.restart_policy import decide_restart
from guardrun.supervisor.engine.state.incidents import change, culprits_of
from guardrun.supervisor.engine.state.state import Attempt, Crash, RankState, State, attempt_of

SETTLE_S = 0.4
"""After the first fall: others that fall of the same cause do so within this."""
CAUSE_BY_S = 1.8
"""A cause is told by then even if ranks are still being stopped (target: 2 s)."""
RAISED_MARGIN_S = 1.0
"""A rank that makes progress so long after an exception that "nobody caught" has caught it after all."""
RAISED_GRACE_S = 20.0
"""A rank that raised but does not end (its exit handlers, a teardown that hangs) counts as fallen after this."""
MAX_AVOIDED = 50
NOTHING = ev.ExitTrace(global_rank=-1)
_ABORTED = (-6, 134)
_CRASHED = (-4, -6, -7, -8, -11, 132, 134, 135, 136, 139)
"""Exit codes of signals that a fault raises: a stop doesn't send them."""

_STOPS = (0, 1, -2, 130, -15, 143, -9, 137)
"""How ranks end that are told to: by the signal, or by what their scripts make of it."""
OFFSET_S = 0.05
"""By how much the clocks of two nodes may be taken wrong: an exit of its own that is dated so little after the stop was
on its way then."""

NO_TRACE = RootCause(
    cause="unknown",
    culprits=[],
    confidence=0.3,
    key="",
    exit_code=1,
    what="ended",
    why_nobody="no rank's end was seen",
)

# Facts -------------------------------------------------------------------------------------------------


def on_rank_exited(state: State, event: ev.RankExited, now_s: float) -> list[Action]:
    """A rank that fails has the others stopped at once, unless held; the cause is sought SETTLE_S later."""
    attempt = attempt_of(state)
    rank = attempt.ranks.get(event.global_rank)
    if event.attempt != attempt.number or rank is None or rank.exitcode is not None:
        return []
    at_s = min(event.at_s, now_s)  # another node's clock may be ahead; what it led to cannot come before it
    note_exit(attempt, rank, event.exitcode, at_s)
    if state.phase is not Phase.RUNNING:
        return []
    if event.exitcode != 0 and is_end_of_notice(state, event.exitcode):
        # Those that save by themselves are left the time for it.
        is_over = not attempt.alive or not state.notice.is_forwarded
        return stop(state, at_s, now_s) if is_over else []
    if event.exitcode != 0:
        attempt.fell_s = min(attempt.fell_s or at_s, at_s)
        began_s = min(state.crash.began_s if state.crash else at_s, at_s)
        state.crash = Crash(began_s=began_s, decide_by_s=now_s + SETTLE_S)
    if not attempt.fell_s:
        return []
    if state.is_held and attempt.alive:
        return [announce("a rank fell; held, so the others are left as they are", level="warn")]
    return stop(state, attempt.fell_s, now_s)


def note_exit(attempt: Attempt, rank: RankState, exitcode: int, at_s: float) -> None:
    """Book the end of a rank; only once, since it counts the living down. exitcode: as subprocess has it."""
    number = rank.rank.global_rank
    rank.exitcode, rank.exited_s, rank.state = exitcode, at_s, "X"
    attempt.stopped.pop(number, None)
    attempt.collecting.pop(number, None)
    attempt.waiting.pop(number, None)
    attempt.alive -= 1


def on_rank_raised(state: State, event: ev.RankRaised, now_s: float) -> list[Action]:
    """Keep the exception as evidence; a rank that has not exited RAISED_GRACE_S later counts as fallen."""
    attempt = attempt_of(state)
    rank = attempt.ranks.get(event.global_rank)
    if event.attempt == attempt.number and rank is not None:
        rank.error = event.error
        if state.phase is Phase.RUNNING and state.crash is None:
            # It normally exits within milliseconds, which starts the stop; this is for the one that does not.
            state.crash = Crash(began_s=event.error.at_s or now_s, decide_by_s=now_s + RAISED_GRACE_S)
    return []


def on_rank_ended(state: State, event: ev.RankEnded, now_s: float) -> list[Action]:
    """Its script came to its end: an exit after that, by a stop, say, is no failure."""
    attempt = attempt_of(state)
    if event.attempt == attempt.number and event.global_rank in attempt.ranks:
        attempt.ranks[event.global_rank].has_ended = True
    return []


def on_exits_read(state: State, event: ev.ExitsRead, now_s: float) -> list[Action]:
    """Name the cause from what the ranks left behind; read once more where ranks have ended meanwhile."""
    crash = state.crash
    if crash is None or event.attempt != attempt_of(state).number:
        return []
    if crash.is_stale:
        crash.is_stale = False
        return ask_exits(state, crash, now_s)
    crash.traces, crash.oom_kills, crash.oom_pids = event.traces, event.oom_kills, event.oom_pids
    crash.disk_free_bytes, crash.readings = event.disk_free_bytes, event.readings
    crash.last_words = event.last_words
    crash.is_asked = False
    for trace in event.traces:
        rank = attempt_of(state).ranks.get(trace.global_rank)
        if rank is not None and trace.error and rank.error is None and not _is_stale_exit(rank, trace.error):
            rank.error = trace.error
    return _tell_crash(state, now_s)


# Telling -----------------------------------------------------------------------------------------------


def _tell_crash(state: State, now_s: float) -> list[Action]:
    """Open the crash's incident, once what is known says enough (or it is time)."""
    crash, attempt = state.crash, attempt_of(state)
    assert crash is not None
    falls = falls_of(state, crash)
    found = _blame(attempt, crash, falls) if falls else NO_TRACE
    if state.verdict_incident:
        state.crash = None
        return _retell_crash(state, crash, found, falls) + decide_restart(state, now_s)
    is_sure = bool(found.culprits) and found.cause != "exit_code"
    if not found.culprits and state.fleet is not None and state.fleet.silent:
        # They lost a peer, and a node is not heard: it is back in a moment, or it is lost.
        crash.decide_by_s = now_s + 1.0
        return []
    if not is_sure and attempt.alive and now_s - crash.began_s < CAUSE_BY_S:
        # Ranks that lost a peer, or whose error nobody could read: the one to blame may still be dying.
        crash.decide_by_s = max(min(now_s + SETTLE_S, crash.began_s + CAUSE_BY_S), now_s)
        return []
    actions = open_crash(state, crash, found, falls, now_s)
    state.crash = None
    return actions + (decide_restart(state, now_s) if state.phase is Phase.STOPPING else [])


def _blame(attempt: Attempt, crash: Crash, falls: list[Fall]) -> RootCause:
    ended = [n for n, rank in attempt.ranks.items() if rank.exitcode == 0]
    return explain(blame(falls, crash.readings), match(last_calls(crash.traces)), ended)


def open_crash(state: State, crash: Crash, found: RootCause, falls: list[Fall], now_s: float) -> list[Action]:
    """Open the crash's incident, which is the attempt's verdict; its action is `none` where acting is off or held."""
    evidence = _crash_evidence(state, crash, found, falls)
    detected = Detected(
        kind="crash",
        cause=found.cause,
        confidence=found.confidence,
        summary=_crash_sentence(state, found, evidence),
        culprits=found.culprits,
        onset_s=crash.began_s,
        evidence=evidence,
        level="bad",
        ends_with_progress=True,
        action="restart" if state.settings.act and not state.is_held else "none",
    )
    incident, actions = report(state, detected, now_s)
    state.verdict_incident = incident.id
    state.exit_code = found.exit_code
    return actions


def _retell_crash(state: State, crash: Crash, found: RootCause, falls: list[Fall]) -> list[Action]:
    """An incident without a culprit, told because it was time, gets one: it took long to die."""
    if not crash.incident_id or not found.culprits:
        return []
    evidence = _crash_evidence(state, crash, found, falls)
    state.exit_code = found.exit_code
    told = change(
        state,
        crash.incident_id,
        cause=found.cause,
        confidence=found.confidence,
        summary=_crash_sentence(state, found, evidence),
        culprits=culprits_of(attempt_of(state), found.culprits, state.detectors.node_health.devices),
        evidence=evidence,
        advice=advice_for(found.cause, evidence),
    )
    summary = state.incidents[crash.incident_id].summary
    return [announce(f"incident {crash.incident_id}: {summary}", level="bad"), told]


def _crash_evidence(state: State, crash: Crash, found: RootCause, falls: list[Fall]) -> dict[str, Any]:
    """What is known of the crash; a checkpoint that could not be loaded is not chosen again."""
    attempt = attempt_of(state)
    evidence = crash_evidence(attempt, crash, found, falls)
    if found.cause == "collective_mismatch":
        looks = last_calls(crash.traces)
        met = match(looks)
        state.is_detail_bad = state.is_detail_bad or met.is_uneven
        evidence |= of_collectives(met, looks)
    if found.left_early:
        evidence["left_early"] = found.left_early
    if wrong := wrong_with(state, found.culprits):
        evidence["node_findings"] = wrong
    path = failed_load(attempt, found) if found.cause == "checkpoint_corrupt" else ""
    if path:
        evidence["checkpoint"] = path
        if path in state.avoid and crash.incident_id not in state.incidents:
            evidence["loaded_again"] = True
        state.avoid = [*(known for known in state.avoid if known != path), path][-MAX_AVOIDED:]
    return evidence


def _crash_sentence(state: State, found: RootCause, evidence: dict[str, Any]) -> str:
    attempt = attempt_of(state)
    step = _step_words(attempt)
    if found.culprits:
        beside = {rank for other in found.beside for rank in other.ranks}
        first = [rank for rank in found.culprits if rank not in beside]
        many = len(first) > 1 and found.what.startswith("was ")
        what = f"were {found.what.removeprefix('was ')}" if many else found.what
        others = "".join(f", and {_later(attempt, other.ranks)} {other.what}" for other in found.beside)
        return f"{who(attempt, first)} {what}{others}{step}{words(found, evidence)}."
    if found.cause == "collective_mismatch":
        return f"Collectives did not meet{step}: {found.why_nobody}."
    if found is NO_TRACE:
        return f"The attempt ended{step}, and {found.why_nobody}."
    fallen = sorted(n for n, r in attempt.ranks.items() if r.exitcode not in (None, 0) or r.error)
    if found.left_early:
        early = who(attempt, found.left_early)
        return (
            f"{early} ended with exit code 0{step} while others still expected it in a collective, and "
            f"{_later(attempt, fallen)} {found.what}: which of them is wrong cannot be told."
        )
    return f"{who(attempt, fallen)} {found.what}{step}, but who is to blame cannot be told: {found.why_nobody}."


def _later(attempt: Attempt, ranks: list[int]) -> str:
    """Whose, within a sentence."""
    return who(attempt, ranks).replace("Rank", "rank", 1)


def _step_words(attempt: Attempt) -> str:
    """` at step 23`; ` after step 20` where that is only the checkpoint's: no step since, or none that is counted."""
    if not attempt.step:
        return ""
    resumed = attempt.resumed_from
    is_known = resumed is None or attempt.step > resumed.step
    return f" {'at' if is_known else 'after'} step {attempt.step}"


def _is_stale_exit(rank: RankState, error: ev.ErrorRecord) -> bool:
    """The words of a `sys.exit` that somebody caught: its own ends a rank with 1."""
    return error.error == SYSTEM_EXIT and rank.exitcode != 1


def falls_of(state: State, crash: Crash) -> list[Fall]:
    """Each rank that has exited (with 0, too) or raised, with all that could be read of it."""
    attempt = attempt_of(state)
    traces = {t.global_rank: t for t in crash.traces}
    full = any(0 <= free < DISK_FULL_BYTES for free in crash.disk_free_bytes.values())
    aborted = Counter(rank.rank.node for rank in attempt.ranks.values() if rank.exitcode in _ABORTED)
    falls = []
    for number, rank in attempt.ranks.items():
        if rank.exitcode is None and rank.error is None:
            continue
        trace = traces.get(number, NOTHING)
        node = rank.rank.node
        is_only_one = rank.exitcode in _ABORTED and aborted[node] == 1
        stderr_tail = trace.stderr_tail
        if is_only_one and not last_words(stderr_tail):
            stderr_tail = "\n".join(filter(None, [stderr_tail, crash.last_words.get(node, "")]))
        falls.append(
            Fall(
                global_rank=number,
                exitcode=rank.exitcode,
                at_s=rank.exited_s or (rank.error.at_s if rank.error else 0.0),
                stopped_by_us=is_ours(state, rank),
                # Without hooks (-I, -E, another interpreter) the log may have it.
                error=rank.error or (error_in_log(stderr_tail) if rank.exitcode == 1 else None),
                stderr_tail=stderr_tail,
                was_oom_killed=_was_oom_killed(rank, crash),
                is_disk_full=full,
                has_oom_nearby=crash.oom_kills > 0 or bool(crash.oom_pids),
                failed_load=trace.failed_load,
                has_ended=rank.has_ended,
                stack=trace.stack,
            )
        )
    return falls


def is_ours(state: State, rank: RankState) -> bool:
    """Whether the rank ended because the attempt was being stopped.

    A crash that was under way then (a core dump takes its time) is not ours, nor a SIGKILL that we had not sent yet.
    """
    began_s = attempt_of(state).stop_began_s
    if began_s and rank.exitcode not in _STOPS and state.fleet is not None:
        began_s += OFFSET_S
    if not began_s or rank.exited_s <= began_s or rank.exitcode in (None, *_CRASHED):
        return False
    if rank.exitcode in (-9, 137):
        return rank.exited_s > began_s + state.settings.stop_grace_s * 0.9
    return rank.error is None or rank.error.at_s > began_s


def _was_oom_killed(rank: RankState, crash: Crash) -> bool:
    if rank.exitcode not in (-9, 137):
        return False
    return rank.rank.pid in crash.oom_pids or (crash.oom_kills > 0 and not crash.oom_pids)


# Deadlines ---------------------------------------------------------------------------------------------


def due_s(state: State) -> float | None:
    """When exits are to be read (again)."""
    if state.crash is None:
        return None
    return state.crash.decide_by_s + (ANSWER_S if state.crash.is_asked else 0.0)


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    crash, at_s = state.crash, due_s(state)
    if crash is None or at_s is None or now_s < at_s:
        return []
    attempt = attempt_of(state)
    if state.phase is Phase.RUNNING and not attempt.fell_s and attempt.alive:
        # Raised, and did not end by itself.
        if not _has_raised(attempt):
            state.crash = None
            return []
        if not state.is_held:
            return [*stop(state, crash.began_s, now_s), *ask_exits(state, crash, now_s)]
    return ask_exits(state, crash, now_s)


def _has_raised(attempt: Attempt) -> bool:
    """Whether a rank has really failed. One that trained on has only shown an exception, by sys.excepthook, say."""
    for rank in attempt.ranks.values():
        error = rank.error
        if error and error.at_s and rank.exitcode is None and rank.progress_s > error.at_s + RAISED_MARGIN_S:
            rank.error = None
    return any(rank.error for rank in attempt.ranks.values())


def ask_exits(state: State, crash: Crash, now_s: float) -> list[Action]:
    """Have the ranks' last traces read; ExitsRead is the answer."""
    crash.is_asked, crash.decide_by_s = True, now_s
    return [ReadExits(attempt=attempt_of(state).number)]
