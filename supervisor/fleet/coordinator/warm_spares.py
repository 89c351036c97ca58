"""Spares have a warm process, too (docs/warm-ranks.md): what ranks import is told to them by the head.

    ReportImports    ▶ a node that trains, if the head does not
    ImportsReported  ◀ what its ranks had imported by their first step
    WarmUp           ▶ each spare

A node's launcher starts its process once that lies beside the boards, whoever has put it there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Member, Standing
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.fleet.protocol.messages import ReportImports, WarmUp
from guardrun.supervisor.wire.warm_state import keep_imports, read_imports

ASK_S = 5.0
"""A node that has not answered is followed by the next."""


class WarmSpares:
    """The head's part."""

    def __init__(self, me: str, sockets: Path, send: Callable[[str, ReportImports | WarmUp], object]) -> None:
        """me, sockets: the head's own node, and where its boards are. send: to another node."""
        self._me, self._sockets, self._send = me, sockets, send
        self._imports = b""
        self._told: set[str] = set()
        self._asked: dict[str, float] = {}
        """Nodes that train, and when they were asked last."""

    def turn(self, state: State, is_connected: Callable[[str], bool], now_s: float) -> None:
        """Once a second."""
        fleet = state.fleet
        if fleet is None or state.phase is not Phase.RUNNING or state.is_warm_bad:
            return
        ready = [one for one in fleet.members.values() if one.standing is Standing.READY]
        spares = [one.node for one in ready if not one.is_placed and one.node not in self._told]
        if not spares:
            return
        if not self._imports:
            self._fetch([one.node for one in ready if one.is_placed], fleet.members, is_connected, now_s)
        for node in spares if self._imports else ():
            if node == self._me:
                keep_imports(self._sockets, fleet.members[node].ranks, self._imports)
            elif is_connected(node):
                self._send(node, WarmUp(imports=self._imports))
            else:
                continue
            self._told.add(node)

    def joined(self, node: str) -> None:
        """Its guardrun is another one, and knows of nothing."""
        self._told.discard(node)

    def answered(self, node: str, imports: bytes) -> None:
        """A node's ranks have trained a step. What nobody has asked for is not taken."""
        if node in self._asked and not self._imports and imports:
            self._imports = imports

    def _fetch(
        self, nodes: list[str], members: dict[str, Member], is_connected: Callable[[str], bool], now_s: float
    ) -> None:
        if self._me in nodes:
            self._imports = read_imports(self._sockets, members[self._me].ranks)
            return
        if any(now_s - asked_s < ASK_S for asked_s in self._asked.values()):
            return
        there = [node for node in nodes if is_connected(node)]
        if there:
            node = min(there, key=lambda one: self._asked.get(one, 0.0))
            self._asked[node] = now_s
            self._send(node, ReportImports())
