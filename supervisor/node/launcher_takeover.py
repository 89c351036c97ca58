"""Where the launcher of one node of several does not do what it was ordered: its ranks are ended without it.

Its node takes no part any more until it runs again. A job of one node waits: nobody else does, and who stopped
guardrun there (Ctrl-Z) will have it go on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from guardrun.launcher.base import processes
from guardrun.supervisor.base.log import log
from guardrun.supervisor.collect.host.process_table import end_run
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.node.rank_message_ingest import RankMessageIngest
from guardrun.supervisor.node.run_context import LoopContext
from guardrun.supervisor.wire import control_messages
from guardrun.supervisor.wire.control_messages import Start, Stop

# Outstanding orders -------------------------------------------------------------------------------------------------
# Is the launcher not going to do what it was ordered? Pure: the caller has the clock, and looks at the process.
#
# A launcher that runs gives a sign of life every two seconds, and answers every order: an order to stop, at the latest
# when it has given up on what not even SIGKILL ends. One that was stopped (Ctrl-Z, SIGSTOP, a debugger), or that hangs
# in a file system that is dead, does neither, for hours maybe; with several nodes all others would wait for it.


STOPPED_S = 5.0
"""A launcher that is stopped, by what /proc says, was not heard for so long: not one that a limiter stops in turns."""
SILENT_S = 10.0
"""Likewise one that is not, as far as can be seen: five of its signs of life."""
MARGIN_S = 1.0
"""So long at least an order has been there for it."""
STOP_S = 15.0
"""Beyond the grace: for SIGKILL to work, five seconds; for the last sweep, as many; and what a busy node takes."""
START_S = 120.0
"""It forks, and makes files, which may lie on a file system that takes its time."""


class Outstanding:
    """The newest order to a launcher, until it is answered. Times are seconds of any one clock."""

    def __init__(self, now_s: float) -> None:
        self.order: Start | Stop | None = None
        self._since_s = self._heard_s = now_s

    def ordered(self, order: Start | Stop, attempt: int, now_s: float) -> None:
        """attempt: the newest that has been started here; what is ordered of older ones needs no answer."""
        if order.attempt < attempt:
            return
        old, self.order = self.order, order
        if old is None or (type(old), old.attempt) != (type(order), order.attempt):
            self._since_s = now_s

    def note_contact(self, now_s: float) -> None:
        """The launcher has said something."""
        self._heard_s = now_s

    def started(self, attempt: int) -> None:
        """Its ranks have been started, or could not be."""
        if isinstance(self.order, Start) and attempt >= self.order.attempt:
            self.order = None

    def stopped(self, attempt: int) -> None:
        """Nothing of an attempt is alive."""
        if self.order is not None and attempt >= self.order.attempt:
            self.order = None

    def skipped(self, gap_s: float) -> None:
        """Nobody ran here for so long: that was not the launcher's silence."""
        self._since_s += gap_s
        self._heard_s += gap_s

    def waited_s(self, now_s: float) -> float:
        """For how long the order has been there."""
        return now_s - self._since_s

    def is_overdue(self, now_s: float, is_stopped: bool) -> bool:
        """Whether it is not to be waited for any more. is_stopped: the launcher's process is."""
        order, silent_s, waited_s = self.order, now_s - self._heard_s, self.waited_s(now_s)
        if order is None:
            return False
        if is_stopped:
            return silent_s >= STOPPED_S and waited_s >= MARGIN_S
        limit_s = START_S if isinstance(order, Start) else order.grace_s + STOP_S
        return silent_s >= SILENT_S and waited_s >= limit_s


# Launcher takeover --------------------------------------------------------------------------------------------------


_STATES = {"T": "is stopped (SIGSTOP, or Ctrl-Z)", "t": "is stopped by a debugger", "D": "hangs in the kernel"}


class LauncherContext(LoopContext, Protocol):
    """What the launcher's takeover uses of the node's supervisor."""

    @property
    def ingest(self) -> RankMessageIngest:
        """Knows the ranks of the current attempt."""

    def send(self, order: control_messages.ToLauncher) -> None:
        """Give the launcher an order."""


