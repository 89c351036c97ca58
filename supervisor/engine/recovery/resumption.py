"""Whether a restart takes up what is there: a script that begins anew would write over it.

    known     the user says how it resumes ([checkpoint] resume_args, resume_env), its framework does so by itself, or
              it has been seen to open a checkpoint of the run: it is restarted
    unknown   it is restarted, on probation
    ignores   it began anew beside a checkpoint once: it is restarted no more

Whoever has been restarted beside a checkpoint and trains on without anybody having opened one, or wants to write over
one first, is ended before it saves (hooks/saves/overwrite_guard.py keeps it from that meanwhile); so is whoever is seen
to save a step before the one that was there. torchrun's default is to restart nothing: nothing is lost by it. What
cannot be told (no hooks, no view of the files) is left alone, and so is an attempt that guardrun has not begun by
itself, or that torchrun would have begun, too (--max-restarts).
"""

from __future__ import annotations

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.recovery.decide import announce, stop
from guardrun.supervisor.engine.recovery.run_summary import finish, record_attempt
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import IGNORES, OPENS, RESUMED, Attempt, State, attempt_of

SETTLE_S = 3.0
"""What opened a file is told at once, but perhaps by another node."""
FEW_STEPS, MANY_STEPS = 2, 12
"""One step is none yet: torch.distributed.checkpoint makes an optimizer's state by a step before it loads. A few may be
a warm-up, of a CUDA graph say, before it: …"""
WARM_UP_S = 60.0
"""… which is over by then. Saves over what is there are held all the while."""
API_STEPS = 128
"""Bit of hooks.board.Milestone."""

MAX_BASES = 50


def is_known(state: State) -> bool:
    """Whether this script is known to take up a checkpoint."""
    return state.settings.resumes or state.resumes_itself or state.resumes == OPENS


def on_chosen(state: State, event: ev.CheckpointChosen) -> None:
    """Remember what there is to resume from, and that the next attempt is to be watched for it."""
    state.resumes_itself, state.resume_way = event.resumes_itself, event.resume_way
    state.resumed_family, state.kept = event.family, event.kept
    state.siblings = list(event.siblings)
    copy = event.snapshot.path if event.snapshot is not None and event.snapshot.original else ""
    state.copy = copy if event.checkpoint is not None and event.checkpoint.path == copy else ""
    state.is_guarded = not state.settings.is_torchrun_agent and state.is_restart and event.checkpoint is not None


def why_not(state: State) -> str:
    """Why the script may not be begun anew beside what it has saved; empty: it may."""
    checkpoint, attempt = state.checkpoint, state.attempt
    if not state.is_guarded or checkpoint is None or is_known(state) or attempt is None:
        return ""
    if state.settings.restarts_anyway:
        return ""
    there = f"{checkpoint.path} (step {checkpoint.step})"
    if state.resumes == IGNORES:
        return f"this script began anew beside a checkpoint before, instead of resuming from it; now {there} is there"
    if not attempt.has_hooks:
        return f"nobody can see whether this program resumes from {there}: begun anew, it would write over it"
    return ""


def give_up(state: State, reason: str, now_s: float) -> list[Action]:
    """Nothing is alive: end the run as torchrun would have, and say what would let it go on."""
    actions: list[Action] = []
    advice = _advice(state)
    incident_id = state.resuming_incident or state.mending_incident
    if incident_id in state.incidents:
        incident = state.incidents[incident_id]
        evidence = {**incident.evidence, "not_resumed": reason}
        advised = f"{incident.advice} {advice}"
        changes = {"resumed_from": None, "recovered_s": None, "evidence": evidence, "advice": advised}
        actions.append(change(state, incident_id, action="give_up", **changes))
    state.resuming_incident = state.mending_incident = ""
    state.may_go_on = True
    actions.append(announce(f"giving up: {reason}", level="bad"))
    actions.append(announce(advice, level="info"))
    return actions + finish(state, "gave_up", state.exit_code or 1, reason, now_s)


def on_stopped(state: State, now_s: float) -> list[Action]:
    """The attempt that was ended for it is gone."""
    attempt = attempt_of(state)
    record_attempt(state, "not resumed")
    return give_up(state, f"{attempt.began_anew}; it was ended before it could write over more", now_s)


