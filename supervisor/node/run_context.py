"""What a part of a run's supervisor uses of the whole: the run that it serves, and the loop that it works for.

A part takes the narrowest of these, and names beside it what else it uses. The run and the loop are the node's
(node_supervisor.py); checkpoints and the engine are its role's, where that decides. No part knows the classes of these,
which are made of the parts: so parts lie in folders below them, and a test gives a part what it uses and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from guardrun.supervisor.engine.model import events as ev

if TYPE_CHECKING:
    from guardrun.supervisor.base.background_work import BackgroundWriter
    from guardrun.supervisor.base.clock import EngineClock
    from guardrun.supervisor.base.log import Terminal
    from guardrun.supervisor.checkpoints.chooser import Chooser
    from guardrun.supervisor.engine.engine import Engine
    from guardrun.supervisor.rundir.run_directory import RunFile


class RunContext(Protocol):
    """The run, and what all parts share; the same for as long as the supervisor lives."""

    @property
    def run_dir(self) -> Path:
        """The run directory."""

    @property
    def run_file(self) -> RunFile:
        """What run.json says."""

    @property
    def clock(self) -> EngineClock:
        """The engine's clock."""

    @property
    def terminal(self) -> Terminal:
        """Where a person reads; any thread may say a line."""

    @property
    def writer(self) -> BackgroundWriter:
        """Writes files, so that the loop never waits for a disk."""

    @property
    def pool(self) -> ThreadPoolExecutor:
        """For whatever may block; raises RuntimeError once the supervisor closes."""


class EventLoop(Protocol):
    """The loop on whose thread the parts run."""

    def feed(self, event: ev.Event) -> bool:
        """Give a fact to whoever decides; on the loop's thread. False where that failed."""

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop's thread make a call; for worker threads."""

    def in_background(
        self,
        work: Callable[[], ev.Event | None],
        instead: Callable[[str], ev.Event | None],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Have a worker thread make an event, and feed it; `instead` makes one where it raises."""


class LoopContext(RunContext, EventLoop, Protocol):
    """What most parts use of the node's supervisor."""


class CheckpointContext(Protocol):
    """The run's checkpoints."""

    @property
    def chooser(self) -> Chooser:
        """Knows them, and chooses; may block as their file system does."""

    @property
    def checkpoint_pool(self) -> ThreadPoolExecutor:
        """The chooser's thread: one, so that a choice comes after every save that was seen before it."""


class EngineContext(Protocol):
    """Where the engine runs."""

    @property
    def engine(self) -> Engine:
        """To be read anew each time: it is made again from the journal where it raised."""


class DecidingContext(EngineContext, Protocol):
    """Where facts go to the engine directly."""

    def handle(self, event: ev.Event) -> bool:
        """Tell the engine at once of what need not be put together with other nodes' parts. False where it raised."""
