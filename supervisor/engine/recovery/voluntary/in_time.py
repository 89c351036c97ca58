"""Whether ranks that are to be ended are given time to save first (`hooks.save_with`), and who is asked.

A wrong checkpoint is worse than none: whatever casts doubt on what the ranks hold speaks against it. What only the
ranks' node can see is looked at there (supervisor/saving/in_time_save.py), and the rest in the rank
(hooks/rank/save_gate.py).
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import SaveInTime, Spoiled, ranks_of
from guardrun.supervisor.engine.state.in_time_save import InTimeSave
from guardrun.supervisor.engine.state.job_nodes import Member, Standing
from guardrun.supervisor.engine.state.state import SAVES_IN_TIME, Attempt, State, attempt_of, next_request

NOTHING = "no just-in-time checkpoint"
FAILED = "it was written by a just-in-time save that failed"
CLOCKS_S = 5.0
"""By which another node's clock, by which a file is dated, may be ahead."""
NO_STEP = 2**62
"""Beyond all steps: only the time tells what is spoilt."""
NO_END_S = 1e9
"""Beyond a run's end."""


def begin(state: State, now_s: float) -> SaveInTime | str:
    """How a rank is asked, and the stop put off; or why not, where somebody might wonder (empty: nobody does)."""
    if state.notice.cause or state.is_held:
        return ""
    return _begin(state, now_s, now_s + state.settings.jit_s)


def begin_while_training(state: State, now_s: float) -> SaveInTime | str:
    """The same where the job is about to end: its ranks train on until then."""
    attempt = attempt_of(state)
    if not attempt.may_save_in_time:
        return ""
    until_s = min(now_s + state.settings.jit_s, state.notice.deadline_s)
    begun = _begin(state, now_s, until_s, is_running=True)
    if isinstance(begun, SaveInTime):  # others wait for the one that saves: that is no hang, and no slow step
        attempt.skipped_to_s, attempt.examined_to_s = until_s, max(attempt.examined_to_s, until_s)
    return begun


def _begin(state: State, now_s: float, until_s: float, *, is_running: bool = False) -> SaveInTime | str:
    attempt = attempt_of(state)
    if attempt.in_time is not None or not _is_wanted(state):
        return ""
    if why := _why_not(state, now_s):
        attempt.in_time = InTimeSave(told={"why": why}, is_running=is_running)
        return f"{NOTHING}: {why}"
    request, gone = next_request(state), _nodes_gone(state)
    attempt.in_time = InTimeSave(request=request, since_s=now_s, until_s=until_s, is_running=is_running)
    alive = [n for n, rank in attempt.ranks.items() if rank.exitcode is None and rank.rank.node not in gone]
    return SaveInTime(
        request=request,
        attempt=attempt.number,
        until_s=until_s,
        global_ranks=_well(state, now_s),
        alive=alive,
        is_running=is_running,
    )


def call_off(attempt: Attempt) -> None:
    """The ranks are to be stopped, whatever becomes of a save that goes on while they train."""
    save = attempt.in_time
    if save is not None and save.is_pending:
        save.told, save.is_doubtful = {"why": "the ranks were stopped before it was done"}, True


def spoiled(attempt: Attempt, now_s: float, *, is_many: bool = False) -> list[Spoiled]:
    """What a save that is not proven may have left behind; once. Nothing of the attempt is alive.

    is_many: several nodes, each with a clock of its own.
    """
    until_s = now_s if attempt.ended_s is None else attempt.ended_s
    found = _left_behind(attempt, until_s + (CLOCKS_S if is_many else 0.0))
    if found and attempt.in_time is not None:
        attempt.in_time.is_doubtful = False
        attempt.in_time.told = attempt.in_time.told or {"why": "the run was ended"}
    return found


def in_doubt(state: State) -> list[Spoiled]:
    """What a save that is not proven may leave behind while its ranks train on: its function may still be at it."""
    return _left_behind(state.attempt, NO_END_S) if state.attempt is not None else []


def _left_behind(attempt: Attempt, until_s: float) -> list[Spoiled]:
    save = attempt.in_time
    if save is None or not (save.is_doubtful or save.is_pending):
        return []
    return [Spoiled(attempt=attempt.number, from_step=NO_STEP, since_s=save.since_s, until_s=until_s, why=FAILED)]


def _is_wanted(state: State) -> bool:
    """Whether the user has asked for such saves, and this is a moment for one."""
    settings, attempt = state.settings, attempt_of(state)
    if settings.jit_s <= 0 or not settings.act or settings.is_torchrun_agent:
        return False
    return not (state.signum or attempt.is_refused or attempt.is_worthless or attempt.is_cut)


def _why_not(state: State, now_s: float) -> str:
    attempt = attempt_of(state)
    if why := why_spoilt(state):
        return why
    if attempt.resumed_from is not None and not attempt.has_resumed:
        return "nobody has opened the checkpoint that this attempt was begun with"
    if any(rank.is_save_held for rank in attempt.ranks.values()):
        return "a save is held back: it would write over a checkpoint that nobody has opened"
    if silent := _nodes_silent(state):
        return f"{silent[0]} is silent: what its ranks have done is not known"
    return "" if _well(state, now_s) else "no rank that could save is well"


def why_spoilt(state: State) -> str:
    """Why what the ranks hold, or held, is not to be resumed from; empty: nothing speaks against it."""
    attempt = state.attempt
    if attempt is None:
        return ""
    ours = [one for one in state.incidents.values() if one.attempt == attempt.number]
    numeric = next((one for one in ours if one.kind == "numeric"), None)
    if numeric is None and attempt.poisoned is None and attempt.going_back is None:
        return ""
    return f"what is trained is spoilt ({numeric.cause})" if numeric else "what is trained is spoilt"


def _well(state: State, now_s: float) -> list[int]:
    """Ranks that may be asked, the first one first: those that have not raised come before those that have.

    Whoever looks at a rank may have stopped it for a moment: only what stays so is not well, and the others come first.
    """
    attempt = attempt_of(state)
    verdict = state.verdict
    culprits, gone = set(ranks_of(verdict.culprits)) if verdict is not None else set(), _nodes_gone(state)
    found = [
        (rank.error is not None, number in attempt.stopped, number)
        for number, rank in attempt.ranks.items()
        if rank.exitcode is None
        and rank.milestones & SAVES_IN_TIME
        and not rank.has_ended
        and number not in culprits
        and now_s - attempt.stopped.get(number, now_s) < state.settings.stopped_patience_s
        and rank.rank.node not in gone
    ]
    return [number for *_, number in sorted(found)]


def _nodes_gone(state: State) -> set[str]:
    """Nodes that nobody waits for: lost, ended, or with a connection that was closed, as it is where they have died."""
    members = state.fleet.members.values() if state.fleet is not None else ()
    return {m.node for m in members if m.standing not in (Standing.READY, Standing.SILENT) or _is_dropped(m)}


def _nodes_silent(state: State) -> list[str]:
    """Those that may be alive, of which nothing is heard."""
    return [m.node for m in state.fleet.silent if not _is_dropped(m)] if state.fleet is not None else []


def _is_dropped(member: Member) -> bool:
    return member.standing is Standing.SILENT and member.is_dropped
