"""Copies of ranks' states in the memory of several nodes: written out as one checkpoint, or not at all.

    list      ▶ every node that had ranks and is heard      which copies it holds, and what its ranks' first calls named
    prepare   ▶ the nodes whose copies make up a whole      written beside their names; which number of names is free
    name      ▶ the same, once all of it is there and seen from here: the lowest number that is free on all
    drop      ▶ the same, whatever came of it

Nobody writes without being asked, each node beside names of its own, and late orders are refused where they arrive: a
node that was cut off and one that took its place never write one file. A node that is lost or silent is not waited for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from guardrun.supervisor.base.log import log
from guardrun.supervisor.collect.ranks.boards import open_boards
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.state.state import Attempt
from guardrun.supervisor.fleet.protocol.messages import SnapshotAnswer, SnapshotOrder
from guardrun.supervisor.node.run_context import EngineContext, LoopContext
from guardrun.supervisor.saving.snapshot_files import (
    MOST_NAMES,
    NotWrittenError,
    Written,
    name_of,
    temporary_of,
    write_newest,
)
from guardrun.supervisor.saving.snapshot_sets import Copy, First, WholeSet, find_whole
from guardrun.supervisor.saving.snapshots import newest_step, node_tag, read_boards, read_listing

LIST_S = 5.0
NAME_S = 20.0
DROP_S = 5.0
SILENT_S = 5.0
"""Nothing heard of a node for so long: it is not waited for."""
SEEN_S = 3.0
"""Until what another node has written is seen from here, on a file system that both have."""
POLL_S = 0.1
NAME_TRIES = 5
NEVER = 1 << 62
"""Steps, of a rank that had never called when its node was last heard: it would have been told."""


class Nodes(Protocol):
    """The other nodes' connections."""

    def is_connected(self, node: str) -> bool:
        """Whether there is one."""

    def heard_s(self, node: str) -> float:
        """When something was last heard of it, in the run's seconds."""


class _Question:
    """Made by the thread that waits for it; all else is the loop's."""

    def __init__(self, orders: Mapping[str, SnapshotOrder]) -> None:
        self.orders = orders
        self.waiting = set(orders)
        self.answers: dict[str, SnapshotAnswer] = {}
        self.is_done = threading.Event()


