"""What the scheduler has said about the job's end, and what has been done about it (engine/recovery/preemption.py)."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.model.events import Checkpoint

SIGNAL, TIME_LIMIT = "signal", "time_limit"


class Notice(msgspec.Struct, kw_only=True):
    """That the job is about to end. One a run and session; empty until it comes."""

    since_s: float = 0.0
    """When this guardrun took the run up."""
    cause: str = ""
    """`signal` or `time_limit`; empty: the job is not about to end."""
    signum: int = 0
    """The last; 0 where a time limit comes near."""
    first: int = 0
    """The signal that it began with."""
    began_s: float = 0.0
    deadline_s: float = 0.0
    """The ranks are stopped then, saved or not."""
    end_s: float = 0.0
    """When the scheduler will end the job; 0 = unknown, or never."""
    why: str = ""
    """The scheduler's own word, as SchedulerStatusChanged has it."""
    is_why_awaited: bool = False
    """SIGTERM came, and the scheduler has not said yet who wants the end."""
    is_held: bool = False
    """Nothing is alive, and that word is waited for: a person's scancel is no preemption."""
    may_requeue: bool = False
    """As the scheduler has it: a batch job that was not submitted with --no-requeue."""
    is_forwarded: bool = False
    """The ranks were given the signal: they save by themselves."""
    catchers: list[int] = []
    """Ranks that have a handler of their own for it, and were not given it."""
    request: int = 0
    """Number of the request to the ranks; 0 = not made yet."""
    at_call: int = 0
    """The call of should_checkpoint() that answers yes; 0 = none could be fixed yet."""
    is_answered: bool = False
    """A rank has taken the yes."""
    saved: Checkpoint | None = None
    """A whole checkpoint newer than the request."""
    saved_s: float = 0.0
    is_stopping: bool = False
    """The ranks have been told to stop because of the notice."""
    is_sought: bool = False
    """Nothing is alive, and a last look for a checkpoint is being taken."""
    asked_s: float = 0.0
    """When that look, or the requeue, was asked for; 0 = neither is awaited."""
    until_s: float = 0.0
    """A requeue is asked for again until then, where the scheduler does not answer."""
    is_requeued: bool | None = None
    """None: it was not asked for, or there is no answer."""
    requeue_why: str = ""
    incident_id: str = ""
