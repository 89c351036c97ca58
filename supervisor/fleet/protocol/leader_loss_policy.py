"""A node without a head, and one whose run ends badly: what it says, and when it ends. Pure.

Where a head has never been found, it is waited for as long as for nodes ([fleet] join_timeout_s), unless this node is
refused: then the refusal is all that is said. Where contact was lost and nothing of the job is alive here any more:
- The join file has gone: the head takes it away when it ends a run. The run is over.
- The ranks here have all ended well, and the head's connection was closed (its processes are gone, the kernel says so)
  and is not back: a head that was to go on would be. This node's part is done.
- Else nothing tells a link that is cut from a head that is gone: it is waited for, and that is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.recovery.run_summary import signal_name
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.wire.listening_addresses import is_loopback

FIRST_S = 5.0
"""A head that is there within that needs no words."""
REFUSED_S = 30.0
"""A refusal that lasts so long is final."""
CLOSED_S = 10.0
"""A supervisor that was killed is back within a second or two."""
AGAIN = 2
"""Connections in a row that fail the same way: one may have met a head that was just being started."""


class Obstacle(str, Enum):
    """What became of the last connection that got no answer."""

    NONE = ""
    """None has failed, or it is not known what was in the way: say nothing of it."""
    NOBODY = "nobody"
    """The host refuses: nothing listens there."""
    TURNED_AWAY = "turned_away"
    """What listens there ended it: it has not the key that the join file says, or does not know ours."""
    UNANSWERED = "unanswered"
    """It was made, and nothing came: whoever's key is not admitted is told nothing."""


class Seen(NamedTuple):
    """How it stands with the head. Seconds are this node's."""

    now_s: float
    place: str = ""
    """`HOST:PORT` of the head; empty: not known yet."""
    is_joined: bool = False
    lost_s: float = 0.0
    """Since the lease ended; 0: it is held."""
    has_file: bool = True
    """The join file is there, or none is used."""
    exit_code: int | None = None
    """Of the run that is over, where the head's summary can be read."""
    obstacle: Obstacle = Obstacle.NONE
    failures: int = 0
    """Connections in a row without a Welcome."""


class Step(NamedTuple):
    """What to do now."""

    message: str = ""
    """Once."""
    level: str = "info"
    end: int | None = None
    """This node's exit status."""
    is_lost: bool = False
    """The head is given up: whether the job can be started again is another's question (orphaned_job.py)."""


NOTHING = Step()


class LeaderLossPolicy:
    """Told what happens; asked once a second while none of this node's ranks is alive."""

    def __init__(
        self, join_file: str, join_timeout_s: float, head_gone_s: float, began_s: float, awaited: str = ""
    ) -> None:
        """awaited: who leads, in words, where that is known."""
        self._awaited = f": {awaited}" if awaited else ""
        self._join_file = join_file
        self._join_timeout_s = join_timeout_s
        self._head_gone_s = head_gone_s
        self._began_s = began_s
        self._head = ""
        self._refused_s: float | None = None
        self._is_unusable = False
        self._closed_s: float | None = None
        self._has_ended_well = False

    @property
    def has_joined(self) -> bool:
        """Whether there was ever a head."""
        return bool(self._head)

    def joined(self, head: str) -> None:
        """There is a head: what was known of a refusal, or of a lost contact, is void. head: its node."""
        self._head, self._refused_s, self._closed_s, self._is_unusable = head, None, None, False

    def refused(self, now_s: float) -> None:
        """By the head, with a reason, which is said."""
        self._refused_s = now_s if self._refused_s is None else self._refused_s

    def unusable(self) -> None:
        """The join file may not be used; why is said."""
        self._is_unusable = True

    def lost(self, now_s: float, is_closed: bool) -> None:
        """Contact. is_closed: the connection was; else nothing was heard."""
        self._closed_s = now_s if is_closed else None

    def ended(self, exitcodes: dict[int, int]) -> None:
        """The attempt here is over."""
        self._has_ended_well = bool(exitcodes) and not any(exitcodes.values())

    def began(self) -> None:
        """An attempt has."""
        self._has_ended_well = False

    def is_refused(self, now_s: float) -> bool:
        """Whether it is final."""
        return self._refused_s is not None and now_s - self._refused_s > REFUSED_S

    def step(self, seen: Seen) -> Step:
        """What follows; ranks are not alive here."""
        if seen.is_joined:
            return NOTHING
        return self._left_alone(seen) if self.has_joined else self._not_found(seen)

    def _left_alone(self, seen: Seen) -> Step:
        if seen.lost_s <= 0:
            return NOTHING
        if not seen.has_file:
            end = seen.exit_code
            if end is None:
                end = 0 if self._has_ended_well else 1
            text = f"the head ({self._head}) has ended the run while it could not be heard here: ending, too"
            return Step(text, "info" if end == 0 else "warn", end=end)
        if self._has_ended_well and self._closed_s is not None and seen.now_s - self._closed_s >= CLOSED_S:
            return Step(f"the ranks here have ended well, and the head ({self._head}) is gone: ending, too", end=0)
        if seen.lost_s > self._head_gone_s:
            return Step(is_lost=True)
        text = (
            f"no contact with the head ({self._head}), and no rank is alive here: waiting {self._head_gone_s:g} s for "
            "it, or for another guardrun there, then ending"
        )
        return Step(text, "warn")

    def _not_found(self, seen: Seen) -> Step:
        waited_s = seen.now_s - self._began_s
        if waited_s > self._join_timeout_s:
            said = f"no head found for {waited_s:.0f} s{self._awaited} (join file {self._join_file})"
            return Step(said, "bad", end=1)
        if self._refused_s is not None or self._is_unusable or waited_s <= FIRST_S:
            return NOTHING
        if seen.failures >= AGAIN and seen.obstacle in _TURNED:
            return Step(_TURNED[seen.obstacle].format(place=seen.place, file=self._join_file), "bad")
        is_empty = seen.obstacle is Obstacle.NOBODY and seen.failures >= AGAIN
        where = f": nothing listens at {seen.place} yet, which {self._join_file} names" if is_empty else ""
        if where and is_loopback(seen.place.rpartition(":")[0]):
            where += " (if it is on another host: name it there by an address that this node reaches)"
        text = where or f"{self._awaited}{_BY_FILE.format(file=self._join_file)}"
        return Step(f"waiting for the head{text}; {self._join_timeout_s:g} s at most")


_BY_FILE = " (by {file}, in a folder that it shares with this node, or name a file that it does with --guard-join)"
_OTHERS = "the file is another run's or an earlier one's; remove it, or name this run's with --guard-join"
_TURNED = {
    Obstacle.TURNED_AWAY: f"what listens at {{place}} does not take the keys in {{file}}: {_OTHERS}",
    Obstacle.UNANSWERED: f"what listens at {{place}} does not answer to the keys in {{file}}: {_OTHERS}",
}


# End notice ---------------------------------------------------------------------------------------------------------
# What the nodes that do not lead say at a bad end: the head's terminal is not theirs.


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
