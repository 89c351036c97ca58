"""One run's supervisor: the loop between the sockets, the collectors and the engine.

All that decides is in `Engine`; this file moves facts in and carries actions out. Nothing in the loop waits for
anything but its poller: looks, exits and checkpoints are read by worker threads, whose answers come back
through a queue and a wake-up descriptor. A loop that did not run for a while says so to the engine (TimeSkipped).
"""

from __future__ import annotations

import math
import os
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from guardrun.hooks.messages import MAX_MESSAGE_BYTES
from guardrun.launcher.sockets import ensure_socket_folder
from guardrun.supervisor import recurrence, wire
from guardrun.supervisor.answers import Answers
from guardrun.supervisor.clock import EngineClock
from guardrun.supervisor.collect.cleanup import end_run
from guardrun.supervisor.collect.oom import OomWatch
from guardrun.supervisor.collect.procfs import read_stat
from guardrun.supervisor.collect.sampler import Sampler
from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.engine import Engine
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.desk import Desk
from guardrun.supervisor.journal import Journal, recover
from guardrun.supervisor.log import log
from guardrun.supervisor.nodedesk import NodeDesk
from guardrun.supervisor.pace import Pace
from guardrun.supervisor.performer import Performer, open_chooser
from guardrun.supervisor.printable import encode_msgpack
from guardrun.supervisor.rundir import RunFile
from guardrun.supervisor.scribe import Scribe
from guardrun.supervisor.terminal import Terminal
from guardrun.supervisor.timeline import Timeline

if TYPE_CHECKING:
    from guardrun.supervisor.exposition import MetricsServer

SAMPLE_S = 1.0
SKIP_S = 5.0
"""A loop that wakes this much later than it asked for was not running: frozen, stopped, or the machine was."""
BEATS_A_TURN = 2000
"""Frames taken from the ranks' socket before the other work gets its turn."""
WORKERS = 3


