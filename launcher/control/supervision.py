"""The supervisor as the loop sees it: facts go in, orders come out, and whether it counts as dead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from guardrun.launcher.base.terminal_lines import Log, print_line
from guardrun.launcher.control.control_channel import Control, Order
from guardrun.launcher.control.supervisor_process import DAEMON_COMMAND, Daemon
from guardrun.supervisor.rundir.run_directory import RunFile, mend_run_file
from guardrun.supervisor.wire.control_messages import Fact, Finish, Lease

# Watchdog -----------------------------------------------------------------------------------------------------------
# When is the supervisor dead, wedged, or not worth another start? Pure: the caller has the clock.
#
# All times are CLOCK_MONOTONIC seconds.


PING_EVERY_S = 2.0
SILENCE_S = 10.0
"""Without any sign of life, it is wedged."""
FIRST_SILENCE_S = 30.0
"""Likewise for one that has yet to say its first word: on a busy machine imports take their time."""
STOPPED_S = 2.0
"""Found stopped by a signal for this long, it is replaced: nobody debugs a supervisor in mid-run."""
FROZEN_S = 3.0
"""Where the loop itself did not run for this long, the machine or the job was frozen: nobody's silence."""

MAX_DEATHS = 5
DEATHS_WITHIN_S = 60.0
BACKOFF_S = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Before the n-th restart of a row."""


class SupervisorWatchdog:
    """Judges one supervisor after the other."""

    def __init__(self, now_s: float) -> None:
        self._deaths: list[float] = []
        self._last_loop_s = now_s
        self._stopped_since_s: float | None = None
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._limit_s = FIRST_SILENCE_S
        self._contact_s = now_s
        self._pinged_s = now_s
        self._stopped_since_s = None

    def started(self, now_s: float) -> None:
        """A new supervisor has been started."""
        self._begin(now_s)

    def looped(self, now_s: float) -> None:
        """The loop runs: call at each turn, before anything is judged."""
        gap_s = now_s - self._last_loop_s
        self._last_loop_s = now_s
        if gap_s > FROZEN_S:
            self._contact_s += gap_s
            self._stopped_since_s = None

    def note_contact(self, now_s: float) -> None:
        """It showed a sign of life."""
        self._contact_s = now_s
        self._limit_s = SILENCE_S

    def is_ping_due(self, now_s: float) -> bool:
        """Say whether to ask for a sign of life now; saying yes counts as having asked."""
        if now_s - self._pinged_s < PING_EVERY_S:
            return False
        self._pinged_s = now_s
        return True

    def is_wedged(self, now_s: float, is_stopped: bool) -> bool:
        """Say whether it lives but will not answer again."""
        if not is_stopped:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        elif now_s - self._stopped_since_s >= STOPPED_S:
            return True
        return now_s - self._contact_s > self._limit_s

    def died(self, now_s: float) -> float | None:
        """It died, or was killed as wedged: when to start the next one, or None to give up."""
        self._deaths = [at_s for at_s in self._deaths if now_s - at_s < DEATHS_WITHIN_S] + [now_s]
        if len(self._deaths) >= MAX_DEATHS:
            return None
        return now_s + BACKOFF_S[min(len(self._deaths) - 1, len(BACKOFF_S) - 1)]


# Supervision --------------------------------------------------------------------------------------------------------


END_PATIENCE_S = 10.0
"""How long guardrund may take to end once the run has: a slow disk is waited for, a dead one not."""
LAST_WORD_S = 5.0
"""How long what it sent before it ended well may take to be read here: its end may be seen sooner."""


class Supervision:
    """Keeps a supervisor alive, until it has died too often."""

    def __init__(
        self,
        *,
        daemon: Daemon,
        control: Control,
        run_dir: Path,
        log: Log,
        now_s: float,
        command: Sequence[str] = DAEMON_COMMAND,
        run_file: RunFile | None = None,
    ) -> None:
        """run_file: written anew where the next supervisor could not read it."""
        self._daemon: Daemon | None = daemon
        self._control = control
        self._run_dir = run_dir
        self._log = log
        self._command = command
        self._run_file = run_file
        self._watchdog = SupervisorWatchdog(now_s)
        self._restart_s: float | None = None
        self._ended_s: float | None = None
        """When it was seen to have ended well, before its last word was read."""
        self._is_finished = False
        """It has said that the run is over, and ends by itself."""
        self.is_given_up = False

    def send_fact(self, make: Callable[[int], Fact]) -> int:
        """Send a fact (kept until journalled); answers its number."""
        return self._control.send_fact(make)

    def has_noted(self, seq: int) -> bool:
        """Say whether the fact of that number was journalled."""
        return self._control.is_acknowledged(seq)

    @property
    def lease(self) -> Lease | None:
        """The newest that a supervisor has said."""
        return self._control.lease

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller wait for orders and the supervisor's end. Both descriptors change when it is started again."""
        poller.register(self._control.socket, zmq.POLLIN)
        is_end_seen = self._is_finished or self._ended_s is not None
        if self._daemon is not None and self._daemon.fileno is not None and not is_end_seen:
            poller.register(self._daemon.fileno, zmq.POLLIN)

    def pids(self) -> set[int]:
        """Of the supervisor: it and its children are no part of an attempt."""
        return set() if self._daemon is None else {self._daemon.pid}

    def step(self, now_s: float) -> list[Order]:
        """Look after the supervisor; returns its orders."""
        self._watchdog.looped(now_s)
        orders, is_alive = self._control.read()
        if is_alive:
            self._watchdog.note_contact(now_s)
        self._is_finished |= any(isinstance(order, Finish) for order in orders)
        self._watch(now_s)
        return orders

    def seconds_to_restart(self, now_s: float) -> float | None:
        """Until the next supervisor is to be started, or this one's last word is waited for no longer; else None."""
        due_s = self._restart_s
        if self._ended_s is not None and not self._is_finished:
            due_s = self._ended_s + LAST_WORD_S
        return None if due_s is None else max(0.0, due_s - now_s)

    def finish(self) -> bool:
        """The run is over: wait for the supervisor to end. False where it has not written all that it had to."""
        self._control.close()
        if self._daemon is None:
            return True
        is_all_written = self._daemon.end(END_PATIENCE_S)
        self._daemon = None
        return is_all_written or not self._is_finished

    def _watch(self, now_s: float) -> None:
        if self._daemon is None:
            if self._restart_s is not None and now_s >= self._restart_s:
                self._start(now_s)
            return
        if not self._daemon.is_alive:
            if self._is_finished or self._is_last_word_due(now_s):
                return
            self._bury(now_s, f"ended unexpectedly ({self._daemon.ending})")
        elif self._watchdog.is_wedged(now_s, self._daemon.is_stopped):
            reason = "was stopped" if self._daemon.is_stopped else "no longer answered"
            self._daemon.kill()
            self._bury(now_s, reason)
        elif self._watchdog.is_ping_due(now_s):
            self._control.ping()

    def _is_last_word_due(self, now_s: float) -> bool:
        """Say whether a supervisor that has ended well may have said something that is still on its way."""
        if self._daemon is None or not self._daemon.has_ended_well:
            return False
        if self._ended_s is None:
            self._ended_s = now_s
        return now_s - self._ended_s < LAST_WORD_S

    def _bury(self, now_s: float, reason: str) -> None:
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None
        self._ended_s = None
        self._restart_s = self._watchdog.died(now_s)
        self._log.write("supervisor_lost", reason=reason, is_given_up=self._restart_s is None)
        if self._restart_s is not None:
            self._mend_run_file()
            print_line(f"the supervisor {reason}; starting it again (training goes on)")
            return
        self.is_given_up = True
        print_line(f"the supervisor {reason}, too often now: going on without it, as torchrun would")

    def begin_again(self, now_s: float) -> None:
        """Start one all the same, after they have been given up: it is given up again where it dies as often."""
        self.is_given_up, self._watchdog, self._restart_s = False, SupervisorWatchdog(now_s), now_s
        self._mend_run_file()

    def _mend_run_file(self) -> None:
        if (run_file := self._run_file) is not None:
            self._log.put(lambda: mend_run_file(self._run_dir, run_file))

    def _start(self, now_s: float) -> None:
        self._restart_s = None
        try:
            daemon = Daemon(self._command)
        except OSError as error:
            self._bury(now_s, f"could not be started ({error.strerror})")
            return
        daemon.assign(self._run_dir)
        self._daemon = daemon
        self._control.connect_anew()
        self._watchdog.started(now_s)
        self._log.write("supervisor_started", pid=daemon.pid)
