"""Has a person released this node? Asked while it stands idle in a job of several: it may have been left out.

The record is read by a worker thread: it may lie on disks that do not answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from guardrun.supervisor.engine.model.events import NodeReleased
from guardrun.supervisor.node.run_context import LoopContext

if TYPE_CHECKING:
    from guardrun.supervisor.rundir.run_directory import RunFile

EVERY_S = 10.0
MAX_REASON_CHARS = 200


class Released(NamedTuple):
    """A person's word."""

    who: str
    at_wall_s: float
    reason: str


class Releases:
    """Tells each release once."""

    def __init__(self, context: LoopContext, may_be_left_out: Callable[[], bool]) -> None:
        """may_be_left_out: as far as is known here; whoever decides about the node would hear of its release."""
        self._context, self._may_be_left_out = context, may_be_left_out
        self._due_s = time.monotonic() + EVERY_S
        """Never while the record is being read."""
        self._told_wall_s = 0.0

    def sample(self) -> None:
        """Once a second, by the loop."""
        if time.monotonic() < self._due_s or not self._may_be_left_out():
            return
        self._due_s = inf
        self._context.in_background(self._ask, lambda error: self._asked())

    def _ask(self) -> NodeReleased | None:
        released = read_released(self._context.run_file, os.environ)
        self._asked()
        if released is None or released.at_wall_s <= self._told_wall_s:
            return None
        self._told_wall_s = released.at_wall_s
        at_s = self._context.clock.now() - max(0.0, time.time() - released.at_wall_s)
        return NodeReleased(node=self._context.run_file.node, at_s=at_s, who=released.who, reason=released.reason)

    def _asked(self) -> None:
        self._due_s = time.monotonic() + EVERY_S


def read_released(run: RunFile, environ: Mapping[str, str]) -> Released | None:
    """The newest release of this node by a person; None where there is none, or anything still keeps runs from it."""
    from guardrun.supervisor.health.quarantine_rules import MACHINES, counting
    from guardrun.supervisor.quarantine.record_places import find_places, folders_of, may_hold_any, names_here
    from guardrun.supervisor.quarantine.records import read_node

    now_wall_s, folders = time.time(), folders_of(run.config, run.cwd)
    newest: Released | None = None
    for name in dict.fromkeys([run.node, *names_here(environ)]):
        places = find_places(*folders, environ, name)
        if not may_hold_any(places):
            continue
        record, _ = read_node(places, name)
        if counting(record, now_wall_s, os.getuid()):
            return None
        for one in record.releases:
            if one.who not in MACHINES and (newest is None or one.at_wall_s > newest.at_wall_s):
                newest = Released(one.who, one.at_wall_s, one.reason[:MAX_REASON_CHARS])
    return newest
