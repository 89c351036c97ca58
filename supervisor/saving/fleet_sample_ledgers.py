"""What ranks of several nodes had been handed out when a checkpoint was written (sample_ledgers.py, on the head).

    DataSaved     ◀ the node whose rank has saved: what its ranks had been handed by then
    ReportData    ▶ the other nodes of the attempt: what had yours, when so many steps were done?
    DataReported  ◀ once more right before the end of the attempt, by when more is known, and of the steps that are held
                    in memory; and unasked, once a second, of the last step that is done
    HandedOut     ▶ before the start of one that resumes: the account of its checkpoint, each node its ranks'

A rank's last 1,024 batches are on its page: an answer may take a while. Of a node that is lost before it has told of
these steps it is not known what its ranks had been handed out, so that nothing is skipped. Nobody waits for anything
here: what is not known when an attempt starts is told as unknown.

A node's word counts for its own ranks alone, and only the head's orders are obeyed, which come by the node's own link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.messages import CheckpointSaved
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.collect.ranks.ledgers import Place, SaveSeen, find_places, read_rings, read_saves
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.engine.recovery.data_replay import MAX_RANKS
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.node.run_context import EngineContext
from guardrun.supervisor.saving.sample_ledgers import (
    SampleLedgers,
    SaveAccount,
    in_time_of,
    leave,
    read_places,
    saves_in,
    seen_of,
)
from guardrun.supervisor.saving.snapshot_files import Written
from guardrun.supervisor.saving.snapshot_sets import Copy

ANSWER_S = 5.0
"""Who has not answered by then is not waited for."""
MOST_STEPS = 8
"""Of an attempt, after which something was saved: of the last ones it is told once more before its end."""
MOST_TOLD = 16
"""Steps of which a node has told unasked."""


class Copies(Protocol):
    """What ranks of the node keep in memory (snapshot_memory.py)."""

    def copies(self, attempt: int) -> list[Copy]:
        """By an attempt."""


class NodeLedgers:
    """A node's part, but for the head's. Runs on the loop's thread."""

    def __init__(
        self, node: RankContext, memory: Copies, send: Callable[[msg.DataSaved | msg.DataReported], object]
    ) -> None:
        """memory: what ranks keep there."""
        self._node, self._memory, self._send = node, memory, send
        self._attempt = -1
        """To which the next two belong."""
        self._files: set[tuple[int, int]] = set()
        """That were told."""
        self._steps: dict[int, None] = {}
        """After which somebody has saved; the last ones."""
        self._sampled = 0
        """Steps of which it was told unasked, last."""
        node.ingest.on_save = self._saved

    def obey(self, order: msg.ReportData | msg.HandedOut) -> None:
        """An order of the head."""
        if isinstance(order, msg.HandedOut):
            leave(self._node.sockets, order.attempt, order.account)
        elif order.attempt == self._node.ingest.attempt:
            self._note(order.attempt, order.done)
            self._report(order.done, self._places(order.done))

    def sample(self) -> None:
        """Once a second while ranks train, where something is saved: should this node be lost, it is known by then."""
        words, attempt = self._words(), self._node.ingest.attempt
        done = _done(words)
        is_saved = self._attempt == attempt or any(own[Field.SNAPSHOT_INDEX] for own in words)
        if is_saved and done not in (0, self._sampled):
            self._sampled = done
            if any((places := self._places(done)).values()):
                self._report(done, places)

    def ended(self) -> None:
        """The attempt is over here, which is about to be told."""
        attempt = self._node.ingest.attempt
        for rank in self._ranks():
            for seen in read_saves(self._node.sockets, attempt, rank)[-MOST_STEPS:]:
                if self._attempt != attempt or (seen.mtime_ns, seen.size) not in self._files:
                    self._send_saved(attempt, rank, seen)
        steps = dict.fromkeys(one.record.at for one in self._memory.copies(attempt) if one.record.is_counted)
        if done := _done(self._words()):  # of which a rank may have saved in time, and that is not known here
            steps[done] = None
        steps |= self._steps if self._attempt == attempt else {}
        rings = {rank: read_rings(self._node.sockets, attempt, rank) for rank in self._ranks() if steps}
        for done in steps:
            self._report(done, {rank: find_places(own, done) for rank, own in rings.items()})

    def _words(self) -> list[list[int]]:
        return [words for board in self._node.sampler.boards.values() if (words := board.read()) is not None]

    def _saved(self, message: CheckpointSaved, ranks: Sequence[int]) -> None:
        self._send_saved(message.attempt, message.global_rank, seen_of(message))

    def _send_saved(self, attempt: int, rank: int, seen: SaveSeen) -> None:
        if seen.own_steps < 0 or seen.mtime_ns <= 0:
            return
        self._note(attempt, seen.own_steps)
        self._files.add((seen.mtime_ns, seen.size))
        self._send(
            msg.DataSaved(
                attempt=attempt,
                global_rank=rank,
                own_steps=seen.own_steps,
                step=seen.step,
                began_ns=seen.began_ns,
                size=seen.size,
                mtime_ns=seen.mtime_ns,
                places=self._places(seen.own_steps),
            )
        )

    def _report(self, done: int, places: dict[int, list[Place]]) -> None:
        self._send(msg.DataReported(attempt=self._node.ingest.attempt, done=done, places=places))

    def _places(self, done: int) -> dict[int, list[Place]]:
        return read_places(self._node.sockets, self._node.ingest.attempt, self._ranks(), done)

    def _ranks(self) -> list[int]:
        return sorted(self._node.ingest.ranks)

    def _note(self, attempt: int, done: int) -> None:
        if attempt != self._attempt:
            self._attempt, self._files, self._steps, self._sampled = attempt, set(), {}, 0
        self._steps.pop(done, None)
        self._steps[done] = None
        if len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]