class LauncherTakeover:
    """Called by the node's supervisor, from its loop."""

    def __init__(self, context: LauncherContext, give_up: Callable[[], object]) -> None:
        """give_up: the launcher does not obey; that this node is out has been fed, and nothing of it is alive."""
        self._context, self._give_up = context, give_up
        self.outstanding = Outstanding(time.monotonic())
        self._kill_s: float | None = None
        """Ranks have been asked to end; from here on they are ended."""
        self._ours: list[int] = []
        """Ranks that were alive then."""
        self._is_ending = False

    def ordered(self, order: control_messages.Start | control_messages.Stop) -> None:
        """The launcher was given an order."""
        self.outstanding.ordered(order, self._context.ingest.attempt, time.monotonic())

    def on_message(self, message: object) -> None:
        """The launcher has said this."""
        self.outstanding.note_contact(time.monotonic())
        if isinstance(message, control_messages.Started):
            self.outstanding.started(message.attempt)
        elif isinstance(message, control_messages.Stopped):
            self.outstanding.stopped(message.attempt)

    def step(self, now_s: float) -> None:
        """Once a second. now_s: of CLOCK_MONOTONIC, from before which no skip is untold."""
        order = self.outstanding.order
        if order is None or self._is_ending:
            self._kill_s = None
            return
        stat = processes.read_stat(self._context.run_file.launcher_pid)
        state = stat.state if stat is not None else "X"
        if state in processes.DEAD or not self.outstanding.is_overdue(now_s, state in "Tt"):
            self._kill_s = None
            return
        if self._kill_s is None:
            self._begin(order, state, now_s)
        if now_s >= (self._kill_s or 0.0) or not self._alive():
            self._end(order, state)

    def _begin(self, order: control_messages.Start | control_messages.Stop, state: str, now_s: float) -> None:
        """What the launcher would do first."""
        grace_s = order.grace_s if isinstance(order, control_messages.Stop) else 0.0
        self._kill_s = now_s + grace_s
        alive = self._alive()
        self._ours = [rank.global_rank for rank in alive]
        what = "start" if isinstance(order, control_messages.Start) else "stop"
        waited_s = self.outstanding.waited_s(now_s)
        log.warning("launcher_overdue", order=what, attempt=order.attempt, state=state, waited_s=round(waited_s, 1))
        then = "ending them without it" if what == "stop" else "the job goes on without this node"
        self._context.terminal.print_line(
            f"guardrun {_words(state)}, and was ordered to {what} its ranks: {then}", "bad"
        )
        if grace_s > 0:
            for rank in alive:
                processes.signal_group(rank.pid, signal.SIGTERM)

    def _end(self, order: control_messages.Start | control_messages.Stop, state: str) -> None:
        """Nothing of it may live on; by a worker thread, which takes a moment."""
        context, self._is_ending = self._context, True
        run, ours = context.run_file, self._ours
        known = {rank.pid: stat.start for rank, stat in self._children()}

        def work() -> None:
            left = end_run(run.launcher_pid, run.token, known)
            stopped = ev.AttemptStopped(
                attempt=order.attempt, exitcodes=self._exitcodes(), stopped_by_us=ours, survivors=left
            )
            context.post(lambda: self._report_stopped(order, state, stopped))

        context.in_background(work, lambda error: self._failed())

    def _failed(self) -> None:
        self._is_ending = False  # the next second tries again

    def _report_stopped(
        self, order: control_messages.Start | control_messages.Stop, state: str, stopped: ev.AttemptStopped
    ) -> None:
        """First that the node is out: what comes of the attempt's end is to know it."""
        self._is_ending, self._kill_s = False, None
        if self.outstanding.order is None:
            return  # it runs again, and has told it itself
        self.outstanding.order = None
        context = self._context
        # For when it goes on: what it was ordered to start is not to live.
        context.send(control_messages.Stop(attempt=order.attempt, grace_s=0.0))
        self.outstanding.order = None
        why = f"its guardrun {_words(state)}, and did not obey"
        # Who was stopped by somebody may come back; what a node's file systems do is the node's fault.
        is_unfit = state not in "Tt"
        context.feed(ev.NodeLeft(node=context.run_file.node, why=why, is_unfit=is_unfit))
        context.feed(stopped)
        self._give_up()

    def _children(self) -> list[tuple[ev.Rank, processes.Stat]]:
        """Ranks that the launcher has not reaped: their pids are nobody else's."""
        stats = [(rank, processes.read_stat(rank.pid)) for rank in self._context.ingest.ranks.values()]
        launcher = self._context.run_file.launcher_pid
        return [(rank, stat) for rank, stat in stats if stat is not None and stat.ppid == launcher]

    def _alive(self) -> list[ev.Rank]:
        return [rank for rank, stat in self._children() if stat.state not in processes.DEAD]

    def _exitcodes(self) -> dict[int, int]:
        return {
            rank.global_rank: os.waitstatus_to_exitcode(stat.exit_status)
            for rank, stat in self._children()
            if stat.state in processes.DEAD
        }


def _words(state: str) -> str:
    return _STATES.get(state, "does not answer")