def due_s(state: State) -> float | None:
    """In RUNNING: when what it has begun will have been seen for long enough."""
    attempt = attempt_of(state)
    if attempt.has_resumed or attempt.began_anew:
        return None
    return attempt.ends_anew_s or None


def on_opened(state: State, event: ev.CheckpointOpened) -> None:
    """A script that opens the run's checkpoint is known to resume.

    What an attempt opens that resumes from nothing is a base model; opening that again proves nothing.
    """
    attempt = state.attempt
    if attempt is None or event.attempt != attempt.number:
        return
    if event.trouble:
        attempt.is_blind = True
    elif attempt.resumed_from is None:
        if event.path not in state.bases and len(state.bases) < MAX_BASES:
            state.bases.append(event.path)
    elif event.path not in state.bases:
        note_resumed(state, attempt)


def note_resumed(state: State, attempt: Attempt) -> None:
    """A checkpoint has been taken up."""
    attempt.has_resumed = True
    if attempt.resumed_from is not None:
        state.resumes = OPENS


def on_report(state: State, now_s: float) -> list[Action]:
    """In RUNNING: has it trained on, or does it want to save, without anybody having opened what there is?"""
    attempt = attempt_of(state)
    resumed = attempt.resumed_from
    if resumed is None or attempt.has_resumed or attempt.began_anew:
        return []
    if any(rank.milestones & RESUMED for rank in attempt.ranks.values()):
        note_resumed(state, attempt)
        return []
    wait_s = _patience_s(state, attempt, resumed.step)
    if wait_s is None:
        attempt.unopened_since_s = attempt.ends_anew_s = 0.0
        return []
    attempt.unopened_since_s = attempt.unopened_since_s or now_s
    attempt.ends_anew_s = attempt.unopened_since_s + wait_s
    if now_s < attempt.ends_anew_s:
        return []
    there = f"{resumed.path} (step {resumed.step})"
    return _end(state, f"the script began anew beside {there} instead of resuming from it", now_s)


def _patience_s(state: State, attempt: Attempt, resumed_step: int) -> float | None:
    """How long it may go on so; None: it has not begun to train."""
    ranks = attempt.ranks.values()
    if any(rank.is_save_held for rank in ranks):
        return SETTLE_S
    furthest = max(ranks, key=lambda rank: rank.step, default=None)
    if furthest is None:
        return None
    if furthest.milestones & API_STEPS:
        return SETTLE_S if FEW_STEPS <= furthest.step < resumed_step else None  # its own number
    steps = furthest.step - (resumed_step if state.settings.resumes else 0)
    if steps < FEW_STEPS:
        return None
    return SETTLE_S if steps >= MANY_STEPS else WARM_UP_S


def on_saved(state: State, event: ev.CheckpointSaved, now_s: float) -> list[Action]:
    """In RUNNING: a step before the one that was there, by the name that means steps."""
    attempt = attempt_of(state)
    resumed = attempt.resumed_from
    if resumed is None or attempt.began_anew or event.attempt != attempt.number:
        return []
    if not event.family or event.family != state.resumed_family or event.named_step >= resumed.step:
        return []
    if event.named_step not in (event.step, event.step - resumed.step):
        return []  # the number is no count of steps from this start: slots that are written in turn, say
    said = f"the script saved {event.path} after {resumed.path} (step {resumed.step}) was there: it began anew"
    return _end(state, said, now_s)


def _end(state: State, reason: str, now_s: float) -> list[Action]:
    """End it at once, without a moment in which a handler might save."""
    attempt = attempt_of(state)
    settings = state.settings
    may_act = state.may_act and not settings.restarts_anyway and attempt.is_guarded and not attempt.fell_s
    attempt.began_anew = reason
    if not may_act or attempt.is_blind:
        return [announce(f"as far as can be seen, {reason}", level="warn")]
    state.resumes, attempt.is_refused = IGNORES, True
    return stop(state, now_s, now_s)


def _advice(state: State) -> str:
    way = f" ({state.resume_way})" if state.resume_way.startswith("-") else ""
    step = state.checkpoint.step if state.checkpoint is not None else 0
    kept = f" A copy of the checkpoint is in {state.kept}." if state.kept else ""
    return (
        f"Say in the configuration how the script resumes{way}: [checkpoint] resume_args or resume_env, "
        f'for example resume_args = ["--resume", "{{path}}"]; the same command with --guard-run-id={state.run_id} then '
        f"goes on from step {step}.{kept}"
    )
