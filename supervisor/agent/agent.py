"""The node agent's loop: readouts in; findings, history, and words for whoever listens out.

Sensors have threads of their own (`runner`), and so has what may take its time: a background writer writes history and
state, the hands touch quarantine, the broom ends what dead jobs left. The loop waits for none of them. systemd's
watchdog is fed by a thread (`watchdog`) while the loop's turns end, and only while readouts arrive: an agent that hears
nothing is no agent.
"""

from __future__ import annotations

import os
import queue
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from guardrun import __version__
from guardrun.supervisor.agent.agent_context import Latest, Options
from guardrun.supervisor.agent.agent_status import Watchdog, describe, figures
from guardrun.supervisor.agent.clients import Clients, listen
from guardrun.supervisor.agent.history.history import MAX_BYTES, Entry
from guardrun.supervisor.agent.history.history_writer import HistoryWriter
from guardrun.supervisor.agent.ingest import Ingest
from guardrun.supervisor.agent.jobs import Job, Jobs
from guardrun.supervisor.agent.metrics import Outlet
from guardrun.supervisor.agent.orphan_reaper import OrphanReaper
from guardrun.supervisor.agent.quarantine_keeper import AutoRelease, QuarantineKeeper, node_name
from guardrun.supervisor.agent.service import Service
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.own_files import make_folders
from guardrun.supervisor.config import Config
from guardrun.supervisor.health.base.readings import Judge
from guardrun.supervisor.health.quarantine_rules import Isolation, headline
from guardrun.supervisor.sensors.base.sensor import Sensor
from guardrun.supervisor.sensors.base.sensor_runner import Runner
from guardrun.supervisor.wire.agent_messages import (
    EndJob,
    Facts,
    Findings,
    Peer,
    QuarantineIs,
    RegisterJob,
    root_socket_path,
)
from guardrun.systemd.notify import Notifier

TELL_S = 1.0
CHORES_S = 5.0
DEAF_S = 120.0
"""Without a single readout for this long, the watchdog is no longer fed."""
JUMP_S = 2.0
"""A wall clock that moved this much against the monotonic one was set."""
LOOK_AGAIN_S = 60.0
"""Quarantine is read again this often even where no file has changed: isolations expire, shared folders change."""

Pids = Callable[[], Iterable[int]]
Handler = Callable[[int, float], None]
"""Of a descriptor: selectors' mask, CLOCK_MONOTONIC."""


