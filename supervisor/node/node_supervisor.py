"""What a run's supervisor does for its node, whoever decides: the loop between the sockets and the collectors.

Who decides is its role (node_role.py). Nothing in the loop waits for anything but its poller: looks and exits are read
by worker threads, whose answers come back through a queue and a wake-up descriptor.
"""

from __future__ import annotations

import math
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import zmq

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.messages import MAX_MESSAGE_BYTES
from guardrun.launcher.base.processes import ProcessHandle
from guardrun.launcher.base.socket_folder import Occupied, ensure_socket_folder
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.clock import EngineClock, SkipDetector
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import Terminal, log
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.collect.collectives.recorder_reader import RecorderReaders
from guardrun.supervisor.collect.host.oom_kills import OomWatch
from guardrun.supervisor.collect.host.process_table import end_run
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Reading
from guardrun.supervisor.fleet.transport.curve import ENDED_LINGER_MS
from guardrun.supervisor.node.launcher_takeover import LauncherTakeover
from guardrun.supervisor.node.live_code import LiveCode
from guardrun.supervisor.node.node_relations import NodeRelations, Releases
from guardrun.supervisor.node.node_role import NodeRole
from guardrun.supervisor.node.rank_examinations import RankExaminations
from guardrun.supervisor.node.rank_message_ingest import RankMessageIngest
from guardrun.supervisor.node.run_records import RunRecords
from guardrun.supervisor.node.slurm_drain import Drains
from guardrun.supervisor.node.start_gate import StartGate
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.wire import control_messages

SAMPLE_S = 1.0
BEATS_A_TURN = 2000
"""Frames taken from the ranks' socket before the other work gets its turn."""
WORKERS = 3
JUDGED_BY_BOARDS = (ev.GcHeld, ev.LookTaken, ev.RankExited)
"""Before these are told boards are read once more: who waited for a collection is told by where everybody is now; what
has advanced since a look began did not hang, however late that is; where a rank fell its last words say, as boards
outlive their ranks."""

FromLauncher = control_messages.LauncherHello | control_messages.Fact


