"""The supervisor of a node that does not lead: every event goes up, every order comes down.

It decides one thing by itself: where contact has been lost for the lease's term, and the ranks here have not advanced
for as long, they are ended; the job may go on without this node from then on.

One class, as whatever comes, from the head or from its own node, is judged by contact, attempt and lease together.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from guardrun import __version__
from guardrun.hooks.wire.messages import CheckpointLoaded
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.own_files import read_own
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.fleet.checks.node_environment import compared_versions
from guardrun.supervisor.fleet.checks.node_probes import About, NodeChecks, wall_base_s
from guardrun.supervisor.fleet.follower.orphaned_job import begin_rescue, may_rescue
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.fleet.protocol.leader_loss_policy import LeaderLossPolicy, Seen, is_silent
from guardrun.supervisor.fleet.protocol.lease import STILL_S, ProgressTimeout, Waking, boot_s, end_words, ranks_end_s
from guardrun.supervisor.fleet.rendezvous.introduction import IntroductionError, introduce
from guardrun.supervisor.fleet.rendezvous.join_file import JoinError, JoinFile, NotThere, find_join_file
from guardrun.supervisor.fleet.rendezvous.start_failure_files import began, find_refused, holds
from guardrun.supervisor.fleet.transport import link as links
from guardrun.supervisor.fleet.transport.curve import KeyPair
from guardrun.supervisor.fleet.transport.envelopes import DECODE_ERRORS
from guardrun.supervisor.fleet.transport.link import Head, Link
from guardrun.supervisor.node.node_supervisor import NodeSupervisor
from guardrun.supervisor.node.rank_collection import begin_exits, begin_look, look_name, look_now
from guardrun.supervisor.rundir.run_directory import FleetFile, RunFile
from guardrun.supervisor.saving.fleet_sample_ledgers import NodeLedgers
from guardrun.supervisor.saving.fleet_save_agreement import NodeSaveAgreement
from guardrun.supervisor.saving.mirrors import NodeMirror
from guardrun.supervisor.saving.snapshots import NodeSnapshots, make_memory
from guardrun.supervisor.wire import control_messages
from guardrun.supervisor.wire.listening_addresses import peer_addresses
from guardrun.supervisor.wire.warm_state import keep_imports, read_imports

if TYPE_CHECKING:
    from guardrun.supervisor.saving.fleet_in_time_save import NodePart

REREAD_S = 1.0
"""How often the join file is read while there is no contact."""
FAREWELL_S = 3.0
MAX_SAID = 10
"""Of what hooks had to say, for whoever asks."""
MEET_AGAIN = 2
"""Connections that have failed: a head that is started anew no longer knows the key that it let in."""


class _Ended(msgspec.Struct):
    """What of summary.json is of use here."""

    exit_code: int


class Follower:
    """Runs until the head says that the run is over, or this node's launcher is gone."""

    def __init__(self, run_dir: Path, run: RunFile, writer: BackgroundWriter, fleet: FleetFile) -> None:
        self.node = NodeSupervisor(run_dir, run, writer, self)
        self._fleet = fleet
        self._link: Link | None = None
        self._join: JoinFile | None = None
        self._poller: zmq.Poller | None = None
        self._orders: msgspec.msgpack.Decoder[msg.Down] = msgspec.msgpack.Decoder(known_type(msg.Down))
        self._attempt = -1
        """Whose ranks are alive here; -1: none are."""
        self._is_stopping = False
        self._asking = NodeSaveAgreement()
        self._in_time: NodePart | None = None
        self._memory = make_memory(self.node)
        self._mirror = NodeMirror(self.node, self._memory, fleet, self._send_to_head)
        self._snapshots = NodeSnapshots(self.node, self._memory, self._send_to_head, self._mirror.kept)
        self._ledgers = NodeLedgers(self.node, self._memory, self._send_to_head)
        self._still = ProgressTimeout()
        self._may_stand_s = STILL_S
        """How long the ranks may stand still, as far as the head knows."""
        self._reported: int | None = None
        """The packet with their newest report; None: there is none."""
        self._progress_s = self._began_boot_s = boot_s()
        """When they last advanced with those of other nodes, on that clock."""
        self._inherited: control_messages.Lease | None = None
        """Of the ranks found alive, where the node was cut off before this supervisor began."""
        self._reread_s = 0.0
        self._began_s = time.monotonic()
        self._waking = Waking(boot_s())
        settings = run.settings
        self._headless = LeaderLossPolicy(
            fleet.join_file, settings.join_timeout_s, settings.head_gone_s, self._began_s, fleet.awaited
        )
        self._has_join_file = True
        self._versions = compared_versions()
        self._is_meeting = False
        self._is_rescuing = False
        self._said: set[str] = set()
        self._farewell_by_s: float | None = None
        self._ranks = 0
        place = (fleet.address, fleet.check_listen)
        about = About(run.node, *place, run.script, run.cwd, lambda: wall_base_s(self.node.clock.now))
        self._checks = NodeChecks(about, lambda answer: self.node.post(lambda: self._send_to_head(answer)))

    def run(self) -> None:
        """Serve until the run is over."""
        self.node.run()

    # What the node's loop calls --------------------------------------------------------------------------------

    @property
    def is_watching(self) -> bool:
        """Between an attempt's start and its end here, as this node's launcher reports them."""
        return self._attempt >= 0

    @property
    def is_running(self) -> bool:
        """Likewise, until the head's order to stop."""
        return self._attempt >= 0 and not self._is_stopping

    @property
    def may_be_left_out(self) -> bool:
        """No ranks live here, and the node has joined, so it would hear from the head."""
        return self._attempt < 0 and self._link is not None and self._link.is_joined

    def register(self, poller: zmq.Poller) -> None:
        """Only keeps the poller: the link to the head registers when it is made."""
        self._poller = poller

    def due_s(self) -> float | None:
        """When the link's next pulse or next try is due; None before the join file is found."""
        return None if self._link is None else self.node.clock.now() + self._link.due_s() - time.monotonic()

    def turn(self, ready: dict[object, int]) -> None:
        """Hears the head; after a farewell, ends once all is acknowledged, or after FAREWELL_S."""
        if self._link is None:
            return
        for what in self._link.read(ready):
            self._hear(what)
        if self._farewell_by_s is not None:
            is_late = time.monotonic() >= self._farewell_by_s
            self.node.is_over = self.node.is_over or is_late or not self._link.has_waiting

    def sampled(self) -> None:
        """Keeps the lease, looks for the head where there is none, and has the ranks' answers sent."""
        now = time.monotonic()
        if now >= self._reread_s and (self._link is None or not self._link.is_joined):
            self._reread_s = now + REREAD_S
            self._read_join_file()
            self._heed_refusal()
        boot = boot_s()
        is_head_still = self._link is not None and self._link.is_unanswered and self._still.is_joint
        if not self._waking.turn(boot, self._contact_lost_s(boot), is_head_still=is_head_still):
            self._keep_lease(boot)
            self._miss_head(now, boot)
        self._report_lease(boot)
        if self.is_running:
            self._asking.sample(self.node.sampler.boards)
            self._tell_answers()
            self._memory.sample()
            self._snapshots.sample()
            self._mirror.sample()
            self._ledgers.sample()
        if self._headless.is_refused(now):
            self._end(control_messages.Finish(exit_code=1))

    def folders(self) -> list[str]:
        """Without the checkpoints' folders, which only the head knows."""
        return [str(self.node.run_dir), self.node.run_file.cwd, "/tmp", "/dev/shm"]

    def saved(self, path: str, step: int, wall_s: float, inode: int, attempt: int) -> None:
        """The event that follows says it to the head."""

    def told_of_snapshots(self, text: str) -> None:
        """A person hears of it here, or memory is granted at once, and the head told what the rank has named."""
        if text:
            self.node.terminal.print_line(text, "warn")
        elif self.is_running:
            self._memory.sample()
            self._snapshots.sample()

    def loaded(self, message: CheckpointLoaded) -> None:
        """Goes to the head as it is: the head knows which files are checkpoints."""
        self._send_to_head(msg.Loaded(attempt=message.attempt, global_rank=message.global_rank, path=message.path))

    def skipped(self, gap_s: float) -> None:
        """Only logged: the head sees the gap as this node's silence."""
        log.warning("time_skipped", gap_s=round(gap_s, 1))

    def serving(self, message: control_messages.Serving) -> None:
        """Goes to the head, which then has the other nodes start."""
        self._send_to_head(msg.Serving(attempt=message.attempt, address=message.address, port=message.port))

    def answer(self, peer: bytes, ask: control_messages.Ask) -> None:
        """Always a refusal that names the head, since only the head knows the run."""
        head = self._join.head if self._join else "not found yet"
        text = f"{self.node.run_file.node} is one of several nodes: ask on the head ({head})"
        self.node.send_to(peer, control_messages.Answer(is_ok=False, error=text))

    def isolation_settled(self, action: ac.Isolate, how: str = "") -> None:
        """The head has its own part to do, and goes by that."""

    def orphaned(self) -> None:
        """Tell the head, so that it need not wait for silence."""
        self.feed(ev.NodeLeft(node=self.node.run_file.node, why="its guardrun was killed"))
        by_s = time.monotonic() + FAREWELL_S
        while self._link is not None and self._link.has_waiting and time.monotonic() < by_s:
            assert self._poller is not None
            self._link.read(dict(self._poller.poll(100)))

    def give_up_launcher(self) -> None:
        """Ends with it; once it goes on, it starts the next follower, which joins again."""
        self._farewell_by_s = time.monotonic() + FAREWELL_S
        self.node.is_over = self._link is None

    def close(self) -> None:
        """Ends a check that runs here; the link is given a moment to send what is left."""
        self._checks.end()
        if self._link is not None:
            self._link.close()
        self._snapshots.close()
        self._mirror.close()
        self._memory.close()
        self.node.close()

    # Up ------------------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> bool:
        """Sends the event to the head. Always True: what fails there is not known here."""
        if isinstance(event, ev.AttemptStarted):
            self._attempt, self._is_stopping = event.attempt, False
            self._still, self._progress_s = ProgressTimeout(), boot_s()
            self._may_stand_s, self._reported = STILL_S, None
            self._headless.began()
            self._refresh_info()
        elif isinstance(event, ev.AttemptStopped | ev.AttemptNotStarted):
            self._snapshots.sample()  # an attempt may be over before it was looked at
            self._ledgers.ended()
            self._send_to_head(msg.SharesReported(attempt=event.attempt, ranks=self.node.ingest.shares()))
            self._attempt, self._is_stopping = -1, False
            self._headless.ended(event.exitcodes if isinstance(event, ev.AttemptStopped) else {})
            self._refresh_info()  # a connection that is made before the launcher's next hello must not say otherwise
        elif isinstance(event, ev.RankExited):
            self._tell_answers()
        self._send_to_head(event)
        if isinstance(event, ev.NodeReport):
            self._note_progress(event)
        return True

    def _send_to_head(self, message: msg.Up) -> None:
        if self._link is None:
            return
        if not self._link.send(encode_msgpack(message)):
            log.warning("too_large", message_type=type(message).__name__)

    def _tell_answers(self) -> None:
        for answered in self._asking.answered(self.node.sampler.boards):
            self._send_to_head(answered)

    def _note_progress(self, report: ev.NodeReport) -> None:
        self._reported = None if self._link is None else self._link.newest
        if (moved_s := self._still.note(report.ranks)) is not None:
            self._progress_s = max(self._progress_s, boot_s() - max(0.0, self.node.clock.now() - moved_s))

    # Down ------------------------------------------------------------------------------------------------------

    def greeted(self, hello: control_messages.LauncherHello) -> None:
        """The launcher's number of ranks is what the node joins with: the head is looked for from here on."""
        if not self._ranks and hello.lease is not None:
            self._inherited, self._may_stand_s = hello.lease, hello.lease.still_s
            self._progress_s = hello.lease.progress_s
        self._ranks = hello.world_size
        self.node.note_files(hello)
        if hello.alive:
            self.node.watch(hello.attempt, hello.alive, None)
            self._attempt = hello.attempt
        self._refresh_info()
        if self._link is None:
            self._read_join_file()

    def _refresh_info(self) -> None:
        if self._link is not None:
            self._link.info = self._info()

    def _info(self) -> dict[str, object]:
        return {
            "version": __version__,
            "work": self._fleet.work,
            "ranks": self._ranks,
            "address": self._fleet.address,
            "attempt": self._attempt,
            "switches": self._fleet.switches,
            "role": self._fleet.role,
            "addresses": peer_addresses(),
            **self._versions,
        }

    def _read_join_file(self) -> None:
        """Find the head, or find it again where it is a new one."""
        if not self._ranks:
            return
        if self._fleet.meet is not None:
            self._meet(*self._fleet.meet)
            return
        try:
            join = find_join_file(Path(self._fleet.join_file), self._fleet.names)
        except NotThere:
            # Nor is it gone where the whole folder is.
            self._has_join_file = not Path(self._fleet.join_file).parent.is_dir()
            return
        except JoinError as error:
            self._unusable(str(error))
            return
        self._has_join_file = True
        if join.client is None:
            self._unusable(f"{self._fleet.join_file} holds no key for this node: it is another kind of job's")
            return
        self._go_to(join, join.client)

    def _heed_refusal(self) -> None:
        """The first head did not start: it is not waited for."""
        fleet, has_part = self._fleet, self._headless.has_joined or self._attempt >= 0
        if has_part or not self._ranks or fleet.meet is not None or self._farewell_by_s is not None:
            return
        refused = find_refused(Path(fleet.join_file), fleet.names, fleet.key)
        led_s = self._join.created_wall_s if self._join is not None else 0.0
        node = began(self.node.run_file.launcher_start, self.node.run_file.created_wall_s)
        if refused is None or not holds(refused.said_wall_s, node, time.time(), led_s):
            return
        log.warning("head_refused", head=refused.head, text=refused.text, exit_code=refused.exit_code)
        if not is_silent(os.environ):
            self.node.terminal.print_line(f"the head, {refused.head}, did not start: {refused.text}", "bad")
        self._end(control_messages.Finish(exit_code=refused.exit_code))

    def _meet(self, host: str, port: int) -> None:
        """Have munge introduce us, by a worker thread; what comes of it is taken up on the loop's."""
        if self._is_meeting or (self._link is not None and self._link.failures < MEET_AGAIN):
            return
        self._is_meeting = True

        def work() -> None:
            try:
                join, keys = introduce(find_host(host), port, self._fleet.key, munge_socket=self._fleet.munge_socket)
                self.node.post(lambda: self._go_to(join, keys))
            except IntroductionError as error:
                log.info("not_introduced", error=str(error))
                if error.is_final:
                    self._say_once(str(error), "bad")
            finally:
                self.node.post(self._met)

        self.node.in_background(work, lambda error: None)

    def _met(self) -> None:
        self._is_meeting = False

    def _go_to(self, join: JoinFile, keys: KeyPair) -> None:
        head = Head(join.addresses, join.port, join.server_key)
        self._join = join
        if self._link is None:
            log.info("joining", head=join.head, addresses=join.addresses, port=join.port)
            self._link = Link(head, keys, self.node.run_file.node, slot=self._fleet.slot, info=self._info())
            if self._poller is not None:
                self._link.register(self._poller)
        else:
            self._link.redirect(head, keys)

    def _unusable(self, why: str) -> None:
        self._headless.unusable()
        self._say_once(why, "bad")

    def _miss_head(self, now: float, boot: float) -> None:
        """Without a head for too long, and nothing left alive here: end, so that the job can be started anew."""
        if self._farewell_by_s is not None or self._attempt >= 0 or self._is_rescuing:
            return
        seen = Seen(now, has_file=self._has_join_file)
        if (link := self._link) is not None:
            seen = Seen(
                now,
                place=f"{link.head.addresses[0]}:{link.head.port}",
                is_joined=link.is_joined,
                lost_s=link.lease.contact_lost_s(boot),
                has_file=self._has_join_file,
                exit_code=None if self._has_join_file else self._read_exit_code(),
                obstacle=link.obstacle,
                failures=link.failures,
            )
        step = self._headless.step(seen)
        if step.message:
            self._say_once(step.message, step.level)
        if step.is_lost:
            self._lose_head(seen.lost_s)
        elif step.end is not None:
            self._end(control_messages.Finish(exit_code=step.end))

    def _read_exit_code(self) -> int | None:
        """The run's, where its directory is shared and it is over."""
        if self._join is None:
            return None
        try:
            data = read_own(Path(self._join.run_dir) / "summary.json")
            return msgspec.json.decode(data, type=known_type(_Ended)).exit_code
        except (OSError, msgspec.DecodeError):
            return None

    def _lose_head(self, lost_s: float) -> None:
        """End here; under Slurm once it is known whether anybody but a follower can start the job again."""
        said = f"the head has not been heard for {lost_s:.0f} s"
        if not may_rescue(self.node.run_file, os.environ):
            self.node.terminal.print_line(f"{said}: ending here", "bad")
            self._end(control_messages.Finish(exit_code=1))
            return
        self._is_rescuing = True
        self.node.terminal.print_line(f"{said}: asking Slurm whether its node is", "bad")
        begin_rescue(self._fleet.slot, lambda text: self.node.post(lambda: self._rescued(text)))

    def _rescued(self, text: str) -> None:
        self._is_rescuing = False
        if self._farewell_by_s is not None or (self._link is not None and self._link.is_joined):
            return  # it is back
        self.node.terminal.print_line(text or "the head is gone: ending here", "bad")
        self._end(control_messages.Finish(exit_code=1))

    def _hear(self, what: links.What) -> None:
        if isinstance(what, links.Welcomed):
            assert self._link is not None
            self._headless.joined(self._join.head if self._join else "?")
            self._said.clear()  # what is said of the next time without a head is news again
            self._set_clock(self._link.offset.offset_s)
            if what.is_new_hub:
                self._snapshots.tell_again()
            log.info("joined", is_new_head=what.is_new_hub)
        elif isinstance(what, links.Refused):
            self._headless.refused(time.monotonic())
            self._say_once(f"the head refuses this node: {what.reason}", "bad")
        elif isinstance(what, links.Lost):
            self._headless.lost(time.monotonic(), what.is_closed)
            log.warning("contact_lost", why=what.why)
        elif isinstance(what, links.Missed):
            log.warning("orders_lost", packets=what.packets)
        else:
            self._ordered(what.body)

    def _set_clock(self, offset_s: float) -> None:
        """Times from here on are the coordinator's seconds."""
        self.node.clock.set(offset_s, 0.0)

    def _ordered(self, body: bytes) -> None:
        try:
            order = self._orders.decode(body)
        except DECODE_ERRORS:
            self.node.malformed += 1
            return
        log.info("order", order_type=type(order).__name__)
        if isinstance(order, control_messages.Finish):
            if order.words and not is_silent(os.environ):
                self.node.terminal.print_line(order.words, "bad")
            self._end(order)
        elif isinstance(order, control_messages.Start | control_messages.Stop):
            self._is_stopping = isinstance(order, control_messages.Stop) and order.attempt == self._attempt
            self._checks.end()  # nothing of it may disturb an attempt
            if isinstance(order, control_messages.Start):
                self._snapshots.let_go(order.attempt)
                self._mirror.let_go(order.attempt)
            self.node.send(order)
        elif isinstance(order, msg.CheckStep | msg.EndCheck):
            self._checks.obey(order)
        elif isinstance(order, ac.TakeLook):
            self._look(order)
        elif isinstance(order, ac.ReadExits):
            begin_exits(self.node, order, self.folders())
        elif isinstance(order, msg.LookNow):
            self._look_now(order)
        elif isinstance(order, msg.Examine):
            self._examine(order)
        elif isinstance(order, msg.ReportBoards):
            self._tell_boards(order)
        elif isinstance(order, msg.SnapshotOrder):
            self._snapshots.obey(order)
        elif isinstance(order, msg.MirrorOpen | msg.MirrorTo):
            self._mirror.obey(order)
        elif isinstance(order, msg.ReportImports | msg.WarmUp):
            self._warm_up(order)
        elif isinstance(order, msg.ReportData | msg.HandedOut):
            self._ledgers.obey(order)
        elif isinstance(order, ac.Isolate):
            self.node.relations.isolate(order)
        elif isinstance(order, msg.SetBase):
            self.node.ingest.set_base(order.attempt, order.global_rank, order.step)
        elif isinstance(order, msg.ReportSteps | msg.SaveHere | msg.SeekFile):
            self._in_time_part().obey(order, self._send_to_head, is_running=self.is_running)
        elif isinstance(order, msg.AskChecks | msg.SetCheckpoint | msg.WithdrawCheckpoint):
            answer = self._asking.obey(order, self.node.sampler.boards, self._attempt, self.node.clock.now())
            if answer is not None:
                self._send_to_head(answer)

    def _look(self, order: ac.TakeLook) -> None:
        """The raw stacks go up before the look that they belong to."""
        name = look_name(order.attempt, order.look)
        folder = self.node.run_dir / name
        writes: list[Callable[[], object]] = []

        def send_raw() -> None:
            for write in writes:
                write()
            raw = read_raw(folder, name)
            shutil.rmtree(folder, ignore_errors=True)
            self.node.post(lambda: self._send_to_head(raw))

        begin_look(self.node, order, folder, self.folders(), writes.append, done=send_raw)

    def _look_now(self, order: msg.LookNow) -> None:
        """For a person: nothing is kept."""
        ranks = [rank for number, rank in sorted(self.node.ingest.ranks.items()) if number in order.ranks]
        look = look_now(self.node, ranks, order.samples)

        def work() -> None:
            result = look()
            looked = msg.Looked(ask=order.ask, ranks=result.ranks, missing=result.missing, took_s=result.took_s)
            self.node.post(lambda: self._send_to_head(looked))

        self.node.in_background(work, lambda error: None)

    def _examine(self, order: msg.Examine) -> None:
        """For a person: the ranks do it themselves."""

        def reply(answers: dict[int, dict[str, Any]], missing: dict[int, str]) -> None:
            self._send_to_head(msg.Examined(ask=order.ask, answers=answers, missing=missing))

        self.node.examinations.ask(order.ranks, order.what, order.arguments, order.seconds, reply)

    def _in_time_part(self) -> NodePart:
        if self._in_time is None:
            from guardrun.supervisor.saving.fleet_in_time_save import NodePart  # few runs have a use for it

            self._in_time = NodePart(self.node)
        return self._in_time

    def _warm_up(self, order: msg.ReportImports | msg.WarmUp) -> None:
        """What ranks import: of this node's, or for its warm process."""
        sockets = Path(self.node.run_file.socket_dir)
        if isinstance(order, msg.WarmUp):
            keep_imports(sockets, self._ranks, order.imports)
        elif imports := read_imports(sockets, self._ranks):
            self._send_to_head(msg.ImportsReported(imports=imports))

    def _tell_boards(self, order: msg.ReportBoards) -> None:
        ingest = self.node.ingest
        told = msg.BoardsReported(
            ask=order.ask,
            attempt=ingest.attempt,
            at_s=self.node.clock.now(),
            rows=ingest.rows(),
            notes=list(ingest.notes)[-MAX_SAID:],
            failed_hooks=ingest.failed_hooks[-MAX_SAID:],
        )
        self._send_to_head(told)

    def _end(self, order: control_messages.Finish) -> None:
        """The run is over."""
        if self._farewell_by_s is None:
            self.node.send(order)
            self._farewell_by_s = time.monotonic() + FAREWELL_S
            self.node.is_over = self._link is None

    # The lease -------------------------------------------------------------------------------------------------

    def _keep_lease(self, boot: float) -> None:
        """Neither contact nor progress: the job may go on without this node, so nothing of it may live on here."""
        if self._attempt < 0 or self._is_stopping:
            return
        if self._link is not None and self._reported is not None and self._link.is_confirmed(self._reported):
            self._may_stand_s = self._still.limit_s
        contact_s, term_s = self._contact()
        if boot < ranks_end_s(contact_s, self._progress_s, term_s=term_s, still_s=self._may_stand_s):
            return
        self._is_stopping = True
        lost_s, still_s = boot - contact_s - term_s, boot - self._progress_s
        log.warning("lease_over", contact_lost_s=round(lost_s, 1), still_s=round(still_s, 1))
        self.node.terminal.print_line(end_words(self.node.run_file.node, boot - contact_s, still_s), "warn")
        self.node.send(control_messages.Stop(attempt=self._attempt, grace_s=0.0))

    def _report_lease(self, boot: float) -> None:
        """The launcher goes by it where nothing more comes."""
        if self._attempt < 0:
            return
        contact_s, term_s = self._contact()
        self.node.send(
            control_messages.Lease(
                attempt=self._attempt,
                at_s=boot,
                contact_s=contact_s,
                progress_s=self._progress_s,
                term_s=term_s,
                still_s=self._may_stand_s,
            )
        )

    def _contact(self) -> tuple[float, float]:
        """The newest contact, on `boot_s`, and what it is good for.

        A follower that found ranks alive and never had any counts from its own start, or from the last one's.
        """
        if self._link is not None and self._headless.has_joined:
            return max(self._link.lease.contact_s, self._began_boot_s), self._link.lease.term_s
        if self._inherited is not None and self._inherited.attempt == self._attempt:
            return self._inherited.contact_s, self._inherited.term_s
        return self._began_boot_s, self._fleet.term_s

    def _contact_lost_s(self, boot: float) -> float:
        """How long ago the lease ended; 0: it is held."""
        contact_s, term_s = self._contact()
        return max(0.0, boot - contact_s - term_s)

    def _say_once(self, text: str, level: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.node.terminal.print_line(text, level)


def find_host(name: str) -> str:
    """Where a host is: its name, where that resolves; else what Slurm says of the node of that name. Blocks."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        if os.environ.get("SLURM_JOB_ID"):
            from guardrun.slurm.client.nodes import SlurmNode, read_node

            node = read_node(name)
            return node.address if isinstance(node, SlurmNode) and node.address else name
    return name


def read_raw(folder: Path, name: str) -> msg.Raw:
    """A look's files, as many as may be sent. name: what the head is to call the folder."""
    files: dict[str, bytes] = {}
    size = left_out = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        try:
            data = zlib.compress(path.read_bytes(), 1)
        except OSError:
            continue
        if size + len(data) > msg.MAX_RAW_BYTES:
            left_out += 1
            continue
        size += len(data)
        files[str(path.relative_to(folder))] = data
    return msg.Raw(folder=name, files=files, left_out=left_out)
