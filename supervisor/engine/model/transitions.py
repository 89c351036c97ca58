"""The phases of a run, which event does what in each, and where that may lead: one table.

A pair that is missing from the table is a bug of ours: `InvalidTransition` names both. `tests/engine` walks every pair.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from guardrun.supervisor.engine.model import events as ev


class Phase(str, Enum):
    """Where a run is. Exactly one at a time; what is going on within RUNNING is the hang watch's business."""

    NEW = "new"
    """Nothing is known yet; only RunOpened makes sense."""
    GATHERING = "gathering"
    """Nothing of an attempt is alive, and there are too few nodes for the next."""
    CHECKING = "checking"
    """Nothing of an attempt is alive; the nodes of the next are being tried together."""
    CHOOSING = "choosing"
    """Nothing of an attempt is alive; the checkpoint for the next is being chosen."""
    STARTING = "starting"
    """The launcher has been told to start an attempt."""
    RUNNING = "running"
    """Ranks are alive."""
    STOPPING = "stopping"
    """The launcher has been told to stop the attempt, or will be once a rank has saved in time; or all ranks ended and
    it is clearing up."""
    ENDING = "ending"
    """The user or the scheduler wants an end; the launcher stops the ranks by itself."""
    ENDED = "ended"
    """FinishRun has been said."""


IGNORE = ""
"""An event that is late or without meaning in a phase: noted in the journal, nothing else."""
OBSERVED = "observed"
"""An event that changes nothing by itself: detectors observe it, as they do all that are not ignored."""

_ALWAYS: dict[type, str] = {
    ev.SupervisorRestarted: "on_supervisor_restarted",
    ev.TimeSkipped: "on_time_skipped",
    ev.HoldSet: "on_hold_set",
    ev.HistoryLoaded: "on_history_loaded",
    ev.NodeFindingsReported: OBSERVED,
    ev.NotIsolated: "on_not_isolated",
    ev.IsolationSettled: "on_isolation_settled",
    ev.NodeReleased: "on_node_released",
    ev.NodeJoined: "on_node_joined",
    ev.NodeSuspected: "on_node_suspected",
    ev.NodeContactRestored: "on_node_contact_restored",
    ev.NodeLeft: "on_node_left",
    ev.NodeAbsent: "on_node_absent",
    ev.SchedulerStatusChanged: "on_scheduler_status_changed",
    ev.RunContinued: "on_run_continued",
}

_QUIET: dict[type, str] = {
    ev.RunOpened: IGNORE,
    ev.AttemptStarted: IGNORE,
    ev.AttemptNotStarted: IGNORE,
    ev.NodeReport: IGNORE,
    ev.UncaughtExceptionReported: IGNORE,
    ev.RankEnded: IGNORE,
    ev.RankExited: IGNORE,
    ev.ExitsRead: IGNORE,
    ev.AttemptStopped: IGNORE,
    ev.CheckpointSaved: IGNORE,
    ev.CheckpointLoaded: IGNORE,
    ev.CheckpointOpened: IGNORE,
    ev.CheckpointChosen: IGNORE,
    ev.LookTaken: IGNORE,
    ev.NodesChecked: IGNORE,
    ev.RestartAsked: IGNORE,
    ev.ExaminationAsked: IGNORE,
    ev.HandChangeAsked: IGNORE,
    ev.HandChangeEnded: "on_hand_change_ended",
    ev.GcHeld: IGNORE,
    ev.BatchesNamed: IGNORE,
    ev.ModulesDied: IGNORE,
    ev.GradientsGrew: IGNORE,
    ev.BatchesLeftOut: IGNORE,
    ev.DataReplayed: IGNORE,
    ev.HooksMissing: IGNORE,
    ev.PreemptionNoticed: "on_preemption_noticed",
    ev.CheckpointAsked: "on_checkpoint_asked",
    ev.CheckpointAnswered: "on_checkpoint_answered",
    ev.CheckpointCompleted: "on_checkpoint_completed",
    ev.SavedInTime: IGNORE,
    ev.Requeued: IGNORE,
    ev.StopRequested: "on_stop_requested",
    ev.Ticked: "on_tick",
}

