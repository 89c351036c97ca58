"""The head and the other nodes: what they report goes through `EventAggregator` to the engine, orders go out.

One class, as each message, a node's or the head's own, is answered by the same state: who is in the attempt, what was
ordered, and who has answered.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import zmq

from guardrun import __version__
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.own_files import SECRET, make_private, read_own, write_own
from guardrun.supervisor.base.printable import encode_json, encode_msgpack
from guardrun.supervisor.checkpoints.retention import elsewhere
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.graceful_leave import may_leave
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.fleet.checks.check_coordinator import CheckCoordinator
from guardrun.supervisor.fleet.checks.node_environment import compared_versions
from guardrun.supervisor.fleet.coordinator.event_aggregator import EventAggregator
from guardrun.supervisor.fleet.coordinator.fleet_snapshots import FleetSnapshots
from guardrun.supervisor.fleet.coordinator.mirror_ring import on_mirror_message
from guardrun.supervisor.fleet.coordinator.node_isolation import isolate_other
from guardrun.supervisor.fleet.coordinator.node_questions import Boards, ExaminationRequests, LookRequests
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.fleet.protocol.leader_loss_policy import last_words, leaving_words
from guardrun.supervisor.fleet.rendezvous.introduction import Introducer
from guardrun.supervisor.fleet.rendezvous.join_file import (
    BeingWritten,
    JoinError,
    JoinFile,
    remove_join_file,
    write_join_file,
)
from guardrun.supervisor.fleet.rendezvous.start_failure_files import JoinRejections
from guardrun.supervisor.fleet.transport import hub as hubs
from guardrun.supervisor.fleet.transport.curve import KeyPair, make_key_pair
from guardrun.supervisor.fleet.transport.envelopes import DECODE_ERRORS, Join
from guardrun.supervisor.fleet.transport.hub import Hub, HubSettings
from guardrun.supervisor.fleet.transport.peers import Present, addresses_of, newer_if_gone, role_of, switches_of
from guardrun.supervisor.node.node_relations import IsolationContext, NodeRelations
from guardrun.supervisor.node.rank_collection import RankContext, begin_exits, begin_look, look_name
from guardrun.supervisor.node.rank_examinations import RankExaminations
from guardrun.supervisor.node.run_context import CheckpointContext, DecidingContext
from guardrun.supervisor.rundir.run_directory import FleetFile, RunFile
from guardrun.supervisor.saving.final_save import FinalSave
from guardrun.supervisor.saving.fleet_sample_ledgers import FleetLedgers
from guardrun.supervisor.saving.fleet_save_agreement import FleetSaveAgreement, NodeSaveAgreement, Order
from guardrun.supervisor.saving.mirrors import NodeMirror
from guardrun.supervisor.saving.sample_ledgers import SampleLedgers, SaveAccount
from guardrun.supervisor.saving.snapshots import NodeSnapshots, Snapshots
from guardrun.supervisor.wire.control_messages import Finish, Serving, Shares, Start, Stop, ToLauncher
from guardrun.supervisor.wire.listening_addresses import (
    EVERYWHERE,
    Missed,
    numeric_only,
    own_addresses,
    peer_addresses,
)

if TYPE_CHECKING:
    from guardrun.supervisor.fleet.coordinator.warm_spares import WarmSpares
    from guardrun.supervisor.saving.fleet_in_time_save import ManyNodes

KEYS_FILE = "fleet.json"
"""In the run directory, which is the user's alone: for a supervisor after this one."""
FAREWELL_S = 3.0
"""How long the others are given to hear of the run's end: below what the launcher gives its supervisor to end."""
MAX_NAME_CHARS = 200
REWRITE_S = 10.0
"""How often a join file that could not be written is tried again."""
REPORT_S = 1.0
"""Nodes report what has changed so often."""
TELL_S = 60.0
"""How often what was refused is logged, at most."""


ENDED_S = 5.0
"""So long the end of all ranks is kept back while it is looked at what one of them has saved before."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a supervisor that is started anew the same coordinator."""

    session: int
    port: int
    server: KeyPair
    client: KeyPair
    is_everywhere: bool = False
    """It had to listen at every address: those that came by another come back by it."""