class Daemon:
    """Runs until the run is over, or its launcher is gone."""

    def __init__(self, run_dir: Path, run: RunFile, scribe: Scribe) -> None:
        self.run_dir = run_dir
        self.scribe = scribe
        self.run_file = run
        self.clock = EngineClock(run.clock_base_s, run.clock_mono_s)
        self.sockets = Path(run.socket_dir)
        self.terminal = Terminal()
        self.sampler = Sampler(self.clock, self.sockets, run.launcher_pid)
        self.oom = OomWatch()
        self.chooser = open_chooser(run_dir, run)
        self.engine, self.journal = self._recover()
        self.is_over = False
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="guardrun-worker")
        # One thread, so that a choice comes after every save that was told before it.
        self.checkpoint_pool = ThreadPoolExecutor(1, thread_name_prefix="guardrun-checkpoints")
        self.node = NodeDesk(self)
        self.performer = Performer(self)
        self.desk = Desk(self.clock, self.sampler, self.performer.saved, self.performer.loaded)
        self.answers = Answers(self)
        self._context = zmq.Context()
        self._beats = self._bind(zmq.PULL, wire.BEATS_SOCKET, MAX_MESSAGE_BYTES)
        self._control = self._bind(zmq.ROUTER, wire.CONTROL_SOCKET, wire.MAX_CONTROL_BYTES)
        self._decoder: msgspec.msgpack.Decoder[wire.ToSupervisor] = msgspec.msgpack.Decoder(wire.ToSupervisor)
        self._launcher: bytes | None = None
        self._launcher_fd = _open_launcher(run)
        self._next_sample = 0.0
        self._pace = Pace()
        self.malformed = 0
        self._said_trouble = False
        self._has_greeted = False
        self._metrics = self._serve_metrics()

    # The loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the run is over."""
        poller = zmq.Poller()
        poller.register(self._beats, zmq.POLLIN)
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        if self._launcher_fd >= 0:
            poller.register(self._launcher_fd, zmq.POLLIN)
        last = time.monotonic()
        while not self.is_over:
            wait_s = self._wait_s()
            ready = dict(poller.poll(math.ceil(wait_s * 1000)))
            now = time.monotonic()
            if now - last - wait_s > SKIP_S:
                self._skipped(now - last)
            last = now
            if self._launcher_fd < 0 or self._launcher_fd in ready:
                self._launcher_died()
                return
            if self._control in ready:
                self._read_control()
            if self._beats in ready:
                self._read_beats()
            if self._wake in ready:
                self._read_inbox()
            if now >= self._next_sample:
                self._sample(now)
            self._tick()

    def close(self) -> None:
        """Let go of everything; waits a moment for what is still to be said or sent."""
        if self._metrics is not None:
            self._metrics.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.checkpoint_pool.shutdown(wait=False, cancel_futures=True)
        self._beats.close(linger=0)
        self._control.close(linger=1000)
        self._context.term()
        self.node.close()
        self.terminal.close()
        self.sampler.close()
        self.oom.close()
        self.journal.close()
        os.close(self._wake)
        if self._launcher_fd >= 0:
            os.close(self._launcher_fd)

    def _wait_s(self) -> float:
        times = [self._next_sample - time.monotonic()]
        due_s = self._pace.due_s(self.engine.next_deadline_s())
        if due_s is not None:
            times.append(due_s - self.clock.now())
        return max(0.0, min(times))

    def _tick(self) -> None:
        due_s = self._pace.due_s(self.engine.next_deadline_s())
        if due_s is not None and self.clock.now() >= due_s:
            has_failed = not self.feed(ev.Ticked())
            self._pace.ticked(self.clock.now(), has_failed, self.engine.next_deadline_s())

    def _sample(self, now: float) -> None:
        self._next_sample = now + SAMPLE_S
        if self.engine.state.phase in (Phase.RUNNING, Phase.STOPPING):
            reports = self.sampler.sample()
            if reports:
                self.desk.sampled(reports)
                self.feed(ev.NodeReport(node=self.run_file.node, attempt=self.desk.attempt, ranks=reports))
        if self.engine.state.phase is Phase.RUNNING:
            missing = self.desk.missing_hooks()
            if missing is not None:
                self.feed(missing)
        self.node.sample()
        self.journal.rotate_if_large(self.engine)
        self.performer.poll()
        self._tell_trouble()

    # Events in, actions out ----------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> bool:
        """Tell the engine, note it in the journal, carry out what it says. False where the engine raised."""
        now_s = self.clock.now()
        self.timeline.feed(event, now_s)
        try:
            actions = self.engine.handle(event, now_s)
        except Exception as error:
            # A bug of ours must not end the supervision: the event is set aside, the state is made anew without it.
            log.exception("engine_raised", event_type=type(event).__name__)
            self.journal.append_error(event, repr(error), now_s)
            self.journal.close()
            self.engine, self.journal = self._recover()
            return False
        self.journal.append(event, actions, self.engine.last_s)
        for action in actions:
            self.performer.perform(action)
        return True

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop's thread make a call; for worker threads."""
        self._inbox.put(call)
        os.eventfd_write(self._wake, 1)

    def send(self, order: wire.ToLauncher) -> None:
        """Give the launcher an order; it is asked for again by the engine's deadlines where it gets lost."""
        if self._launcher is not None:
            self.send_to(self._launcher, order)

    def send_to(self, peer: bytes, message: wire.ToLauncher | wire.Answer) -> None:
        try:
            self._control.send_multipart([peer, encode_msgpack(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.warning("not_sent", message_type=type(message).__name__, error=str(error))

    # Sockets ---------------------------------------------------------------------------------------------------

    def _bind(self, kind: int, name: str, limit_bytes: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set(zmq.MAXMSGSIZE, limit_bytes)
        socket.set(zmq.RCVHWM, 20000)
        ensure_socket_folder(self.sockets)
        path = self.sockets / name
        path.unlink(missing_ok=True)  # a supervisor that was killed leaves its socket behind
        socket.bind(f"ipc://{path}")
        return socket

    def _read_inbox(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while not self._inbox.empty():
            self._inbox.get()()

    def _read_beats(self) -> None:
        for _ in range(BEATS_A_TURN):
            try:
                data = self._beats.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            for event in self.desk.receive(data):
                if isinstance(event, ev.GcHeld):
                    self._sample(time.monotonic())  # who waited meanwhile is told by where everybody is now
                self.feed(event)

    def _read_control(self) -> None:
        for _ in range(BEATS_A_TURN):
            try:
                peer, *frames = self._control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decoder.decode(frames[-1] if frames else b"")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.malformed += 1
                continue
            if isinstance(message, wire.Ask):
                self.answers.answer(peer, message)
            else:
                self._from_launcher(peer, message)

    def _from_launcher(
        self, peer: bytes, message: wire.LauncherHello | wire.Started | wire.Exited | wire.Stopped | wire.Signalled
    ) -> None:
        self._launcher = peer
        if isinstance(message, wire.LauncherHello):
            self._hello(message)
            self.send(wire.Ack(seq=0))
            return
        if isinstance(message, wire.Started):
            self._started(message)
        elif isinstance(message, wire.Exited):
            # The boards outlive their ranks: where it fell is what its last words there say.
            self._sample(time.monotonic())
            self.feed(
                ev.RankExited(
                    attempt=message.attempt,
                    global_rank=message.global_rank,
                    pid=message.pid,
                    exitcode=message.exitcode,
                    at_s=self.clock.at_ns(message.at_ns),
                )
            )
        elif isinstance(message, wire.Stopped):
            self.feed(
                ev.AttemptStopped(
                    attempt=message.attempt,
                    exitcodes=message.exitcodes,
                    stopped_by_us=message.stopped_by_us,
                    survivors=message.survivors,
                    took_s=message.took_s,
                )
            )
        else:
            self.feed(ev.StopRequested(signum=message.signum))
        self.send(wire.Ack(seq=message.seq))

    def _hello(self, hello: wire.LauncherHello) -> None:
        """The launcher is there: open the run, go on with it, or take up where the last supervisor was."""
        state = self.engine.state
        run = self.run_file
        wall_s = time.time()
        if state.phase is Phase.NEW:
            self.feed(
                ev.RunOpened(
                    run_id=run.run_id,
                    settings=run.settings,
                    node=run.node,
                    command=run.command,
                    world_size=hello.world_size,
                    wall_s=wall_s,
                )
            )
        elif state.session < run.session:
            self.feed(
                ev.RunContinued(
                    settings=run.settings,
                    node=run.node,
                    world_size=hello.world_size,
                    wall_s=wall_s,
                    session=run.session,
                )
            )
        elif not self._has_greeted:
            # First: what was being read when the last supervisor went is asked for again.
            self.performer.error_files, self.performer.stderr_files = hello.error_files, hello.stderr_files
            self.feed(ev.SupervisorRestarted())
            if hello.alive and hello.attempt == (state.attempt.number if state.attempt else -1):
                self._watch(hello.attempt, hello.alive, state.attempt.resumed_from if state.attempt else None)
        if not self._has_greeted:
            recurrence.start_reading(self)
        self._has_greeted = True
        self.chooser.set_world_size(hello.world_size)

    def _started(self, message: wire.Started) -> None:
        if message.error:
            self.feed(ev.AttemptNotStarted(attempt=message.attempt, error=message.error))
            return
        self.performer.error_files = message.error_files
        self.performer.stderr_files = message.stderr_files
        self._watch(message.attempt, message.ranks, message.checkpoint)
        self.feed(ev.AttemptStarted(attempt=message.attempt, ranks=message.ranks, resumed_from=message.checkpoint))

    def _watch(self, attempt: int, ranks: list[ev.Rank], checkpoint: ev.Checkpoint | None) -> None:
        if attempt == self.desk.attempt and set(self.desk.ranks) == {r.global_rank for r in ranks}:
            return  # told again
        self.sampler.attempt_started(attempt, ranks)
        self.desk.attempt_started(attempt, ranks, checkpoint)
        self.oom.attempt_started([rank.pid for rank in ranks])
        if checkpoint is not None and _resumes_by_configuration(self.run_file):
            for rank in ranks:
                self.desk.set_base(attempt, rank.global_rank, checkpoint.step)

    def _serve_metrics(self) -> MetricsServer | None:
        listen = self.run_file.config.get("metrics", {}).get("listen", "")
        if not listen:
            return None
        from guardrun.supervisor.jobmetrics import start_job_metrics  # megabytes that most runs have no use for

        return start_job_metrics(listen, self.post, self.answers.status)

    # Troubles ---------------------------------------------------------------------------------------------------

    def _recover(self) -> tuple[Engine, Journal]:
        self.timeline = Timeline()
        try:
            engine, result = recover(self.run_dir, self.timeline.feed)
        except OSError:
            return Engine(), Journal(self.run_dir, scribe=self.scribe)
        log.info("recovered", events=result.events, phase=engine.state.phase.value, trouble=result.mismatches[:5])
        return engine, Journal(self.run_dir, result.last_number + 1, scribe=self.scribe)

    def _skipped(self, gap_s: float) -> None:
        log.warning("time_skipped", gap_s=round(gap_s, 1))
        if self.engine.state.phase is not Phase.NEW:
            self.feed(ev.TimeSkipped(gap_s=gap_s))

    def _tell_trouble(self) -> None:
        if self.journal.trouble and not self._said_trouble:
            self._said_trouble = True
            self.terminal.say(
                f"the run directory can't be written ({self.journal.trouble}): training goes on without a record",
                "warn",
            )
            log.error("journal_trouble", error=self.journal.trouble)

    def _launcher_died(self) -> None:
        """guardrun was killed: nothing that it started may live on."""
        log.error("launcher_died", pid=self.run_file.launcher_pid)
        self.terminal.say("guardrun itself was killed: ending its ranks", "bad")
        run = self.run_file
        left = end_run(run.launcher_pid, run.token, self.sampler.descendants, launcher_start=run.launcher_start)
        if left:
            self.terminal.say(f"processes {left} could not be ended, not even by SIGKILL", "bad")
        self.performer.remove_sockets()


def _resumes_by_configuration(run: RunFile) -> bool:
    """Whether the user has said how a checkpoint reaches the script: then a rank that is given one takes it."""
    table = run.config.get("checkpoint", {})
    return bool(table.get("resume_args") or table.get("resume_env"))


def _open_launcher(run: RunFile) -> int:
    """A pidfd of the launcher; -1 where it is already gone (or its pid is somebody else's)."""
    try:
        fd = os.pidfd_open(run.launcher_pid)
    except OSError:
        return -1
    stat = read_stat(run.launcher_pid)
    if stat is None or stat.start != run.launcher_start:
        os.close(fd)
        return -1
    return fd
