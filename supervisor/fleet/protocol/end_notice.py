"""What the nodes that do not lead say at a bad end: the head's terminal is not theirs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.recovery.run_summary import signal_name
from guardrun.supervisor.engine.state.state import State

_ENDS = {
    "gave_up": "the run was given up",
    "failed": "the run has failed",
    "preempted": "the run was ended before its time",
}
_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")


def is_silent(environ: Mapping[str, str]) -> bool:
    """Whether a node leaves it to the head: in a step of Slurm's, all nodes' lines come to one terminal."""
    return any(environ.get(name) for name in _STEP)


def last_words(state: State, head: str, run_dir: Path) -> str:
    """Why the run has ended, and where that is told at length; one sentence, empty after a good end."""
    if not state.exit_code:
        return ""
    words = f"{_ENDS.get(state.outcome, 'the run was ended')}: {state.give_up_reason}"
    told = _incident(state)
    if told is None:
        return f"{words}; its record, on {head}: {run_dir}"
    report = run_dir / "incidents" / f"{told.id}-{told.cause}" / "report.html"
    return f"{words}; incident {told.id}: {told.summary.rstrip('.')}; report, on {head}: {report}"


def leaving_words(node: str, signum: int) -> str:
    """For a node that goes while the job goes on."""
    return f"{signal_name(signum)} to guardrun here: {node} leaves the job, which goes on without it"


def _incident(state: State) -> Incident | None:
    """The one that the run ended for."""
    if state.outcome not in ("gave_up", "failed"):
        return None
    named = state.attempts[-1].get("incident") if state.attempts else None
    return state.incidents.get(named or "")
