"""The launcher's loop: one thread that starts, watches and stops attempts as it is told, and decides nothing.

It waits in one place, for whatever comes first: a rank's end, a signal, an order, the supervisor's end, a deadline.
Facts go to the supervisor; orders come from it, or, once it has been given up, from `fallback`, which orders what
torchrun would do. Orders are idempotent by the attempt's number.

One class, as one thread waits for all of it, and whatever comes may change what else is waited for.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import zmq

from guardrun.launcher.attempt.attempt import Attempt
from guardrun.launcher.attempt.attempt_start import StartError
from guardrun.launcher.attempt.attempt_stop import Outcome, Stopping, Sweeper, reap_orphans
from guardrun.launcher.attempt.checkpoint_reads import OpenWatch, watch
from guardrun.launcher.base.processes import DEAD, read_stat
from guardrun.launcher.base.resilient_loop import keep_turning
from guardrun.launcher.base.signals import Signals, catches, give
from guardrun.launcher.base.terminal_lines import Log, print_line
from guardrun.launcher.control import fallback
from guardrun.launcher.control.control_channel import Order
from guardrun.launcher.control.fallback import find_newest
from guardrun.launcher.control.lease_fence import LOOK_S, LeaseFence
from guardrun.launcher.control.supervision import Supervision
from guardrun.launcher.creation.run_creation import OpenRun
from guardrun.supervisor.collect.ranks.boards import BoardReader, open_boards
from guardrun.supervisor.engine.model.events import Checkpoint, Rank
from guardrun.supervisor.fleet.protocol.lease import boot_s, end_words
from guardrun.supervisor.wire.control_messages import (
    Exited,
    Finish,
    LauncherHello,
    Opened,
    Serving,
    Signalled,
    Start,
    Started,
    Stop,
    Stopped,
)

if TYPE_CHECKING:
    from guardrun.launcher.warm.warm_ranks import WarmRanks

IDLE_S = 1.0
"""The loop turns at least this often."""

RESULT_POLL_S = 0.1
"""How often functions as ranks are asked for their results, as torchrun does."""

FINISH_PATIENCE_S = 10.0
"""After the user's signal has ended the ranks: how long the supervisor may take to write the run's end."""


class Starts(Protocol):
    """Who starts attempts."""

    @property
    def world_size(self) -> int:
        """Ranks on this node."""

    def start(self, order: Start, on_serving: Callable[[str, int], object]) -> Attempt:
        """on_serving: called with address and port once the attempt's store is served here. Raises StartError."""