class NodeSupervisor:
    """Runs until the run is over, or its launcher is gone."""

    def __init__(self, run_dir: Path, run: RunFile, writer: BackgroundWriter, role: NodeRole) -> None:
        """Calls nothing of the role, which may still be in the making."""
        self._role = role
        self.run_dir = run_dir
        self.writer = writer
        self.run_file = run
        self.clock = EngineClock(run.clock_base_s, run.clock_mono_s)
        self.sockets = Path(run.socket_dir)
        self._occupied = Occupied.join(self.sockets)
        self.terminal = Terminal()
        settings = run.settings
        self.sampler = Sampler(
            self.clock,
            self.sockets,
            run.launcher_pid,
            slow_window_s=settings.window_s,
            files_window_s=settings.files_window_s,
            memory_window_s=settings.memory_window_s,
        )
        self.oom = OomWatch()
        self.recorders = RecorderReaders()
        self.is_over = False
        self.error_files: dict[int, str] = {}
        self.stderr_files: dict[int, str] = {}
        """Of the current attempt, per global rank."""
        self.stderr_from = -1
        """Of the current attempt, as wire.Started has it."""
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """-1: closed."""
        self._wake_lock = threading.Lock()
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="guardrun-worker")
        self.drains = Drains(run.run_id, self.terminal.print_line, role.isolation_settled)
        self.relations = NodeRelations(self, role)
        self._releases = Releases(self, lambda: role.may_be_left_out) if run.fleet is not None else None
        self._records = RunRecords(run_dir, run, writer)
        self.ingest = RankMessageIngest(
            self.clock,
            self.sampler,
            role.saved,
            role.loaded,
            self._records.note_environment,
            on_snapshots=role.told_of_snapshots,
        )
        self.examinations = RankExaminations(self)
        self._context = zmq.Context()
        self._beats = self._bind(zmq.PULL, control_messages.BEATS_SOCKET, MAX_MESSAGE_BYTES)
        self._control = self._bind(zmq.ROUTER, control_messages.CONTROL_SOCKET, control_messages.MAX_CONTROL_BYTES)
        self._live = LiveCode(self, is_allowed=run.config.get("live", {}).get("eval") is True)
        self._decoder: msgspec.msgpack.Decoder[control_messages.ToSupervisor] = msgspec.msgpack.Decoder(
            known_type(control_messages.ToSupervisor)
        )
        self._launcher: bytes | None = None
        self._launcher_process = _open_launcher(run)
        self._stand_in = LauncherTakeover(self, role.give_up_launcher) if run.fleet is not None else None
        self._gate = StartGate(run.node, self.post, self.send, settings.gpu_memory_s)
        self._next_sample = 0.0
        self._skips = SkipDetector(time.monotonic())
        self.malformed = 0

    # The loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the run is over."""
        poller = zmq.Poller()
        poller.register(self._beats, zmq.POLLIN)
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        launcher = self._launcher_process
        if launcher is not None and launcher.fileno is not None:
            poller.register(launcher.fileno, zmq.POLLIN)
        self._role.register(poller)
        self._skips = SkipDetector(time.monotonic())
        while not self.is_over:
            wait_s = self._wait_s()
            ready: dict[object, int] = dict(poller.poll(math.ceil(wait_s * 1000)))
            now = time.monotonic()
            self._heed_skip(now, wait_s)
            # Without a descriptor: at each turn, which is once a second at least.
            if launcher is None or (launcher.fileno in ready if launcher.fileno is not None else launcher.has_ended()):
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
                self._role.sampled()
                if self._stand_in is not None:
                    self._stand_in.step(now)
            self._role.turn(ready)

    def judging_s(self) -> float:
        """The engine's time now, for whoever judges by it: the role has been told of all time that did not run."""
        now_ns = time.monotonic_ns()
        self._heed_skip(now_ns / 1e9)
        return self.clock.at_ns(now_ns)

    def power_readings(self) -> list[Reading]:
        """What the devices of this node's ranks draw right now."""
        return self.relations.power_readings()

    def _heed_skip(self, now: float, waited_s: float = 0.0) -> None:
        gap_s = self._skips.skipped_s(now, waited_s)
        if gap_s:
            if self._stand_in is not None:
                self._stand_in.outstanding.skipped(gap_s)
            self._role.skipped(gap_s)

    def close(self) -> None:
        """Let go of everything; waits a moment for what is still to be said, sent or drained."""
        self._gate.cancel()
        self.examinations.close()
        self._live.close()
        self.drains.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self._records.close()
        self._beats.close(linger=0)
        self._control.close(linger=1000)
        self._context.term()
        self.relations.close()
        self.terminal.close()
        self.sampler.close()
        self.oom.close()
        with self._wake_lock:  # a writer that is still at it posts what came of it: the number may be another's by then
            os.close(self._wake)
            self._wake = -1
        self._occupied.release()
        if self._launcher_process is not None:
            self._launcher_process.close()

    def _wait_s(self) -> float:
        wait_s = self._next_sample - time.monotonic()
        due_s = self._role.due_s()
        if due_s is not None:
            wait_s = min(wait_s, due_s - self.clock.now())
        return max(0.0, wait_s)

    def _sample(self, now: float) -> None:
        self._next_sample = now + SAMPLE_S
        if self._role.is_watching:
            reports = self.sampler.sample()
            self._records.note_steps(self.ingest.attempt, self.sampler.take_values())
            if reports:
                self.ingest.sampled(reports)
                self.feed(ev.NodeReport(node=self.run_file.node, attempt=self.ingest.attempt, ranks=reports))
        if self._role.is_running:
            missing = self.ingest.missing_hooks()
            if missing is not None:
                self.feed(missing)
        self.relations.sample()
        self.examinations.sample()
        if self._releases is not None:
            self._releases.sample()

    def feed(self, event: ev.Event) -> bool:
        """Give a fact to whoever decides; on the loop's thread. False where that failed."""
        if isinstance(event, JUDGED_BY_BOARDS):
            self._sample(time.monotonic())
        return self._role.feed(event)

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop's thread make a call; for worker threads."""
        self._inbox.put(call)
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def in_background(
        self,
        work: Callable[[], ev.Event | None],
        instead: Callable[[str], ev.Event | None],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Have a worker thread make an event, and feed it; `instead` makes one where it raises."""

        def job() -> None:
            try:
                event = work()
            except Exception as error:
                log.exception("worker_raised")
                event = instead(repr(error))
            if event is not None:
                self.post(lambda: self.feed(event))

        try:
            (pool or self.pool).submit(job)
        except RuntimeError:
            pass  # closing

    def send(self, order: control_messages.ToLauncher) -> None:
        """Give the launcher an order; it is asked for again by the engine's deadlines where it gets lost."""
        if self._gate.holds(order):
            return
        if isinstance(order, control_messages.Stop) and order.attempt == self.ingest.attempt:
            for board in self.sampler.boards.values():  # of ranks that wait for nothing else
                board.write(Field.STOPPING, 1)
        if self._launcher is not None:
            self.send_to(self._launcher, order)
            if self._stand_in is not None and isinstance(order, control_messages.Start | control_messages.Stop):
                self._stand_in.ordered(order)

    def send_to(self, peer: bytes, message: control_messages.ToLauncher | control_messages.Answer) -> None:
        """Send to one peer; what ZeroMQ does not take now is dropped, with a line in the log. Never waits."""
        try:
            self._control.send_multipart([peer, encode_msgpack(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.warning("not_sent", message_type=type(message).__name__, error=str(error))

    # Sockets ---------------------------------------------------------------------------------------------------

    def _bind(self, kind: int, name: str, limit_bytes: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, ENDED_LINGER_MS)
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
            self._feed_all(self.ingest.receive(data))

    def _feed_all(self, events: list[ev.Event]) -> None:
        for event in events:
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
            if isinstance(message, control_messages.Ask):
                self._role.answer(peer, message)
            else:
                self._from_launcher(peer, message)

    # The launcher ------------------------------------------------------------------------------------------------

    def _from_launcher(self, peer: bytes, message: FromLauncher) -> None:
        self._launcher = peer
        if self._stand_in is not None:
            self._stand_in.on_message(message)
        if isinstance(message, control_messages.LauncherHello):
            self._role.greeted(message)
            self._feed_all(self.ingest.take_early())
            self.send(control_messages.Ack(seq=0))
            return
        if isinstance(message, control_messages.Started):
            self._started(message)
        elif isinstance(message, control_messages.Serving):
            self._role.serving(message)
        elif isinstance(message, control_messages.Opened):
            self._opened(message)
        elif isinstance(message, control_messages.Exited):
            self.feed(
                ev.RankExited(
                    attempt=message.attempt,
                    global_rank=message.global_rank,
                    pid=message.pid,
                    exitcode=message.exitcode,
                    at_s=self.clock.at_ns(message.at_ns),
                    refusal=message.refusal,
                )
            )
        elif isinstance(message, control_messages.Stopped):
            if message.stopped_by_us or any(message.exitcodes.values()):
                pids = {rank.pid: rank.global_rank for rank in self.ingest.ranks.values()}
                self._gate.attempt_stopped(pids, self.relations.devices, message.survivors)
            self.feed(
                ev.AttemptStopped(
                    attempt=message.attempt,
                    exitcodes=message.exitcodes,
                    stopped_by_us=message.stopped_by_us,
                    survivors=message.survivors,
                    took_s=message.took_s,
                )
            )
        elif message.is_notice:
            notice = ev.PreemptionNoticed(
                signum=message.signum,
                is_forwarded=message.is_forwarded,
                catchers=message.catchers,
                at_s=self.clock.at_ns(message.at_ns),
            )
            self.feed(notice)
        else:
            self.feed(ev.StopRequested(signum=message.signum, node=self.run_file.node))
        self.send(control_messages.Ack(seq=message.seq))

    def note_files(self, told: control_messages.Started | control_messages.LauncherHello) -> None:
        """Where the current attempt's ranks write their errors and their stderr to."""
        self.error_files, self.stderr_files, self.stderr_from = told.error_files, told.stderr_files, told.stderr_from

    def _started(self, message: control_messages.Started) -> None:
        if message.error:
            self.feed(ev.AttemptNotStarted(attempt=message.attempt, error=message.error))
            return
        self.note_files(message)
        self.watch(message.attempt, message.ranks, message.checkpoint)
        self.feed(
            ev.AttemptStarted(
                attempt=message.attempt,
                ranks=message.ranks,
                resumed_from=message.checkpoint,
                memory=self._gate.take_outcome(),
            )
        )
        self._feed_all(self.ingest.take_early())

    def _opened(self, message: control_messages.Opened) -> None:
        if not message.trouble and message.attempt == self.ingest.attempt:
            for reader in self.sampler.boards.values():
                reader.write(Field.MAY_SAVE, 1)
        self.feed(ev.CheckpointOpened(attempt=message.attempt, path=message.path, trouble=message.trouble))

    def watch(self, attempt: int, ranks: list[ev.Rank], checkpoint: ev.Checkpoint | None) -> None:
        """These are this node's ranks from now on."""
        if self.ingest.knows(attempt, ranks):
            return  # told again, or those that are alive, as the launcher says every few seconds
        self.sampler.attempt_started(attempt, ranks)
        self.ingest.attempt_started(attempt, ranks, checkpoint)
        self.oom.attempt_started([rank.pid for rank in ranks])
        if checkpoint is not None and _resumes_by_configuration(self.run_file):
            for rank in ranks:
                self.ingest.set_base(attempt, rank.global_rank, checkpoint.step)

    def _launcher_died(self) -> None:
        """guardrun was killed: nothing that it started may live on."""
        log.error("launcher_died", pid=self.run_file.launcher_pid)
        self.terminal.print_line("guardrun itself was killed: ending its ranks", "bad")
        run = self.run_file
        left = end_run(run.launcher_pid, run.token, self.sampler.descendants, launcher_start=run.launcher_start)
        if left:
            self.terminal.print_line(f"processes {left} could not be ended, not even by SIGKILL", "bad")
        self._role.orphaned()
        shutil.rmtree(self.sockets, ignore_errors=True)  # the launcher's duty


def _resumes_by_configuration(run: RunFile) -> bool:
    """Whether the user has said how a checkpoint reaches the script: then a rank that is given one takes it."""
    table = run.config.get("checkpoint", {})
    return bool(table.get("resume_args") or table.get("resume_env"))


def _open_launcher(run: RunFile) -> ProcessHandle | None:
    """None where it is already gone."""
    try:
        return ProcessHandle(run.launcher_pid, run.launcher_start)
    except ProcessLookupError:
        return None