class FleetSnapshots:
    """At the head. `write_newest` is called on the chooser's thread, all else on the loop's."""

    def __init__(
        self,
        node: LoopContext,
        context: EngineContext,
        nodes: Nodes,
        send: Callable[[str, SnapshotOrder], object],
        first_ask: int,
    ) -> None:
        """send: the head's own node may answer from within. first_ask: another than an earlier supervisor's."""
        self._node, self._context, self._nodes, self._send = node, context, nodes, send
        self._me = node.run_file.node
        self._ask_number = first_ask
        self._question: _Question | None = None
        self._told: dict[str, SnapshotAnswer] = {}
        """What nodes have said unasked, the newest of each."""
        self._is_closed = False

    # The loop's thread -----------------------------------------------------------------------------------------------

    def answered(self, node: str, answer: SnapshotAnswer) -> None:
        """What a node says, asked or not."""
        if answer.ask == 0:
            self._told[node] = answer
            return
        question = self._question
        if question is None or node not in question.waiting or answer.ask != question.orders[node].ask:
            return
        question.answers[node] = answer
        self._waits_for(question, question.waiting - {node})

    def poll(self) -> None:
        """Once a second, and when a connection was closed: who is not waited for any more."""
        if self._question is not None:
            self._waits_for(self._question, {node for node in self._question.waiting if self._is_heard(node)})

    def close(self) -> None:
        """Nobody waits any more."""
        self._is_closed = True
        if self._question is not None:
            self._question.is_done.set()

    @property
    def has_any(self) -> bool:
        """Whether the last attempt has kept something, on any node."""
        attempt = self._context.engine.state.attempt
        return attempt is not None and any(
            told.attempt == attempt.number and told.firsts for told in list(self._told.values())
        )

    def _begin(self, question: _Question) -> None:
        self._question = question
        for node, order in question.orders.items():
            if self._is_heard(node):
                self._send(node, order)
        self.poll()

    def _waits_for(self, question: _Question, nodes: set[str]) -> None:
        question.waiting = nodes
        if not nodes or self._is_closed:
            question.is_done.set()

    def _is_heard(self, node: str) -> bool:
        if node == self._me:
            return True
        return self._nodes.is_connected(node) and self._node.clock.now() - self._nodes.heard_s(node) < SILENT_S

    # The chooser's thread --------------------------------------------------------------------------------------------

    def write_newest(self, past_step: int, spoiled: Sequence[Spoiled]) -> tuple[int, Written]:
        """Have the newest whole set written out, if its step is past this one; with the attempt's number.

        Nothing of the attempt is alive. As in saving/snapshot_files.py.
        """
        attempt = self._context.engine.state.attempt
        if attempt is None:
            return -1, Written()
        copies, idle, firsts = self._collect(attempt)
        clock = self._node.clock
        written = write_newest(
            find_whole(copies, sorted(attempt.ranks), idle, firsts),
            newest_step(copies),
            lambda whole, until_s: self._write(attempt.number, whole, until_s),
            attempt=attempt.number,
            past_step=past_step,
            spoiled=spoiled,
            wall_s=lambda at_ns: clock.wall_s(at_ns / 1e9),
        )
        return attempt.number, written

    def _collect(self, attempt: Attempt) -> tuple[list[Copy], dict[int, int], dict[int, First]]:
        """What is there, who has never called, and what first calls named."""
        nodes = dict.fromkeys(known.rank.node for known in attempt.ranks.values())
        order = SnapshotOrder(ask=self._next_ask(), attempt=attempt.number, what="list")
        answers = self._ask(dict.fromkeys(nodes, order), LIST_S)
        copies = [copy for node, its in answers.items() for copy in read_listing(its, node, attempt.ranks)]
        # What a node keeps for another one is taken where that has it no more.
        copies.sort(key=lambda copy: attempt.ranks[copy.global_rank].rank.node == copy.node)
        told = {node: its for node, its in list(self._told.items()) if its.attempt == attempt.number}
        # A head that was started anew knows neither; the boards of its own ranks are still there.
        here = [number for number, known in attempt.ranks.items() if known.rank.node == self._me]
        boards = open_boards(self._node.run_file.socket_dir, attempt.number, here)
        firsts, idle = read_boards(boards)
        for board in boards.values():
            board.close()
        for its in told.values():
            idle |= dict.fromkeys(its.idle, NEVER)
            firsts |= its.firsts
        for its in answers.values():
            idle |= its.idle
            firsts |= its.firsts
        return copies, {number: steps for number, steps in idle.items() if number not in firsts}, firsts

    def _write(self, attempt: int, whole: WholeSet, until_s: float) -> tuple[list[str], list[int]]:
        """Of replicas this node's own first: nobody need see what another one has written. Raises NotWrittenError."""
        ways = [(copy,) for copy in (*whole.copies, *whole.instead)] if whole.instead else [whole.copies]
        ways.sort(key=lambda copies: any(copy.node != self._me for copy in copies))
        for number, copies in enumerate(ways):
            try:
                return self._write_copies(attempt, copies, until_s)
            except (OSError, NotWrittenError) as error:
                if number == len(ways) - 1:
                    raise
                log.warning("snapshot_not_written", node=copies[0].node, error=str(error))
        raise NotWrittenError("there is none")

    def _write_copies(self, attempt: int, copies: Sequence[Copy], until_s: float) -> tuple[list[str], list[int]]:
        parts: dict[str, list[Copy]] = {}
        for copy in copies:
            parts.setdefault(copy.node, []).append(copy)
        ask = self._next_ask()
        try:
            left_s = until_s - time.monotonic()
            by_s = self._node.clock.now() + left_s
            orders = {
                node: SnapshotOrder(
                    ask=ask,
                    attempt=attempt,
                    what="prepare",
                    parts=[(copy.global_rank, copy.slot, copy.record.generation) for copy in its],
                    by_s=by_s,
                )
                for node, its in parts.items()
            }
            number = max(self._ask_all(orders, left_s).values())
            for copy in copies:
                if copy.node != self._me:
                    self._wait_until_seen(copy)
            names = self._name(attempt, ask, list(parts), number)
            paths = [name_of(copy.record.path, names) for copy in copies]
            return paths, [_wait_for(path).st_ino for path in paths]
        finally:
            with suppress(NotWrittenError):
                self._ask(dict.fromkeys(parts, SnapshotOrder(ask=ask, attempt=attempt, what="drop")), DROP_S)

    def _name(self, attempt: int, ask: int, nodes: Sequence[str], number: int) -> int:
        """Have all give their files the names of one number; returns which. Raises NotWrittenError."""
        for _ in range(NAME_TRIES):
            if number >= MOST_NAMES:
                break
            by_s = self._node.clock.now() + NAME_S
            order = SnapshotOrder(ask=ask, attempt=attempt, what="name", number=number, by_s=by_s)
            free = max(self._ask_all(dict.fromkeys(nodes, order), NAME_S).values())
            if free == number:
                return number
            number = free
        raise NotWrittenError("all names that it might have are taken")

    def _ask_all(self, orders: Mapping[str, SnapshotOrder], limit_s: float) -> dict[str, int]:
        """As _ask; by node the number that is free. Raises NotWrittenError where one could not, or does not answer."""
        answers = self._ask(orders, limit_s)
        for node in orders:
            if node not in answers:
                raise NotWrittenError(f"{node} does not answer")
            if answers[node].why:
                raise NotWrittenError(f"{node}: {answers[node].why}")
        return {node: answer.free for node, answer in answers.items()}

    def _ask(self, orders: Mapping[str, SnapshotOrder], limit_s: float) -> dict[str, SnapshotAnswer]:
        """Ask nodes, and wait for their answers; those that are lost meanwhile have none."""
        question = _Question(orders)
        self._node.post(lambda: self._begin(question))
        question.is_done.wait(max(0.0, limit_s))
        if self._is_closed:
            raise NotWrittenError("the supervisor ends")
        return dict(question.answers)

    def _next_ask(self) -> int:
        self._ask_number += 1
        return self._ask_number

    def _wait_until_seen(self, copy: Copy) -> None:
        """Raises NotWrittenError where what a node has written is not seen from here."""
        path = temporary_of(copy.record.path, node_tag(copy.node))
        try:
            is_it = _wait_for(path).st_size == copy.record.size_bytes
        except OSError:
            is_it = False
        if not is_it:
            folder = os.path.dirname(copy.record.path)
            raise NotWrittenError(f"what {copy.node} writes to {folder} is not seen on {self._me}")


def _wait_for(path: str) -> os.stat_result:
    """Raises OSError where it is not there in time."""
    until_s = time.monotonic() + SEEN_S
    while True:
        try:
            return os.stat(path)
        except FileNotFoundError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(POLL_S)