@dataclass
class Loop:
    """A run, from the first attempt to the exit status."""

    run: OpenRun
    starter: Starts
    signals: Signals
    log: Log
    max_restarts: int
    stop_grace_s: float
    is_first_ordered: bool
    """The first attempt, too, waits for the supervisor: a checkpoint must be chosen for it."""
    attempt: Attempt | None = None
    """The last one that was started."""
    number: int = -1
    checkpoint: Checkpoint | None = None
    notices: Collection[signal.Signals] = ()
    """Signals that say the job is about to end."""
    is_forwarding: bool = False
    """Ranks that have a handler for a notice are given it."""
    shutdown_timeout_s: float = 30.0
    """Between a signal from the user, passed on to the ranks, and SIGKILL."""
    linger_s: float = 0.0
    """What ranks that ended well have left running is given so long."""
    poll_s: float = RESULT_POLL_S
    """How often attempts that need it are polled."""
    warm: WarmRanks | None = None
    """None: ranks are never forked."""
    is_over: bool = True
    """Nothing of the last attempt is alive."""
    stopped_by_us: list[int] = field(default_factory=list)
    _exitcodes: dict[int, int] = field(default_factory=dict)
    _starts: int = 0
    _started_seq: int = 0
    """The fact that the last attempt has started."""
    _stopping: Stopping | None = None
    _pending: Start | None = None
    _signum: signal.Signals | None = None
    _noted: set[signal.Signals] = field(default_factory=set)
    _is_preempted: bool = False
    _finish: int | None = None
    _finish_by_s: float = 0.0
    _start_error: str = ""
    _serving: tuple[str, int] | None = None
    """Where the store of the last attempt is served, if it is here and other nodes need it."""
    _opens: OpenWatch | None = None
    """Until somebody has read from a checkpoint of the run in this attempt."""
    _outcome: Outcome | None = None
    """Of the last attempt that was stopped."""
    _fence: LeaseFence = field(default_factory=LeaseFence)
    _boards: dict[int, BoardReader] = field(default_factory=dict)
    """Of the last attempt's ranks, where this node is under a lease."""
    _begun_again: int = -1
    """The attempt whose end a supervisor was started for, after they had been given up."""
    supervision: Supervision = field(init=False)
    sweeper: Sweeper = field(init=False)

    def attach(self, supervision: Supervision, earlier: Collection[int] = ()) -> None:
        """Give it its supervisor. earlier: children of this process that are none of the run's."""
        self.supervision = supervision
        self.sweeper = Sweeper(self.run.file.token, self._spared, earlier)

    def hello(self, is_first: bool) -> LauncherHello:
        """Who is alive right now."""
        return LauncherHello(
            pid=self.run.file.launcher_pid,
            world_size=self.starter.world_size,
            attempt=self.number,
            alive=[] if self.attempt is None or self.is_over else self.attempt.alive(),
            is_first=is_first,
            error_files={} if self.attempt is None else self.attempt.error_files,
            stderr_files={} if self.attempt is None else self.attempt.stderr_files,
            stderr_from=-1 if self.attempt is None else self.attempt.stderr_from,
            lease=self._fence.cut_off_lease(self.number),
        )

    def go(self) -> int:
        """Run until the run is over; returns guardrun's exit status."""
        if not self.is_first_ordered:
            self._start(Start(attempt=0))
        return keep_turning(self._turn, self.log, self._is_anybody_alive)

    @property
    def is_signalled(self) -> bool:
        """A signal, or the scheduler, ended the run."""
        is_noted = self._finish is not None and self._finish - 128 in self._noted
        return self._signum is not None or self._is_preempted or is_noted

    def pass_error_on(self) -> None:
        """Leave the first failed rank's error file for whoever started guardrun, as torchrun does."""
        if self.attempt is not None and not self.is_signalled:
            self.attempt.pass_error_on(self._exitcodes)

    def report_failure(self) -> None:
        """Which ranks failed, as torchrun ends with it: scripts look for that."""
        if self.attempt is None or self.is_signalled:
            return
        if report := self.attempt.describe_failure(self._exitcodes, self.stopped_by_us):
            with suppress(OSError, ValueError):
                print(report, file=sys.stderr, flush=True)

    # One turn --------------------------------------------------------------------------------------------------

    def _is_anybody_alive(self) -> bool:
        """Asked of the kernel."""
        pids = set() if self.attempt is None else self.attempt.managed() | {rank.pid for rank in self.attempt.ranks}
        stats = [read_stat(pid) for pid in pids]
        return any(stat is not None and stat.state not in DEAD for stat in stats)

    def _turn(self) -> int | None:
        self._wait()
        now_s = time.monotonic()
        self._heed_all(now_s)
        self._note_opens()
        self._note_exits(now_s)
        for order in self.supervision.step(now_s):
            self._obey(order, now_s)
        if self.supervision.is_given_up and signal.SIGTERM in self._noted and self._signum is None:
            self._interrupt(signal.SIGTERM, now_s)  # nobody else will act on it
        if self.supervision.is_given_up and (own := self._own_order()) is not None:
            self._obey(own, now_s)
        self._keep_lease(now_s)
        self._advance_stop(now_s)
        if self.warm is not None:
            is_training = self._stopping is None and not self.is_over
            is_spare = self.attempt is None and self.run.file.fleet is not None
            self.warm.turn(now_s, is_used=is_training or is_spare)
        self._reap()
        if self.run.ownership is not None:
            self.run.ownership.touch(self.log.put)
        return self._status(time.monotonic())

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self.signals.fileno(), zmq.POLLIN)
        self.supervision.register(poller)
        if self.attempt is not None and not self.is_over:
            for fileno in self.attempt.filenos():
                poller.register(fileno, zmq.POLLIN)
        if self._opens is not None:
            poller.register(self._opens.fileno(), zmq.POLLIN)
        if self.warm is not None and (answers := self.warm.fileno()) is not None:
            poller.register(answers, zmq.POLLIN)
        poller.poll(math.ceil(self._patience_s() * 1000))

    def _patience_s(self) -> float:
        patience_s = IDLE_S
        if self._stopping is not None:
            patience_s = self._stopping.poll_s
        elif self.attempt is not None and not self.is_over and self.attempt.needs_polling:
            patience_s = self.poll_s
        elif not self.is_over and self._fence.cut_off_lease(self.number) is not None:
            patience_s = LOOK_S
        restart_s = self.supervision.seconds_to_restart(time.monotonic())
        return patience_s if restart_s is None else min(patience_s, restart_s)

    def _reap(self) -> None:
        reap_orphans(self._helpers() | (self.attempt.managed() if self.attempt is not None else set()))

    def _helpers(self) -> set[int]:
        """Children of this process that are no part of training."""
        helpers = self.supervision.pids() | (self.attempt.helpers() if self.attempt is not None else set())
        return helpers | (self.warm.pids() if self.warm is not None else set())

    def _spared(self) -> set[int]:
        """Likewise, now that all of them are known: whatever else there is is ended."""
        if self.warm is not None:
            self.warm.settle()
        return self._helpers()

    def _status(self, now_s: float) -> int | None:
        """guardrun's exit status, once the run is over."""
        if not self.is_over:
            return None
        if self._signum is not None:
            is_told = self._finish is not None or self.supervision.is_given_up
            return 128 + self._signum if is_told or now_s >= self._finish_by_s else None
        return self._finish

    # The lease -------------------------------------------------------------------------------------------------

    def _keep_lease(self, now_s: float) -> None:
        """Where no supervisor does."""
        lease = self.supervision.lease
        if lease is None or lease.attempt != self.number or self.is_over or self._stopping is not None:
            return
        boot = boot_s()
        if not self._boards and self.attempt is not None:
            ranks = [rank.global_rank for rank in self.attempt.ranks]
            self._boards = open_boards(self.run.file.socket_dir, self.number, ranks)
        self._fence.receive(lease, boot)
        words = ((rank, board.read()) for rank, board in self._boards.items())
        self._fence.note(((rank, read) for rank, read in words if read is not None), boot, time.monotonic_ns())
        over = self._fence.find_over(self.number, boot)
        if over is None:
            return
        lost_s, still_s = boot - over.contact_s, boot - over.progress_s
        self.log.write("lease_over", attempt=self.number, lost_s=round(lost_s, 1), still_s=round(still_s, 1))
        print_line(f"the supervisor does not answer; {end_words(self.run.file.node, lost_s, still_s)}")
        self._begin_stop(now_s, grace_s=0.0, signum=signal.SIGKILL)

    def _close_boards(self) -> None:
        for board in self._boards.values():
            board.close()
        self._boards = {}

    # Ranks -----------------------------------------------------------------------------------------------------

    def _note_exits(self, now_s: float) -> None:
        if self.attempt is None or self.is_over:
            return
        for rank, exitcode in self.attempt.poll():
            self._tell_exit(rank, exitcode)
        codes = self.attempt.exitcodes()
        if self._stopping is None and not self.attempt.alive() and not any(codes.values()):
            self._begin_stop(now_s, grace_s=0.0)  # only what the ranks left behind

    def _tell_exit(self, rank: Rank, exitcode: int) -> None:
        self._exitcodes[rank.global_rank] = exitcode
        at_ns, number, refusal = time.monotonic_ns(), self.number, ""
        if self.warm is not None and self._stopping is None:
            refusal = self.warm.note_exit(rank.pid, exitcode)
        self.log.write("rank_exited", attempt=number, rank=rank.global_rank, pid=rank.pid, exitcode=exitcode)
        self.supervision.send_fact(
            lambda seq: Exited(
                seq=seq,
                attempt=number,
                global_rank=rank.global_rank,
                pid=rank.pid,
                exitcode=exitcode,
                at_ns=at_ns,
                refusal=refusal,
            )
        )

    def _start(self, order: Start) -> None:
        self.number, self.checkpoint = order.attempt, order.checkpoint
        self._exitcodes, self.stopped_by_us, self._starts = {}, [], self._starts + 1
        self._serving, self._outcome = None, None
        if self.attempt is not None:
            self.attempt.release()
        trouble = self._watch_opens(order.siblings)
        try:
            attempt = self.starter.start(order, lambda address, port: self._tell_serving(order, address, port))
        except StartError as error:
            self.attempt, self._start_error, text = None, str(error), str(error)
            self.sweeper.sweep()
            self.log.write("attempt_not_started", attempt=order.attempt, error=text)
            self._heed_all(time.monotonic())  # told first: a start that a signal has ended is no failure
            self.supervision.send_fact(lambda seq: Started(seq=seq, attempt=order.attempt, ranks=[], error=text))
            return
        self.attempt, self.is_over, self._start_error = attempt, False, ""
        self._tell_started(attempt, order.checkpoint)
        if trouble:
            self._tell_opened("", trouble)

    def _watch_opens(self, siblings: list[str]) -> str:
        """Watch the run's checkpoints, before anything of the attempt lives. Why that is not possible; empty: it is."""
        self._end_watch()
        if siblings:
            try:
                self._opens = watch(siblings)
            except OSError as error:
                self.log.write("opens_not_watched", error=str(error))
                return str(error)
        return ""

    def _note_opens(self) -> None:
        path = self._opens.read() if self._opens is not None else ""
        if path:
            self._end_watch()
            self._tell_opened(path)

    def _end_watch(self) -> None:
        if self._opens is not None:
            self._opens.close()
            self._opens = None

    def _tell_opened(self, path: str, trouble: str = "") -> None:
        number = self.number
        self.log.write("checkpoint_opened", attempt=number, path=path, trouble=trouble)
        self.supervision.send_fact(lambda seq: Opened(seq=seq, attempt=number, path=path, trouble=trouble))

    def _tell_serving(self, order: Start, address: str, port: int) -> None:
        if order.place is None:
            return  # nobody else waits for it
        self._serving = (address, port)
        self.supervision.send_fact(lambda seq: Serving(seq=seq, attempt=order.attempt, address=address, port=port))

    def _tell_started(self, attempt: Attempt, checkpoint: Checkpoint | None) -> None:
        number, ranks = attempt.number, list(attempt.ranks)
        error_files, stderr_files = dict(attempt.error_files), dict(attempt.stderr_files)
        stderr_from = attempt.stderr_from
        self.log.write("attempt_started", attempt=number, pids=[rank.pid for rank in ranks])
        self._started_seq = self.supervision.send_fact(
            lambda seq: Started(
                seq=seq,
                attempt=number,
                ranks=ranks,
                checkpoint=checkpoint,
                error_files=error_files,
                stderr_files=stderr_files,
                stderr_from=stderr_from,
            )
        )

    # Orders ----------------------------------------------------------------------------------------------------

    def _own_order(self) -> Order | None:
        if self._finish is not None or self._signum is not None or self._pending is not None:
            return None
        if self._start_error:
            print_line(f"the ranks could not be started: {self._start_error}")
            return Finish(exit_code=1)
        if self._begins_again():
            return None
        view = fallback.View(
            attempt=self.number,
            checkpoint=self.checkpoint,
            is_stopping=self._stopping is not None,
            is_stopped=self.is_over,
            exitcodes=self._exitcodes,
            stopped_by_us=self.stopped_by_us,
            world_size=self.starter.world_size,
            restarts=self._starts - 1,
            is_alone=self.run.file.fleet is None,
            is_head=self.run.file.fleet is not None and self.run.file.fleet.is_head,
        )
        order = fallback.next_order(view, self.max_restarts, self.stop_grace_s)
        if isinstance(order, Finish) and order.exit_code != 0 and (words := fallback.end_words(view)):
            print_line(words)
        if isinstance(order, Start) and order.attempt > 0:
            # Begun anew, it would write over what the run has saved.
            checkpoint = find_newest(self.run.path) or self.checkpoint
            return Start(attempt=order.attempt, checkpoint=checkpoint)
        return order

    def _begins_again(self) -> bool:
        """Whether a supervisor is started all the same: only so the head hears how this node's ranks have ended."""
        fleet = self.run.file.fleet
        if fleet is None or fleet.is_head or not self.is_over or self._begun_again >= self.number:
            return False
        self._begun_again = self.number
        print_line("starting the supervisor again, to tell the head how this node's ranks have ended")
        self.supervision.begin_again(time.monotonic())
        return True

    def _obey(self, order: Order, now_s: float) -> None:
        if isinstance(order, Finish):
            self._finish, self._is_preempted = order.exit_code, order.is_preempted
            self._end_warm()
            if not self.is_over:
                self._begin_stop(now_s, grace_s=self.stop_grace_s)
        elif isinstance(order, Stop):
            if order.attempt == self.number and not self.is_over:
                # Without grace no handler is to do anything: between SIGTERM and SIGKILL one could begin to save.
                signum = signal.SIGTERM if order.grace_s > 0 else signal.SIGKILL
                self._prepare_next()
                self._begin_stop(now_s, order.grace_s, signum)
            elif self.run.file.fleet is not None and order.attempt >= self.number:
                self._tell_stopped_again(order.attempt)
        elif order.attempt == self.number and self.attempt is not None and self._is_forgotten(order):
            self._tell_started_again(order)
        elif order.attempt > self.number and self._signum is None and self._finish is None:
            if self.is_over:
                self._start(order)
            else:
                self._pending = order
                self._prepare_next()
                self._begin_stop(now_s, grace_s=0.0)

    def _begin_stop(self, now_s: float, grace_s: float, signum: signal.Signals = signal.SIGTERM) -> None:
        if self.attempt is None or self.is_over:
            return
        if self._stopping is not None:
            self._stopping.hurry(now_s, grace_s)
            return
        self.log.write("stop_began", attempt=self.number, grace_s=grace_s, signal=int(signum))
        self._stopping = Stopping(
            self.attempt, self.sweeper, now_s, grace_s, signum, linger_s=self.linger_s, print_line=print_line
        )

    def _prepare_next(self) -> None:
        if self.warm is not None and self._signum is None and self._finish is None:
            self.warm.prepare()

    def _end_warm(self) -> None:
        if self.warm is not None:
            self.warm.end()

    def _advance_stop(self, now_s: float) -> None:
        if self._stopping is None or self.attempt is None:
            return
        outcome = self._stopping.advance(now_s)
        if outcome is None:
            return
        self._note_exits(now_s)
        self._stopping, self.is_over, self.stopped_by_us = None, True, outcome.stopped_by_us
        self._note_opens()
        self._end_watch()
        self._close_boards()
        self.attempt.close(is_everything_dead=not self.attempt.alive())
        self._tell_stopped(outcome)
        self._finish_by_s = now_s + FINISH_PATIENCE_S
        pending, self._pending = self._pending, None
        if pending is not None and self._signum is None:
            self._start(pending)

    def _is_forgotten(self, order: Start) -> bool:
        """Say whether who orders it does not know that it was done: a new head's, or one whose journal was lost."""
        return order.place is not None or self.supervision.has_noted(self._started_seq)

    def _tell_started_again(self, order: Start) -> None:
        """And all that came of it."""
        if self._serving is not None:
            self._tell_serving(order, *self._serving)
        if self.attempt is not None:
            self._tell_started(self.attempt, self.checkpoint)
            for rank in self.attempt.ranks:
                if rank.global_rank in self._exitcodes:
                    self._tell_exit(rank, self._exitcodes[rank.global_rank])
        if self.is_over and self._outcome is not None:
            self._tell_stopped(self._outcome)

    def _tell_stopped_again(self, attempt: int) -> None:
        """Of a later attempt than the last, nothing has been started here: then that is what is told."""
        if attempt == self.number and self._outcome is not None:
            self._tell_stopped(self._outcome)
        elif attempt > self.number:
            self.supervision.send_fact(lambda seq: Stopped(seq=seq, attempt=attempt, exitcodes={}, stopped_by_us=[]))

    def _tell_stopped(self, outcome: Outcome) -> None:
        self._outcome = outcome
        number, codes = self.number, dict(self._exitcodes)
        self.log.write("attempt_stopped", attempt=number, exitcodes=codes, survivors=outcome.survivors)
        self.supervision.send_fact(
            lambda seq: Stopped(
                seq=seq,
                attempt=number,
                exitcodes=codes,
                stopped_by_us=outcome.stopped_by_us,
                survivors=outcome.survivors,
                took_s=outcome.took_s,
            )
        )

    # Signals ---------------------------------------------------------------------------------------------------

    def _heed_all(self, now_s: float) -> None:
        for signum in self.signals.pop_pending():
            self._heed(signum, now_s)

    def _heed(self, signum: signal.Signals, now_s: float) -> None:
        """A notice goes to the supervisor, and the ranks go on; a second SIGTERM is none any more."""
        is_again = signum == signal.SIGTERM and signum in self._noted
        if signum not in self.notices or is_again or self._signum is not None:
            self._interrupt(signum, now_s)
        elif not self.supervision.is_given_up:
            self._note(signum)
        elif signum == signal.SIGTERM:
            self._interrupt(signum, now_s)
        else:
            print_line(f"{signum.name} says that the job is about to end, but there is no supervisor to act on it")

    def _note(self, signum: signal.Signals) -> None:
        at_ns = time.monotonic_ns()
        self._noted.add(signum)
        alive = [] if self.attempt is None or self.is_over else self.attempt.alive()
        catchers = [rank for rank in alive if rank.global_rank >= 0 and catches(rank.pid, signum)]
        is_forwarded = self.is_forwarding and bool(catchers)
        self.log.write("noticed", signal=int(signum), forwarded=is_forwarded, catchers=len(catchers))
        kept = [] if is_forwarded or signum == signal.SIGTERM else [rank.global_rank for rank in catchers]
        self.supervision.send_fact(
            lambda seq: Signalled(
                seq=seq, signum=int(signum), is_notice=True, is_forwarded=is_forwarded, catchers=kept, at_ns=at_ns
            )
        )
        if is_forwarded:
            give(catchers, signum)

    def _interrupt(self, signum: signal.Signals, now_s: float) -> None:
        """The user, or a scheduler, wants an end: the ranks get the same signal; a second Ctrl-C ends them at once."""
        self.log.write("signalled", signal=int(signum))
        is_alone = self.run.file.fleet is None
        if self._signum is None and is_alone and self._stopping is not None and self._stopping.end_waiting(now_s):
            return  # training has ended well: what is interrupted is the waiting for what it left
        if self._signum is None:
            self._signum = signum
            self._finish_by_s = now_s + FINISH_PATIENCE_S
            self.supervision.send_fact(lambda seq: Signalled(seq=seq, signum=int(signum)))
            self._end_warm()
            if self._stopping is not None:
                self._stopping.forward(signum)
            self._begin_stop(now_s, self.shutdown_timeout_s, signum)
        elif signum == signal.SIGINT and self._stopping is not None:
            self._stopping.hurry(now_s)
        elif signum == signal.SIGINT:
            self._finish_by_s = now_s
        elif self._stopping is not None:
            self._stopping.forward(signum)