class Agent:
    """Runs from run() until stop(), or a signal."""

    def __init__(
        self,
        options: Options,
        config: Config,
        *,
        sensors: Callable[[Pids], Sequence[Sensor]],
        judges: Sequence[Judge],
        notifier: Notifier,
        watchdog_s: float,
        reload: Callable[[], Config | None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """sensors: makes them; they may ask for the launchers of the jobs that run here.

        reload: reads the configuration anew; None where it is no good, which it has said. wall: the time of day, which
        people set. Raises OSError where nobody could connect.
        """
        self.node = node_name(os.environ)
        self.pid, self.uid = os.getpid(), os.geteuid()
        self.config = config
        self.latest = Latest()
        self.hands, self.broom, self.writer = BackgroundWriter(), BackgroundWriter(), BackgroundWriter()
        self.options = options
        self._wall = wall
        self._notifier = notifier
        self._watchdog = Watchdog(watchdog_s, notifier.watchdog, self._hears)
        self._is_deaf = False
        self._reload_config = reload
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signals: list[int] = []
        self._is_over = False
        self.began_s = time.monotonic()
        self.selector = selectors.DefaultSelector()
        doors = [listen(options.socket, 0o666), listen(root_socket_path(options.socket), 0o600)]
        self.clients = Clients(doors, self.selector, Service(self, lambda: describe(self)).handle_message)
        self.trouble = _ensure_folder(options.state_dir)
        self.historian = HistoryWriter(options.state_dir, self.writer, _log_warning, MAX_BYTES)
        self.jobs = Jobs(options.state_dir, self.writer)
        self.orphan_reaper = OrphanReaper(self)
        self.quarantine_keeper = self._make_quarantine_keeper()
        self.auto_release = AutoRelease(self, options.calm_s)
        self._told_quarantine: dict[str, Any] = {}
        self.ingest = Ingest(self, judges)
        made = sensors(lambda: self.jobs.launchers)
        self._sensors = len(made)
        self._runner = Runner(made, self.ingest.mailbox.put)
        self._next = {"tell": 0.0, "chores": 0.0, "look": 0.0}
        self._clock_gap_s = self.wall_s - self.now_s
        self.outlet = Outlet(self.post, lambda: figures(self))
        self.counters = {"readouts": 0, "findings": 0, "swept": 0}
        self.selector.register(self._wake, selectors.EVENT_READ, self._take_calls)
        self.selector.register(self.ingest.mailbox.fileno(), selectors.EVENT_READ, self.ingest.take_all)

    @property
    def now_s(self) -> float:
        """CLOCK_MONOTONIC, by which the agent times everything but what people read."""
        return time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds since 1970; people may set this clock, so that it can jump."""
        return self._wall()

    # The loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until a signal, or stop()."""
        now_s = self.now_s
        self.ingest.start_times.load(now_s)
        self.jobs.load(now_s)
        self.orphan_reaper.start()
        self._runner.start()
        self.outlet.serve(self.config.metrics.node_listen)
        log.info("agent_started", node=self.node, version=__version__, sensors=self._sensors, state=self.trouble or "")
        self.note("agent", "node", "agent_started", f"guardrun {__version__}, process {self.pid}")
        self._notifier.ready(f"{self._sensors} sensors")
        self._watchdog.start()
        while not self._is_over:
            ready = self.selector.select(self._wait_s())
            self._watchdog.turn_begins()
            for key, mask in ready:
                handler: Handler = key.data
                handler(mask, self.now_s)
            self.clients.serve()
            self._do_what_is_due(self.now_s)
            self._watchdog.turn_ended()

    def stop(self) -> None:
        """End the loop; any thread, and signal handlers, may say so."""
        self._is_over = True
        os.eventfd_write(self._wake, 1)

    def signalled(self, signum: int) -> None:
        """A signal's handler: does nothing but tell the loop."""
        self._signals.append(signum)
        os.eventfd_write(self._wake, 1)

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the loop make a call; for other threads."""
        self._calls.put(lambda: call(*arguments))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Let go of everything, and bring to the disk what is still to be written."""
        self._watchdog.close()
        self._notifier.stopping()
        self.note("agent", "node", "agent_stopped", f"process {self.pid}")
        self.outlet.close()
        self._runner.close()
        self.clients.close()
        self.options.socket.unlink(missing_ok=True)
        root_socket_path(self.options.socket).unlink(missing_ok=True)
        self.historian.put(self.ingest.take_points(is_end=True), [])
        self.historian.close()
        self.hands.close()
        self.broom.close()
        self.writer.close()
        self.orphan_reaper.close()
        self.ingest.mailbox.close()
        self.selector.close()
        os.close(self._wake)
        log.info("agent_stopped", node=self.node)

    def _wait_s(self) -> float:
        due = dict(self._next)
        if not (self.latest.has_news and self.clients.subscribers()):
            del due["tell"]
        now_s = self.now_s
        return max(0.0, min(min(due.values()) - now_s, self.clients.wait_s(now_s)))

    def _is_due(self, name: str, every_s: float, now_s: float) -> bool:
        if now_s < self._next[name]:
            return False
        self._next[name] = now_s + every_s
        return True

    def _do_what_is_due(self, now_s: float) -> None:
        if self.latest.has_news and self._is_due("tell", TELL_S, now_s):
            self._publish_changes(now_s)
        if self._is_due("chores", CHORES_S, now_s):
            self._do_chores(now_s)

    def _hears(self, now_s: float) -> bool:
        """Whether readouts arrive; on the watchdog's thread."""
        is_deaf = bool(self._sensors) and now_s - self.ingest.heard_s > DEAF_S
        if is_deaf and not self._is_deaf:
            log.error("agent_deaf", summary=f"no sensor has told anything for {DEAF_S:g} s: the watchdog will end this")
        self._is_deaf = is_deaf
        return not is_deaf

    def _do_chores(self, now_s: float) -> None:
        self._check_clock()
        self.clients.drop_silent(now_s)
        self.orphan_reaper.look(now_s)
        self.quarantine_keeper.look(self.wall_s, self.quarantine_changed, self._is_due("look", LOOK_AGAIN_S, now_s))
        self.auto_release.look(now_s)
        if points := self.ingest.take_points():
            self.historian.put(points, [])
        is_quarantined = any(
            not one.get("is_for_owner_alone") for one in self.quarantine_keeper.state.get("holding", [])
        )
        state = "quarantined, " if is_quarantined else ""
        heard = f"{self._sensors} sensors, {len(self.latest.findings)} findings"
        self._notifier.status(f"{state}{heard}, {len(self.jobs.living())} jobs, {len(self.clients)} clients")

    def _check_clock(self) -> None:
        gap_s = self.wall_s - self.now_s
        jumped_s = gap_s - self._clock_gap_s
        self._clock_gap_s = gap_s
        if abs(jumped_s) > JUMP_S:
            log.warning("clock_set", by_s=round(jumped_s, 1))
            self.note("clock", "node", "clock_set", f"the clock was set by {jumped_s:+.1f} s")

    # What comes in --------------------------------------------------------------------------------------------

    def _take_calls(self, mask: int, now_s: float) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while self._signals:
            self._obey(self._signals.pop(0))
        while not self._calls.empty():
            self._calls.get()()

    def _obey(self, signum: int) -> None:
        if signum == signal.SIGHUP:
            self._reload()
        else:
            log.info("signalled", signal=signal.Signals(signum).name)
            self._is_over = True

    def _reload(self) -> None:
        self._notifier.reloading()
        config = self._reload_config()
        if config is not None:
            self.config = config
            self.quarantine_keeper = self._make_quarantine_keeper()
            self._next["look"] = 0.0
            self.outlet.serve(config.metrics.node_listen)
            log.info("reloaded")
        self._notifier.ready("reloaded" if config is not None else "the configuration is no good: the old one holds")

    # What goes out --------------------------------------------------------------------------------------------

    def _publish_changes(self, now_s: float) -> None:
        readouts, findings = self.latest.take_news()
        subscribers = self.clients.subscribers()
        if readouts:
            wanting = [client for client in subscribers if client.wants_facts]
            self.clients.broadcast(Facts(at_s=now_s, readouts=readouts), wanting)
        if findings:
            wanting = [client for client in subscribers if client.wants_findings]
            self.clients.broadcast(Findings(at_s=now_s, findings=findings), wanting)

    def note(  # noqa: PLR0917  # an entry's own
        self, what: str, subject: str, name: str, text: str, data: dict[str, Any] | None = None, uid: int = 0
    ) -> None:
        """Into the history, as of now. uid: whose doing it is."""
        self.write(Entry(self.wall_s, what, subject, name, text, data or {}, uid))

    def write(self, entry: Entry) -> None:
        """Into the history."""
        self.historian.put([], [entry])

    def quarantine_changed(self, state: dict[str, Any], uid: int = 0) -> None:
        """The node is quarantined, or is not any more. uid: of who asked for it."""
        if state == self._told_quarantine:
            return
        self._told_quarantine = state
        held = state.get("holding", [])
        free = ": ".join(filter(None, ("it takes part again", self.quarantine_keeper.ended)))
        text = headline(msgspec.convert(held, known_type(list[Isolation]))) if held else free
        log.warning("quarantined" if held else "not_quarantined", summary=text, troubles=state.get("troubles", []))
        self.note("quarantine", "node", "quarantined" if held else "released", text, {"holding": held}, uid)
        wanting = [client for client in self.clients.subscribers() if client.wants_findings]
        self.clients.broadcast(QuarantineIs(quarantine=state), wanting)

    # Jobs -----------------------------------------------------------------------------------------------------

    def register(self, said: RegisterJob, peer: Peer) -> None:
        """A supervisor says which job it watches. Raises NotAllowedError."""
        job, is_new = self.jobs.register(said, peer.uid, self.uid)
        self.orphan_reaper.watch(job)
        if is_new:
            log.info("job_registered", run_id=job.run_id, uid=job.uid, launcher_pid=job.launcher_pid)
            self.note(
                "job", f"job:{job.run_id}", "registered", f"launcher {job.launcher_pid}", {"uid": job.uid}, job.uid
            )

    def end_job(self, said: EndJob, peer: Peer) -> Job:
        """A supervisor says that its job is over. Raises NotAllowedError."""
        return self.jobs.end(said.run_id, peer.uid, self.uid, self.now_s)

    def _make_quarantine_keeper(self) -> QuarantineKeeper:
        return QuarantineKeeper(self.node, self.options.state_dir, self.config.node.shared_dir, self.hands, self.post)


def _log_warning(event: str, **fields: Any) -> None:
    log.warning(event, **fields)


def _ensure_folder(folder: Path) -> str:
    """Make the state folder; answers why it can't be used, for the log."""
    try:
        make_folders(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return "" if os.access(folder, os.W_OK) else f"{folder}: not writable"
