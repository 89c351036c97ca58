"""Whether a run directory that is there already is gone on with, by what an earlier guardrun left in it. Pure.

A guardrun and all that it had started may have been killed, or its machine lost its power, at any moment:

    made            the folder, `.owner`, `nccl/`, and run.json before any process of the run
    while it runs   events.jsonl, guardrun.log, checkpoints.json, kept/, incidents/, …
    its end         the journal's last line, then summary.json

A full disk may have kept any of these from being written. docs/checkpoints.md has the table for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from guardrun.launcher.base.rank_environment import DUMP_FOLDER
from guardrun.launcher.creation.run_ownership import ENDED_OUTCOMES, LOCK_FILE
from guardrun.supervisor.base.own_files import TEMPORARY


class Way(Enum):
    """What is done with the folder."""

    REFUSE_STRANGE = auto()
    """It is no run's: it is left alone."""
    REFUSE_ENDED = auto()
    """Its training is over: it is never started again."""
    BEGIN = auto()
    """No process of the run can have been started yet: it is a new one."""
    CONTINUE = auto()
    """From the newest checkpoint that the run wrote, whatever else is known of it."""


@dataclass(frozen=True)
class Left:
    """What an earlier guardrun left."""

    names: frozenset[str]
    """In the folder."""
    has_record: bool
    """run.json can be read."""
    is_private: bool
    """It is nobody's but the user's, as guardrun makes it."""
    outcome: str
    """By summary.json, or by the journal where there is no summary; empty: nothing says that it has ended."""
    may_go_on: bool = False
    """The user only had to say how the script resumes."""


def decide(left: Left) -> Way:
    """What to do with a folder that is there already."""
    is_made = {name for name in left.names if name in (LOCK_FILE, DUMP_FOLDER) or name.startswith(TEMPORARY)}
    if not left.has_record:
        if left.names == is_made and left.is_private:
            return Way.BEGIN
        if LOCK_FILE not in left.names:
            return Way.REFUSE_STRANGE
    if left.outcome in ENDED_OUTCOMES and not left.may_go_on:
        return Way.REFUSE_ENDED
    return Way.CONTINUE