class CoordinatorNode(RankContext, IsolationContext, Protocol):
    """What the coordinator uses of its own node's supervisor."""

    is_over: bool
    """The run is over: its loop ends."""

    @property
    def relations(self) -> NodeRelations:
        """Has this node isolated."""

    @property
    def examinations(self) -> RankExaminations:
        """Asks the ranks of this node."""

    def send(self, order: ToLauncher) -> None:
        """Give this node's launcher an order."""

    def judging_s(self) -> float:
        """The run's seconds, once `skipped` has been told of all time in which the loop did not run."""


class CoordinatorContext(DecidingContext, CheckpointContext, Protocol):
    """What it uses of the daemon."""

    @property
    def saving(self) -> FinalSave:
        """Has this node's ranks save."""

    @property
    def snapshots(self) -> Snapshots:
        """Has the copies in this node's memory."""

    @property
    def ledgers(self) -> SampleLedgers:
        """Knows what was handed out before each save."""

    def folders(self) -> list[str]:
        """Those whose file systems matter to the run."""

    def saved(self, path: str, step: int, wall_s: float, inode: int, attempt: int) -> None:
        """A rank has saved; inode: 0 where it is not known."""


class Coordinator:
    """What the head's daemon calls, from its loop."""

    has_left = False
    """This node's launcher does not obey: its ranks take no part until it does again."""

    def __init__(self, node: CoordinatorNode, context: CoordinatorContext, fleet: FleetFile) -> None:
        """Raises OSError where the join file cannot be written, JoinError where another head leads."""
        self._node, self._context = node, context
        self._fleet = fleet
        self._me = node.run_file.node
        self.aggregator = EventAggregator(fleet.term_s, node.run_file.run_id, node.run_file.settings.lost_s)
        self.inquiries = LookRequests(self._send)
        self.examinations = ExaminationRequests(self._send)
        self.boards = Boards(self._send)
        self.checks = CheckCoordinator(node, context.handle, fleet, self._send)
        keys = _read_keys(node.run_dir, node.run_file.session)
        server, client = (keys.server, keys.client) if keys else (make_key_pair(), make_key_pair())
        if keys is not None and keys.is_everywhere:
            fleet = _widened(fleet)
        settings = HubSettings(term_s=fleet.term_s, decide=self._decide, listen=fleet.listen)
        port = keys.port if keys else fleet.port
        self.hub = Hub(node.clock.now, server, [client.public], port, settings)
        self.asking = FleetSaveAgreement(self._ask, self.hub.incarnation)
        self._own_asking = NodeSaveAgreement(context.saving.asking)
        self.snapshots, self._mirror, self._own_snapshots = self._snapshot_parts(fleet)
        self.ledgers = FleetLedgers(node, context, context.ledgers, self._send, self.hub.is_connected)
        self._join = JoinFile(
            run_id=node.run_file.run_id,
            session=node.run_file.session,
            run_dir=str(node.run_dir),
            token=node.run_file.token,
            head=self._me,
            addresses=_published(self._fleet),
            port=self.hub.port,
            names=fleet.names,
            server_key=server.public,
            client=client,
            version=__version__,
            created_wall_s=time.time(),
        )
        self._keys = Keys(session=self._join.session, port=self.hub.port, server=server, client=client)
        if keys is not None:
            self._keys = msgspec.structs.replace(self._keys, is_everywhere=keys.is_everywhere)
        _write_keys(node.run_dir, self._keys)
        self._missed = Missed(fleet.plan, node.run_file.settings, time.monotonic())
        self._decoder: msgspec.msgpack.Decoder[msg.Up] = msgspec.msgpack.Decoder(known_type(msg.Up))
        self._warned: set[str] = set()
        self._versions: dict[str, str] = {}
        """This node's, once another has joined."""
        self.malformed = 0
        self._farewell_by_s: float | None = None
        self._absences = JoinRejections(node, context, fleet)
        self._introducer: Introducer | None = None
        self._rewrite_s: float | None = None
        self._has_said_unwritten = False
        self._logged: tuple[dict[str, int], float] = ({}, 0.0)
        self._warm = _make_warm_spares(node.run_file, self._send)
        self._in_time: ManyNodes | None = None
        """A save that goes on; None: none does."""
        self._kept_back: tuple[list[ev.Event], float] = ([], 0.0)
        """The end of its attempt, and until when (time.monotonic())."""
        try:
            if fleet.meet is not None:
                self._introducer = Introducer(
                    fleet.meet[1],
                    fleet.key,
                    self._join,
                    self.hub.admit,
                    listen=fleet.meet_listen,
                    munge_socket=fleet.munge_socket,
                )
            else:
                self._write_join_file(is_first=keys is None)
        except (OSError, JoinError):
            self.hub.close()
            raise

    def _snapshot_parts(self, fleet: FleetFile) -> tuple[FleetSnapshots, NodeMirror, NodeSnapshots]:
        """What the head does about copies of all nodes, and what it does like every node."""
        node, memory = self._node, self._context.snapshots.memory
        head = FleetSnapshots(node, self._context, self.hub, self._order_snapshot, self.hub.incarnation)
        self._context.snapshots.others = head
        mirror = NodeMirror(node, memory, fleet, lambda message: self._on_mirror(self._me, message))
        return head, mirror, NodeSnapshots(node, memory, lambda answer: head.answered(self._me, answer), mirror.kept)

    def _write_join_file(self, is_first: bool) -> None:
        """Those that have joined know the keys of a supervisor that was started anew: it can do without, for a while.

        Raises OSError where it is the first, JoinError.
        """
        try:
            write_join_file(Path(self._fleet.join_file), self._join)
        except (OSError, BeingWritten) as error:
            if is_first:
                raise
            if not self._has_said_unwritten:
                self._has_said_unwritten = True
                self._node.terminal.print_line(
                    f"the join file cannot be written anew ({error}): nodes that have joined stay; trying again", "warn"
                )
            self._rewrite_s = time.monotonic() + REWRITE_S

    # The loop ------------------------------------------------------------------------------------------------

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller wait for other nodes' connections, and for those that come by MUNGE."""
        self.hub.register(poller)
        if self._introducer is not None:
            self._introducer.register(poller)

    def turn(self, ready: dict[object, int]) -> None:
        """After every poll."""
        for node, what in self.hub.read(ready):
            self._hear(node, what)
        self.hub.acknowledge()
        if self._introducer is not None:
            self._introducer.read(ready)
        if self._farewell_by_s is not None:
            self._say_farewell()

    def sampled(self) -> None:
        """Once a second."""
        now_s = self._node.judging_s()
        present = 1
        events = [] if self.has_left else self.aggregator.on_contact(self._me, now_s)
        for node in self.hub.nodes:
            if self.hub.is_connected(node):
                present += 1
                events += self.aggregator.on_contact(node, self.hub.heard_s(node))
        self.pass_on(events + self.aggregator.tick(now_s))
        self.checks.tick()
        self._absences.poll()
        self.asking.tick(now_s)
        self.inquiries.poll()
        self.examinations.poll()
        self.boards.poll()
        self.snapshots.poll()
        self.ledgers.poll()
        if self._context.engine.state.phase is Phase.RUNNING:
            self._own_snapshots.sample()
            self._mirror.sample()
        now = time.monotonic()
        if self._warm is not None:
            self._warm.turn(self._context.engine.state, self.hub.is_connected, now)
        if self._in_time is not None:
            self._in_time.tick()
            if self._kept_back[0] and now >= self._kept_back[1]:
                self.end_save()
        if self._missed.is_due(present, now):
            self._listen_everywhere()
        if self._rewrite_s is not None and now >= self._rewrite_s:
            self._rewrite_s = None
            with suppress(JoinError):  # another head's by now: this one goes on with those that it has
                self._write_join_file(is_first=False)
        if any(self.refused.values()) and self.refused != self._logged[0] and now >= self._logged[1]:
            self._logged = (self.refused, now + TELL_S)
            log.warning("refused", **self.refused)

    def _listen_everywhere(self) -> None:
        """Whoever is missing may know this host by an address that is not listened at."""
        found: list[str] = []
        if not self._fleet.listen.is_certain:
            found += self.hub.listen_also(own_addresses())
        if self._introducer is not None and not self._fleet.meet_listen.is_certain:
            found += self._introducer.listen_also(own_addresses())
        if found:
            log.info("listens_for_missing_nodes", addresses=sorted(set(found)))
        if found and not self._keys.is_everywhere:
            self._keys = msgspec.structs.replace(self._keys, is_everywhere=True)
            _write_keys(self._node.run_dir, self._keys)

    @property
    def refused(self) -> dict[str, int]:
        """Who and what was turned away, since this supervisor began: strangers, wrong keys, nodes that may not join."""
        counters = self.hub.counters
        guests = self._introducer.counters.refused if self._introducer is not None else 0
        return {
            "connections": counters.strangers,
            "keys": counters.keys_refused,
            "nodes": counters.joins_refused,
            "introductions": guests,
            "malformed": counters.malformed + self.malformed,
        }

    def _is_fresh(self, node: str, now_s: float) -> bool:
        return now_s - self.hub.heard_s(node) < 2.0

    def skipped(self, gap_s: float) -> None:
        """The daemon's loop did not run for so long."""
        self.aggregator.skipped(self._node.clock.now(), gap_s)

    def close(self) -> None:
        """Remove the join file if the run is over, and let go of the sockets.

        While the run is not over the file stays, for the next supervisor of this run.
        """
        self.snapshots.close()
        self._own_snapshots.close()
        self._mirror.close()
        if self._introducer is not None:
            self._introducer.close()
        elif self._node.is_over:
            try:
                remove_join_file(Path(self._fleet.join_file), self._join)
            except (OSError, JoinError) as error:
                log.warning("join_file_left", error=str(error))
        self.hub.close()

    # This node -------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """This supervisor is not the first: the others were told what the journal says."""
        state, now_s = self._context.engine.state, self._node.clock.now()
        if state.attempt is not None and state.phase in (Phase.RUNNING, Phase.STOPPING, Phase.ENDING):
            ranks = [rank.rank for rank in state.attempt.ranks.values()]
            self.aggregator.resume(state.attempt.number, ranks, now_s, self._roles())
        for member in state.fleet.members.values() if state.fleet is not None else ():
            if member.standing in (Standing.READY, Standing.SILENT):
                self.aggregator.on_contact(member.node, now_s)

    def join(self, ranks: int, attempt: int) -> None:
        """This node's launcher is there. attempt: whose ranks it has; -1: none."""
        self.has_left = False
        self.aggregator.joined(self._me, attempt, self._node.clock.now())
        fleet = self._context.engine.state.fleet
        if fleet is None or self._me not in fleet.members or fleet.members[self._me].standing is Standing.LEFT:
            own = self._fleet
            self._context.handle(
                ev.NodeJoined(
                    node=self._me,
                    slot=own.slot,
                    ranks=ranks,
                    switches=own.switches,
                    role=own.role,
                    addresses=peer_addresses(),
                )
            )
        self.send_orders()

    def leave(self) -> None:
        """This node's launcher does not obey; as coordinator it goes on."""
        self.has_left = True
        self.aggregator.forget(self._me)

    def on_local_event(self, event: ev.Event) -> list[ev.Event]:
        """An event of this node's own, or of no node: those for the engine."""
        if isinstance(event, ev.NodeLeft):
            self.aggregator.forget(self._me)
        elif isinstance(event, ev.AttemptStopped):
            self._own_snapshots.sample()  # as in follower.py
        return self._keep_back(self.aggregator.on_node_event(self._me, event, self._node.clock.now()))

    def serving(self, message: Serving) -> None:
        """The store is served on this node: the other nodes are ordered to start."""
        self.aggregator.serving(message.attempt, message.address, message.port)
        self.send_orders()

    # Orders ----------------------------------------------------------------------------------------------------

    def start(self, action: ac.StartAttempt, account: SaveAccount | None) -> None:
        """Have an attempt started on its first node, and on the others once its store is served there.

        account: of its checkpoint.
        """
        self.checks.end()
        self.asking.forget()
        fleet = self._context.engine.state.fleet
        sizes = {node: member.ranks for node, member in fleet.members.items()} if fleet else {}
        self._context.chooser.set_world_size(sum(sizes[node] for node in action.nodes))
        self._mirror.let_go(action.attempt)
        self.ledgers.hand_on(action, account, sizes)
        self.aggregator.start(action, sizes, self._roles())
        self.send_orders()

    def _roles(self) -> dict[str, str]:
        fleet = self._context.engine.state.fleet
        return {node: member.role for node, member in fleet.members.items()} if fleet else {}

    def stop(self, action: ac.StopAttempt) -> None:
        """Have an attempt stopped on all its nodes."""
        if self._in_time is not None:
            self._node.post(self.end_save)
        self.aggregator.stop(action)
        self.send_orders()

    def look(self, action: ac.TakeLook) -> None:
        """Have a look taken on all nodes; one that answers too late is missing in it."""
        self.aggregator.look(action, self._node.clock.now())
        self.send_orders()

    def read_exits(self, action: ac.ReadExits) -> None:
        """Have exits read on all nodes; one that answers too late is missing in them."""
        self.aggregator.read_exits(action, self._node.clock.now())
        self.send_orders()

    def begin_save(self, action: ac.SaveInTime) -> ManyNodes:
        """How ranks of all nodes are reached for a save before they are ended; it is over once they are to be."""
        from guardrun.supervisor.saving.fleet_in_time_save import ManyNodes  # few runs have a use for it

        state = self._context.engine.state
        ranks = state.attempt.ranks if state.attempt is not None else {}
        homes = {number: known.rank.node for number, known in ranks.items()}
        self._in_time = ManyNodes(self._node, self._send, self._answering, homes, frozenset(state.nodes.isolated))
        return self._in_time

    def end_save(self) -> None:
        """The engine waits for it no more: what was kept back may follow."""
        self._in_time = None
        (events, _), self._kept_back = self._kept_back, ([], 0.0)
        self.pass_on(events)

    def _answering(self) -> list[str]:
        """Other nodes that can be reached, as far as is known: a link that was cut stands for a while."""
        fleet = self._context.engine.state.fleet
        ready = (
            {n for n, one in fleet.members.items() if one.standing is Standing.READY} if fleet is not None else set()
        )
        return [node for node in self.hub.nodes if node in ready and self.hub.is_connected(node)]

    def _keep_back(self, events: list[ev.Event]) -> list[ev.Event]:
        """While a save is looked at, its ranks may end by themselves: their peers are gone. That is told after it."""
        if self._in_time is None or not any(isinstance(event, ev.AttemptStopped) for event in events):
            return events
        known, until_s = self._kept_back
        kept = [event for event in events if isinstance(event, ev.AttemptStopped)]
        self._kept_back = ([*known, *kept], until_s or time.monotonic() + ENDED_S)
        return [event for event in events if event not in kept]

    def isolate(self, action: ac.Isolate) -> None:
        """Put a node under quarantine: this one, or another."""
        if action.node == self._me:
            self._node.relations.isolate(action)
            return
        # To one that has been cut off it would come when it is back, and well.
        is_there = self.hub.is_connected(action.node) and self._is_fresh(action.node, self._node.clock.now())
        if is_there:
            self._send(action.node, action)
        isolate_other(self._node, action, is_there)

    def finish(self, order: Finish) -> None:
        """Tell all nodes that the run is over; the daemon is, once they have heard, or after FAREWELL_S."""
        self.checks.end()
        words = last_words(self._context.engine.state, self._me, self._node.run_dir)
        order = msgspec.structs.replace(order, words=words)
        for node in self.hub.nodes:
            self._send(node, order)
        self._farewell_by_s = time.monotonic() + FAREWELL_S

    def _say_farewell(self) -> None:
        assert self._farewell_by_s is not None
        waiting = [n for n in self.hub.nodes if self.hub.is_connected(n) and self.hub.waiting_bytes(n)]
        if not waiting or time.monotonic() >= self._farewell_by_s:
            self._node.is_over = True

    def send_orders(self) -> None:
        """Send what `aggregator` has collected; this node's own orders are carried out at once."""
        orders, self.aggregator.orders = self.aggregator.orders, []
        for node, order in orders:
            if node == self._me:
                self._obey(order)
            else:
                self._send(node, order)

    def _send(self, node: str, order: msg.Down) -> None:
        # Of starts, stops and the end only the newest is still meant.
        replaces = "course" if isinstance(order, Start | Stop | Finish) else ""
        if not self.hub.send(node, encode_msgpack(order), replaces):
            log.warning("not_ordered", node=node, order_type=type(order).__name__)

    def _ask(self, node: str, order: Order) -> None:
        """For the ranks to save: another node, or this one, which answers at once."""
        if node != self._me:
            self._send(node, order)
            return
        context = self._context
        attempt, now_s = context.engine.state.attempt, self._node.clock.now()
        number = -1 if attempt is None else attempt.number
        answer = self._own_asking.obey(order, self._node.sampler.boards, number, now_s)
        if isinstance(answer, msg.Checks):
            self.asking.on_checks(node, answer, now_s)
        elif answer is not None:
            self.asking.confirmed(node, answer)

    def _order_snapshot(self, node: str, order: msg.SnapshotOrder) -> None:
        if node == self._me:
            self._own_snapshots.obey(order)
        else:
            self._send(node, order)

    def _on_mirror(self, node: str, message: msg.MirrorOffer | msg.MirrorReady) -> None:
        def send(to: str, order: msg.MirrorOpen | msg.MirrorTo) -> None:
            if to == self._me:
                self._mirror.obey(order)
            else:
                self._send(to, order)

        on_mirror_message(self._context.engine.state.attempt, node, message, send)

    def _obey(self, order: msg.Down) -> None:
        """This node's part."""
        context = self._context
        if isinstance(order, ac.TakeLook):
            begin_look(
                self._node,
                order,
                self._node.run_dir / look_name(order.attempt, order.look),
                context.folders(),
                self._node.writer.put,
            )
        elif isinstance(order, ac.ReadExits):
            begin_exits(self._node, order, context.folders(), context.chooser.name_of)
        elif isinstance(order, Start | Stop | Finish):
            self._node.send(order)

    def other_ranks(self) -> list[ev.Rank]:
        """Those of the current attempt that live on other nodes."""
        attempt = self._context.engine.state.attempt
        known = attempt.ranks.values() if attempt is not None and attempt.ended_s is None else ()
        return [one.rank for one in known if one.rank.node != self._me and one.exitcode is None]

    def ask_boards(self, done: Callable[[], object]) -> None:
        """Have other nodes say what their ranks' boards show; done: called within two seconds."""
        now_s = self._node.clock.now()
        nodes = dict.fromkeys(rank.node for rank in self.other_ranks())
        self.boards.ask([n for n in nodes if self.hub.is_connected(n) and self._is_fresh(n, now_s)], done)

    def heard_ago_s(self, node: str) -> float:
        """How old what its reports have told may be."""
        return self._node.clock.now() - self.hub.heard_s(node) + REPORT_S

    def shares(self) -> tuple[Shares, list[str]]:
        """What ranks of the last attempt spent its time on, and the nodes whose ranks are not among them."""
        attempt, ingest = self._context.engine.state.attempt, self._node.ingest
        if attempt is None:
            return {}, []
        nodes = {known.rank.node for known in attempt.ranks.values()}
        elsewhere, untold = self.boards.shares(attempt.number, nodes - {self._me})
        # A head that had no part in it has boards of an attempt before.
        here = ingest.shares() if self._me in nodes and ingest.attempt == attempt.number else {}
        return {**here, **elsewhere}, untold

    # Other nodes -----------------------------------------------------------------------------------------------

    def pass_on(self, events: list[ev.Event]) -> None:
        """To the engine, and whatever orders came of it out."""
        for event in self._keep_back(events):
            self._context.handle(event)
        self.send_orders()

    def _decide(self, join: Join, rivals: Sequence[Present]) -> str:
        """Why a node may not join; empty where it may."""
        if self._farewell_by_s is not None:
            return f"run {self._node.run_file.run_id} is over: {join.node} comes too late for it"
        if join.node == self._me:
            return f"{join.node} is the head itself: one guardrun a node"
        if not join.node.isprintable() or "/" in join.node or len(join.node) > MAX_NAME_CHARS:
            return "its name is not a node's"
        version = str(join.info.get("version", "?"))
        if version != __version__:
            return f"{join.node} runs guardrun {version}, the head {__version__}: install the same on all nodes"
        if join.info.get("work") != self._fleet.work:
            return (
                f"{join.node} was started with another script or other arguments than the head: start the same on all"
            )
        if not isinstance(join.info.get("ranks"), int) or join.info["ranks"] < 1:
            return f"{join.node} does not say how many ranks it would run"
        return newer_if_gone(join, rivals)

    def _hear(self, node: str, what: hubs.What) -> None:
        now_s = self._node.clock.now()
        if isinstance(what, hubs.Joined):
            self._joined(node, what.info, what.slot, now_s, is_new=True)
        elif isinstance(what, hubs.Back):
            self._joined(node, what.info, -1, now_s, is_new=False)
        elif isinstance(what, hubs.Dropped):
            log.info("node_dropped", node=node, why=what.why)
            self.checks.gone(node)
            if self._in_time is not None:
                self._in_time.dropped(node)
            self.snapshots.poll()
            self.ledgers.poll()
            self.pass_on(self.aggregator.dropped(node, now_s, self.hub.heard_s(node)))
        elif isinstance(what, hubs.Missed):
            log.warning("node_lost_messages", node=node, packets=what.packets)
        else:
            self._on_node_message(node, what.body, now_s)

    def _joined(self, node: str, info: dict[str, Any], slot: int, now_s: float, *, is_new: bool) -> None:
        attempt = info.get("attempt", -1)
        log.info("node_joined", node=node, slot=slot, info=info)
        self._compare(node, info)
        self._context.handle(
            ev.NodeJoined(
                node=node,
                slot=slot,
                ranks=info["ranks"],
                attempt=attempt,
                switches=switches_of(info),
                role=role_of(info),
                addresses=addresses_of(info),
            )
        )
        self.aggregator.joined(node, attempt, now_s, is_new)
        if self._in_time is not None and is_new:
            self._in_time.replaced(node)
        if self._warm is not None and is_new:
            self._warm.joined(node)
        self.send_orders()

    def _compare(self, node: str, info: dict[str, Any]) -> None:
        """Versions that differ between nodes train, mostly; they are said once, where the pre-flight does not."""
        if self._node.run_file.settings.check_nodes != "off":
            return
        self._versions = mine = self._versions or compared_versions()
        for name in mine:
            theirs = str(info.get(name, ""))
            key = f"{name} {theirs}"
            if theirs and mine[name] and theirs != mine[name] and key not in self._warned:
                self._warned.add(key)
                self._node.terminal.print_line(f"{node} has {name} {theirs}, {self._me} {mine[name]}", "warn")

    def _on_node_message(self, node: str, body: bytes, now_s: float) -> None:
        try:
            message = self._decoder.decode(body)
        except DECODE_ERRORS:
            self.malformed += 1
            return
        context = self._context
        if isinstance(message, msg.Serving):
            self.aggregator.serving(message.attempt, message.address, message.port)
            self.send_orders()
        elif isinstance(message, msg.Raw):
            self._keep_raw(node, message)
        elif isinstance(message, msg.Loaded):
            self._loaded(node, message)
        elif isinstance(message, msg.CheckAnswer):
            self.checks.on_answer(node, message)
        elif isinstance(message, msg.Checks):
            self.asking.on_checks(node, message, now_s)
            context.saving.try_asking()
        elif isinstance(message, msg.CheckpointSet):
            self.asking.confirmed(node, message)
            context.saving.try_asking()
        elif isinstance(message, msg.Looked):
            self.inquiries.answered(node, message)
        elif isinstance(message, msg.Examined):
            self.examinations.answered(node, message)
        elif isinstance(message, msg.BoardsReported):
            self.boards.answered(node, message)
        elif isinstance(message, msg.SharesReported):
            self.boards.shares_told(node, message)
        elif isinstance(message, msg.StepsReported | msg.SavedHere | msg.FileSought):
            if self._in_time is not None:
                self._in_time.answered(node, message)
        elif isinstance(message, msg.SnapshotAnswer):
            self.snapshots.answered(node, message)
        elif isinstance(message, msg.MirrorOffer | msg.MirrorReady):
            self._on_mirror(node, message)
        elif isinstance(message, msg.DataSaved):
            self.ledgers.saved(node, message)
        elif isinstance(message, msg.DataReported):
            self.ledgers.answered(node, message)
        elif isinstance(message, msg.ImportsReported):
            if self._warm is not None:
                self._warm.answered(node, message.imports)
        elif isinstance(message, ev.StopRequested) and may_leave(context.engine.state, node):
            self._let_go(node, message, now_s)
        else:
            if isinstance(message, ev.CheckpointSaved):
                context.saved(message.path, message.step, time.time(), message.inode, message.attempt)
            elif isinstance(message, ev.NodeLeft):
                self.aggregator.forget(node)
            self.pass_on(self.aggregator.on_node_event(node, message, now_s))

    def _let_go(self, node: str, message: ev.StopRequested, now_s: float) -> None:
        """A node that is told to end, and that the job does not need: its guardrun waits for the word."""
        self.pass_on(self.aggregator.on_node_event(node, msgspec.structs.replace(message, node=node), now_s))
        self.aggregator.forget(node)
        self._send(node, Finish(exit_code=128 + message.signum, words=leaving_words(node, message.signum)))

    def _keep_raw(self, node: str, raw: msg.Raw) -> None:
        """A node's raw stacks, into the run directory."""
        parts = Path(raw.folder).parts
        if len(parts) != 2 or parts[0] != "looks" or ".." in parts:
            self.malformed += 1
            return
        folder = self._node.run_dir / raw.folder

        def work() -> None:
            if raw.left_out:
                make_private(folder)
                text = f"{raw.left_out} files of {node} were too large to be fetched\n"
                (folder / f"not-fetched-{node}.txt").write_text(text)
            for name, data in raw.files.items():
                path = folder / name
                if not path.resolve().is_relative_to(folder.resolve()):
                    continue
                make_private(path.parent)
                path.write_bytes(zlib.decompressobj().decompress(data, msg.MAX_RAW_BYTES * 8))

        self._node.writer.put(work)

    def _loaded(self, node: str, loaded: msg.Loaded) -> None:
        """As Performer.loaded, for a rank elsewhere: only the head knows what is a checkpoint."""
        context = self._context

        def work() -> ev.Event | None:
            found = context.chooser.saw_loaded(loaded.path)
            if found is None:
                return elsewhere(context.chooser, loaded.attempt, loaded.path)
            base = msg.SetBase(attempt=loaded.attempt, global_rank=loaded.global_rank, step=found.step)
            self._node.post(lambda: self._send(node, base))
            return ev.CheckpointLoaded(
                attempt=loaded.attempt, global_rank=loaded.global_rank, path=found.path, step=found.step
            )

        self._node.in_background(work, lambda error: None, context.checkpoint_pool)


