"""What a node's loop calls beside its own work: its role in the run.

`daemon/daemon.py` decides: it has the engine. `fleet/follower/follower.py` passes everything on to the head of a job of
several nodes. All is called on the loop's thread, where nothing else is said.
"""

from __future__ import annotations

from typing import Protocol

import zmq

from guardrun.hooks.wire.messages import CheckpointLoaded
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.wire import control_messages


class TurnRole(Protocol):
    """Works on the loop, too."""

    def register(self, poller: zmq.Poller) -> None:
        """Sockets of its own, beside the node's."""

    def due_s(self) -> float | None:
        """When `turn` has something to do at the latest, in the engine's seconds."""

    def turn(self, ready: dict[object, int]) -> None:
        """Once each time the loop has woken, after the node's own sockets have been read."""

    def sampled(self) -> None:
        """Once a second, after the ranks have been sampled."""

    def skipped(self, gap_s: float) -> None:
        """The loop did not run for so long."""


class LauncherRole(Protocol):
    """Goes by what the node's launcher says, and what becomes of it."""

    def greeted(self, hello: control_messages.LauncherHello) -> None:
        """The launcher says who is alive."""

    def serving(self, message: control_messages.Serving) -> None:
        """The launcher serves the store of an attempt."""

    def give_up_launcher(self) -> None:
        """guardrun does not obey here (several nodes): that this node is out has been fed; nothing of it is alive."""

    def orphaned(self) -> None:
        """guardrun was killed here; nothing of it is left."""


class RankRole(Protocol):
    """Knows how far the attempt is, and which files its ranks work with."""

    @property
    def is_watching(self) -> bool:
        """Ranks are alive, or being stopped."""

    @property
    def is_running(self) -> bool:
        """Ranks are alive, and are to be."""

    def saved(self, path: str, step: int, wall_s: float, inode: int, attempt: int) -> None:
        """A rank has saved; must not take time. inode: 0 where it is not known."""

    def loaded(self, message: CheckpointLoaded) -> None:
        """A rank has loaded something before its first step."""

    def told_of_snapshots(self, text: str) -> None:
        """A rank says what a person has to know of its copies in memory; nothing: it wants memory for them, now."""

    def folders(self) -> list[str]:
        """Those whose file systems matter to the run."""


class NodeRole(TurnRole, LauncherRole, RankRole, Protocol):
    """Gets the node's facts."""

    def feed(self, event: ev.Event) -> bool:
        """A fact: to whoever decides. False where that failed."""

    def answer(self, peer: bytes, ask: control_messages.Ask) -> None:
        """A question of guardctl's."""

    @property
    def may_be_left_out(self) -> bool:
        """As far as is known here: whoever decides about the node would hear of its release."""

    def isolation_settled(self, action: ac.Isolate, how: str = "") -> None:
        """Of a node, for whoever decides: all that it takes has been done.

        how: as IsolationSettled has it. Any thread may call it.
        """
