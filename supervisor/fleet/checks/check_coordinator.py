"""The head's part in trying nodes together: its own node's part, the others' answers, and the record of it."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.own_files import write_own
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.fleet.checks.check_rounds import FleetChecks
from guardrun.supervisor.fleet.checks.node_probes import About, NodeChecks, wall_base_s
from guardrun.supervisor.fleet.checks.reachability_probe import TOKEN_BYTES
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.node.run_context import LoopContext
from guardrun.supervisor.rundir.run_directory import FleetFile

FILE = "preflight-nodes.json"
"""In the run directory: the newest check of nodes together, all that was measured."""


class CheckCoordinator:
    """Called from the daemon's loop."""

    def __init__(
        self,
        node: LoopContext,
        handle: Callable[[ev.Event], object],
        fleet: FleetFile,
        send: Callable[[str, msg.Down], object],
    ) -> None:
        """handle: tells the engine at once. send: gives another node an order."""
        run = node.run_file
        place = (fleet.address, fleet.check_listen)
        about = About(run.node, *place, run.script, run.cwd, lambda: wall_base_s(node.clock.now))
        self._node, self._handle = node, handle
        self._send = send
        self._me = run.node
        self._checks = FleetChecks()
        self._own = NodeChecks(about, lambda answer: node.post(lambda: self.on_answer(self._me, answer)))

    def begin(self, order: ac.CheckNodes) -> None:
        """The answer is an event."""
        if order.level == "full":
            text = "pre-flight: all-reduces between the nodes, two by two, before the attempt starts"
            self._node.terminal.print_line(text, "info")
        self._checks.begin(order, os.urandom(TOKEN_BYTES), self._node.clock.now())
        self._send_orders()

    def on_answer(self, node: str, answer: msg.CheckAnswer) -> None:
        """A node's answer to a step. The answer that completes the check makes NodesChecked for the engine."""
        self._done(self._checks.on_answer(node, answer, self._node.clock.now()))

    def gone(self, node: str) -> None:
        """Its connection was closed."""
        self._checks.gone(node)

    def tick(self) -> None:
        """Once a second."""
        self._done(self._checks.tick(self._node.clock.now()))

    def end(self) -> None:
        """An attempt starts, or the run ends."""
        self._checks.end()
        self._send_orders()
        self._own.end()

    def close(self) -> None:
        """End this node's own part of a check; the other nodes are not asked to end theirs."""
        self._own.end()

    def _done(self, event: ev.NodesChecked | None) -> None:
        self._send_orders()
        if event is None:
            return
        self._own.end()
        log.info("nodes_checked", faulty=event.faulty, said=event.said, took_s=event.took_s)
        self._keep()
        self._handle(event)

    def _keep(self) -> None:
        path, data = self._node.run_dir / FILE, msgspec.json.format(encode_json(self._checks.record))

        def work() -> None:
            try:
                write_own(path, data)
            except OSError as error:
                log.warning("check_not_kept", error=str(error))

        self._node.writer.put(work)

    def _send_orders(self) -> None:
        orders, self._checks.orders = self._checks.orders, []
        for node, order in orders:
            if node == self._me:
                self._own.obey(order)
            else:
                self._send(node, order)