_ROWS: dict[Phase, dict[type, str]] = {
    Phase.NEW: {
        ev.RunOpened: "on_run_opened",
        ev.PreemptionNoticed: IGNORE,
        ev.StopRequested: IGNORE,
        ev.Ticked: IGNORE,
        ev.TimeSkipped: IGNORE,
    },
    Phase.GATHERING: {ev.Requeued: "on_requeued"},
    Phase.CHECKING: {ev.NodesChecked: "on_nodes_checked"},
    Phase.CHOOSING: {ev.CheckpointChosen: "on_checkpoint_chosen"},
    Phase.STARTING: {
        ev.AttemptStarted: "on_attempt_started",
        ev.AttemptNotStarted: "on_attempt_not_started",
        # The launcher died with its attempt unreported, and a requeue found nothing alive.
        ev.AttemptStopped: IGNORE,
    },
    Phase.RUNNING: {
        ev.AttemptStarted: "on_attempt_restarted",
        ev.NodeReport: "on_node_report",
        ev.UncaughtExceptionReported: "on_uncaught_exception",
        ev.RankEnded: "on_rank_ended",
        ev.RankExited: "on_rank_exited",
        ev.ExitsRead: "on_exits_read",
        ev.AttemptStopped: "on_attempt_stopped",
        ev.CheckpointSaved: "on_checkpoint_saved",
        ev.SavedInTime: "on_saved_while_training",
        ev.CheckpointLoaded: "on_checkpoint_loaded",
        ev.CheckpointOpened: "on_checkpoint_opened",
        ev.CheckpointChosen: "on_sound_looked_for",
        ev.LookTaken: "on_look_taken",
        ev.GcHeld: OBSERVED,
        ev.BatchesNamed: OBSERVED,
        ev.ModulesDied: OBSERVED,
        ev.GradientsGrew: OBSERVED,
        ev.BatchesLeftOut: "on_batches_left_out",
        ev.DataReplayed: "on_data_replayed",
        ev.HooksMissing: "on_hooks_missing",
        ev.RestartAsked: "on_restart_asked",
        ev.ExaminationAsked: "on_examination_asked",
        ev.HandChangeAsked: "on_hand_change_asked",
    },
    Phase.STOPPING: {
        ev.AttemptStarted: "on_attempt_restarted",
        ev.NodeReport: "on_node_report",
        ev.UncaughtExceptionReported: "on_uncaught_exception",
        ev.RankEnded: "on_rank_ended",
        ev.RankExited: "on_rank_exited",
        ev.ExitsRead: "on_exits_read",
        ev.AttemptStopped: "on_attempt_stopped",
        ev.CheckpointSaved: "on_checkpoint_saved",
        ev.SavedInTime: "on_saved_in_time",
    },
    Phase.ENDING: {
        # Told to start just before the user wanted an end: the launcher's Stopped follows.
        ev.AttemptStarted: "on_attempt_started",
        ev.RankExited: "on_rank_exited",
        ev.AttemptStopped: "on_attempt_stopped",
        ev.CheckpointSaved: "on_checkpoint_saved",
        # A second notice changes nothing any more.
        ev.PreemptionNoticed: IGNORE,
        ev.Requeued: "on_requeued",
    },
    Phase.ENDED: {
        ev.PreemptionNoticed: IGNORE,
        ev.CheckpointCompleted: IGNORE,
        ev.StopRequested: IGNORE,
        ev.Ticked: IGNORE,
    },
}

_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.CHOOSING, Phase.GATHERING, Phase.CHECKING, Phase.STARTING}),
    Phase.GATHERING: frozenset({Phase.CHOOSING, Phase.CHECKING, Phase.STARTING, Phase.ENDING, Phase.ENDED}),
    Phase.CHECKING: frozenset({Phase.CHOOSING, Phase.GATHERING, Phase.STARTING, Phase.ENDING, Phase.ENDED}),
    Phase.CHOOSING: frozenset({Phase.GATHERING, Phase.CHECKING, Phase.STARTING, Phase.ENDING, Phase.ENDED}),
    # AttemptStarted may come when the attempt is no longer wanted.
    Phase.STARTING: frozenset(
        {Phase.CHOOSING, Phase.GATHERING, Phase.CHECKING, Phase.RUNNING, Phase.STOPPING, Phase.ENDING, Phase.ENDED}
    ),
    Phase.RUNNING: frozenset({Phase.CHOOSING, Phase.GATHERING, Phase.STOPPING, Phase.ENDING, Phase.ENDED}),
    # torchrun's own agent starts ranks again by itself.
    Phase.STOPPING: frozenset({Phase.CHOOSING, Phase.GATHERING, Phase.RUNNING, Phase.ENDING, Phase.ENDED}),
    Phase.ENDING: frozenset({Phase.CHOOSING, Phase.ENDED}),
    # A new guardrun goes on with the run.
    Phase.ENDED: frozenset({Phase.CHOOSING}),
}
"""Where an event may lead from a phase, beside staying there."""

_STAYS = frozenset(
    {
        IGNORE,
        "on_time_skipped",
        "on_history_loaded",
        "on_not_isolated",
        "on_isolation_settled",
        "on_hooks_missing",
        "on_checkpoint_loaded",
    }
)
"""Handlers that never lead to another phase."""


class Transition(NamedTuple):
    """What an event does in a phase."""

    handler: str
    """Name of the engine's function, IGNORE or OBSERVED."""
    ends: frozenset[Phase]
    """In which the run may be afterwards; another one is a bug of ours, and raises."""


def _transition(phase: Phase, handler: str) -> Transition:
    if handler in _STAYS:
        return Transition(handler, frozenset({phase}))
    if handler == OBSERVED:  # a detector may have the attempt ended
        return Transition(handler, frozenset({phase, Phase.STOPPING} if phase is Phase.RUNNING else {phase}))
    return Transition(handler, _NEXT[phase] | {phase})


TABLE: dict[tuple[Phase, type], Transition] = {
    (phase, event): _transition(phase, handler)
    for phase, row in _ROWS.items()
    for event, handler in {**_QUIET, **_ALWAYS, **row}.items()
}


class PhaseChanged(NamedTuple):
    """An event has led the run to another phase; the last that detectors see of it."""

    before: Phase
    after: Phase


class InvalidTransition(Exception):
    """An event that no row of the table knows, or that led to a phase which its row does not have: a bug of ours."""

    def __init__(self, phase: Phase, event: object, story: list[str], end: Phase | None = None) -> None:
        """end: the phase that it led to."""
        before = " <- ".join(reversed(story))
        what = f"to {end.value}" if end is not None else f"in phase {phase.value}"
        where = f"{type(event).__name__} {'in phase ' + phase.value + ' ' if end is not None else ''}{what}"
        super().__init__(f"{where}: no such transition; before it: {before}")


def find_transition(phase: Phase, event: object, story: list[str]) -> Transition:
    """The row of this pair. Raises InvalidTransition."""
    try:
        return TABLE[phase, type(event)]
    except KeyError:
        raise InvalidTransition(phase, event, story) from None