def _make_warm_spares(run: RunFile, send: Callable[[str, msg.Down], object]) -> WarmSpares | None:
    """None where ranks are never forked."""
    if not run.config.get("launcher", {}).get("warm"):
        return None
    from guardrun.supervisor.fleet.coordinator.warm_spares import WarmSpares  # few runs have a use for it

    return WarmSpares(run.node, Path(run.socket_dir), send)


def _widened(fleet: FleetFile) -> FleetFile:
    """Listening everywhere, where that is not ruled out."""
    listen, meet_listen = (one if one.is_certain else EVERYWHERE for one in (fleet.listen, fleet.meet_listen))
    return msgspec.structs.replace(fleet, listen=listen, meet_listen=meet_listen)


def _published(fleet: FleetFile) -> list[str]:
    """Where the other nodes come: a name first, as they know it; where that leads them past us, where we are."""
    listen = fleet.listen
    return [fleet.address, *([] if listen.is_certain else numeric_only(listen.addresses))]


def _read_keys(run_dir: Path, session: int) -> Keys | None:
    try:
        keys = msgspec.json.decode(read_own(run_dir / KEYS_FILE), type=known_type(Keys))
    except (OSError, msgspec.DecodeError):
        return None
    return keys if keys.session == session else None


def _write_keys(run_dir: Path, keys: Keys) -> None:
    try:
        write_own(run_dir / KEYS_FILE, encode_json(keys), SECRET)
    except OSError as error:
        log.warning("keys_not_kept", error=str(error))
