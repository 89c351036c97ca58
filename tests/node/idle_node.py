"""A node whose ranks do nothing, and whose loop a test turns."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from guardrun.hooks.wire.board import MAGIC, Board, Field, board_name, create_board
from guardrun.hooks.wire.examinations import answer_name, write_whole
from guardrun.supervisor.collect.ranks.boards import open_boards
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.node.rank_examinations import RankExaminations
from tests.support.waiting import wait_until

ANSWER = {"sites": [{"file": __file__, "line": 1}]}


class Node:
    """A node with two ranks of attempt 3, whose boards are real; both live in a process that does nothing."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.sockets = self.run_dir = folder
        self.calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.pool = ThreadPoolExecutor(2)
        self.run_file = SimpleNamespace(cwd=str(folder))
        ranks = {n: ev.Rank(global_rank=n, local_rank=n, pid=pid, node="node-a") for n in (4, 5)}
        self.ingest = SimpleNamespace(ranks=ranks, attempt=3)
        for number in ranks:
            create_board(str(folder / board_name(3, number)))
        self.sampler = SimpleNamespace(boards=open_boards(folder, 3, ranks))
        self.boards = {number: Board(str(folder / board_name(3, number))) for number in ranks}
        for board in self.boards.values():
            board.words[Field.MAGIC] = MAGIC
            board.words[Field.HEART_NS] = 1
        self.examinations = RankExaminations(cast(RankContext, self))
        self.told: list[tuple[dict[int, Any], dict[int, str]]] = []

    def close(self) -> None:
        self.pool.shutdown()
        for one in (*self.boards.values(), *self.sampler.boards.values()):
            one.close()

    def post(self, call: Callable[[], object]) -> None:
        self.calls.put(call)

    def turn(self) -> None:
        """A turn of the loop, with a sample."""
        while not self.calls.empty():
            self.calls.get()()
        self.examinations.sample()

    def ask(self, *ranks: int, seconds: float = 60.0) -> None:
        self.examinations.ask(
            ranks, "allocations", {"seconds": seconds}, seconds, lambda *told: self.told.append(cast(Any, told))
        )

    def wait(self, until: Callable[[], object], what: str) -> None:
        wait_until(lambda: (self.turn(), until())[1], 20, what)

    def asked(self, number: int) -> int:
        """The number of the request, once it is on the board."""
        self.wait(lambda: self.boards[number][Field.EXAMINE_ASKED], "a request")
        return self.boards[number][Field.EXAMINE_ASKED]

    def take(self, number: int, request: int) -> None:
        self.boards[number].words[Field.EXAMINE_TAKEN] = request

    def give(self, number: int, request: int, what: dict[str, Any] | None = None) -> None:
        """As the hooks would."""
        write_whole(str(self.sockets / answer_name(3, number)), {"number": request, "told": ANSWER, **(what or {})})
        self.boards[number].words[Field.EXAMINE_GIVEN] = request

    def wait_for_end(self) -> tuple[dict[int, Any], dict[int, str]]:
        self.wait(lambda: self.told, "an end")
        return self.told.pop()