def _done(words: Sequence[Sequence[int]]) -> int:
    """Steps that all ranks of these boards have finished."""
    return min((own[Field.STEP] for own in words), default=0)


@dataclass
class _Round:
    """All nodes, after so many steps of an attempt."""

    homes: Mapping[int, str]
    by_s: float
    waiting: set[str]
    """Nodes that have still to answer."""
    places: dict[int, list[Place]]
    saves: list[tuple[int, SaveSeen]] = field(default_factory=list)
    """That are still to be noted: who has saved, and what."""

    def merge(self, node: str, places: Mapping[int, list[Place]]) -> None:
        """A node's word, for its own ranks."""
        self.places.update({rank: own for rank, own in places.items() if self.homes.get(rank) == node})
        self.waiting.discard(node)


class FleetLedgers:
    """The head's part. Runs on the loop's thread, but for what says otherwise."""

    def __init__(
        self,
        node: RankContext,
        context: EngineContext,
        ledgers: SampleLedgers,
        send: Callable[[str, msg.ReportData | msg.HandedOut], object],
        is_connected: Callable[[str], bool],
    ) -> None:
        """send, is_connected: to and of another node."""
        self._node, self._context, self._ledgers = node, context, ledgers
        self._send, self._is_connected = send, is_connected
        self._me = node.run_file.node
        self._rounds: dict[tuple[int, int], _Round] = {}
        """By attempt and steps; the last ones."""
        self._told: dict[str, dict[tuple[int, int], dict[int, list[Place]]]] = {}
        """What each node has told unasked, by attempt and steps; the last of it."""
        self._over: tuple[int, dict[int, str]] = (-1, {})
        """The last attempt that is over, and the node of each rank."""
        node.ingest.on_save = self._saved

    # Saves -------------------------------------------------------------------------------------------------------

    def _saved(self, message: CheckpointSaved, ranks: Sequence[int]) -> None:
        """A rank of the head's."""
        self._note(message.attempt, message.global_rank, seen_of(message))

    def saved_in_time(
        self, attempt: int, rank: int, own_steps: int, checkpoint: Checkpoint, ranks: Sequence[int]
    ) -> None:
        """As SampleLedgers has it, of any node."""
        if (seen := in_time_of(own_steps, checkpoint)) is not None:
            self._note(attempt, rank, seen)

    def written_from_memory(self, attempt: int, written: Written, ranks: Sequence[int]) -> None:
        """As SampleLedgers has it; of the attempt that refresh() was told of."""
        over, homes = self._over
        saves = saves_in(written)
        if over != attempt or not saves:
            return
        key = (attempt, saves[0].own_steps)
        one = _Round(homes, 0.0, set(), {rank: [] for rank in homes})
        for node, told in list(self._told.items()):
            one.merge(node, told.get(key, {}))
        self._read_own(key, one)
        saver = next((rank for rank, places in sorted(one.places.items()) if places), -1)
        for seen in saves:  # when a pass has ended, the ranks' nodes say by clocks of their own
            self._ledgers.note(attempt, saver, seen._replace(began_ns=0), one.places)

    def saved(self, node: str, message: msg.DataSaved) -> None:
        """A rank elsewhere has saved."""
        if self._homes(message.attempt).get(message.global_rank) != node:
            return
        seen = SaveSeen(message.own_steps, message.step, message.began_ns, message.size, message.mtime_ns)
        if (seen.mtime_ns, seen.size) not in self._ledgers.known_files(message.attempt):
            self._note(message.attempt, message.global_rank, seen, node, message.places)

    def answered(self, node: str, message: msg.DataReported) -> None:
        """What a node's ranks had been handed, as it is known there now."""
        key = (message.attempt, message.done)
        if (one := self._rounds.get(key)) is not None:
            one.merge(node, message.places)
            self._settle(key, one)
        if node in self._homes(message.attempt).values():
            told = self._told.setdefault(node, {})
            told.pop(key, None)
            told[key] = message.places
            if len(told) > MOST_TOLD:
                del told[next(iter(told))]

    def poll(self) -> None:
        """Once a second, and when a node's connection was closed: whoever is gone, or late, is not waited for."""
        for key, one in self._rounds.items():
            if one.waiting:
                is_late = time.monotonic() >= one.by_s
                one.waiting = set() if is_late else {node for node in one.waiting if self._is_connected(node)}
                self._settle(key, one)

    def _note(
        self,
        attempt: int,
        rank: int,
        seen: SaveSeen,
        node: str = "",
        places: Mapping[int, list[Place]] | None = None,
    ) -> None:
        """places: of node, which has told them with it."""
        homes = self._homes(attempt)
        if seen.own_steps < 0 or seen.mtime_ns <= 0 or rank not in homes or len(homes) > MAX_RANKS:
            return
        key = (attempt, seen.own_steps)
        one = self._rounds.get(key)
        asked: list[str] = []
        if one is None:
            waiting = {home for home in homes.values() if home != self._me and self._is_connected(home)}
            one = self._rounds[key] = _Round(homes, time.monotonic() + ANSWER_S, waiting, {n: [] for n in homes})
            asked = sorted(waiting - {node})
            self._read_own(key, one)
            for home, told in self._told.items():  # who is asked all the same tells more of it before the end
                if key in told:
                    one.merge(home, told[key])
            while len(self._rounds) > MOST_STEPS:
                oldest = next(iter(self._rounds))
                self._rounds[oldest].waiting = set()
                self._settle(oldest, self._rounds.pop(oldest))
        one.saves.append((rank, seen))
        if places is not None:
            one.merge(node, places)
        for home in asked:
            self._send(home, msg.ReportData(attempt=attempt, done=seen.own_steps))
        self._settle(key, one)

    def _settle(self, key: tuple[int, int], one: _Round) -> None:
        """Note what was saved, once all have answered; what they say after that counts when the attempt is over."""
        if not one.waiting:
            saves, one.saves = one.saves, []
            for rank, seen in saves:
                self._ledgers.note(key[0], rank, seen, one.places)

    def _read_own(self, key: tuple[int, int], one: _Round) -> None:
        own = [rank for rank, home in one.homes.items() if home == self._me]
        one.merge(self._me, read_places(self._node.sockets, key[0], own, key[1]))

    def _homes(self, attempt: int) -> dict[int, str]:
        """The node of each rank; empty: it is not the newest attempt."""
        state: State = self._context.engine.state
        if state.attempt is None or state.attempt.number != attempt:
            return {}
        return {number: known.rank.node for number, known in state.attempt.ranks.items()}

    # The next attempt --------------------------------------------------------------------------------------------

    def refresh(self, attempt: int, ranks: Sequence[int]) -> None:
        """An attempt is over; other nodes have told what they know."""
        self._over = (attempt, self._homes(attempt))
        known = self._ledgers.known_files(attempt)
        for rank in [number for number, home in self._over[1].items() if home == self._me]:
            for seen in read_saves(self._node.sockets, attempt, rank)[-MOST_STEPS:]:
                if (seen.mtime_ns, seen.size) not in known:
                    self._note(attempt, rank, seen)
        for key, one in self._rounds.items():
            if key[0] == attempt:
                self._read_own(key, one)
                self._settle(key, one)
                self._ledgers.improve(*key, one.places)

    def find(self, files: Sequence[str]) -> SaveAccount | None:
        """As SampleLedgers has it. For a thread that may wait."""
        return self._ledgers.find(files)

    def hand_on(self, action: ac.StartAttempt, account: SaveAccount | None, sizes: Mapping[str, int]) -> None:
        """Have the account where the ranks of an attempt that resumes will be, before they are started.

        sizes: ranks of each node.
        """
        nodes = [(node, sizes[node]) for node in action.nodes]
        world_size = sum(size for _, size in nodes)
        checkpoint = action.checkpoint
        fields = self._ledgers.make_fields(checkpoint, account, world_size=world_size) if checkpoint else None
        if fields is None:
            return
        first, ranks = 0, fields["ranks"]
        for node, size in nodes:
            own = {str(rank): ranks[str(rank)] for rank in range(first, first + size) if str(rank) in ranks}
            first += size
            data = encode_json({**fields, "ranks": own})
            if node == self._me:
                leave(self._node.sockets, action.attempt, data)
            else:
                self._send(node, msg.HandedOut(attempt=action.attempt, account=data))
