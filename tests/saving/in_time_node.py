"""A node's supervisor on real boards, as far as saves before the ranks are ended use it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from guardrun.hooks.wire.board import Board, Field, board_name, create_board
from guardrun.supervisor.checkpoints.chooser import PartSaved, SeenInTime
from guardrun.supervisor.collect.ranks.boards import BoardReader
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.saving.in_time_save import InTimeNode, InTimeSaves

STEP = 12
SAVED = {"path": "/out/a.pt", "inode": 7, "wall_s": 5.0, "took_s": 0.4, "step": STEP, "own_steps": 4}
FOUND = SeenInTime(ev.Checkpoint(path="/out/a.pt", step=STEP), True)


class Node:
    """A node's supervisor, as far as is used of it. answers: what ranks say; None: nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boards = {n: self._board(n) for n in range(4)}
        self.answers: dict[int, dict[str, Any] | str | None] = {}
        self.asked: list[int] = []
        self.arguments: list[dict[str, Any]] = []
        self.events: list[ev.SavedInTime] = []
        self.looks: list[tuple[str, int]] = []
        self.found: SeenInTime | str = FOUND
        self.says: int | None = None
        self.samples = 0
        self.kept: list[int] = []
        self.used: list[tuple[object, ...]] = []
        """Attempt, rank, steps of the attempt and checkpoint of what is to be used."""
        self.pool = self.checkpoint_pool = ThreadPoolExecutor(1)
        readers = {n: BoardReader(str(folder / board_name(0, n))) for n in self.boards}
        self.sampler = SimpleNamespace(boards=readers)
        self.ingest = SimpleNamespace(attempt=0)
        self.clock = SimpleNamespace(now=lambda: 100.0)
        self.examinations = SimpleNamespace(ask_here=self._ask, sample=self._sample)
        self.chooser = SimpleNamespace(hurry=lambda: None, saw_in_time=self._judge, saw_parts_in_time=self._judge_parts)
        self.parts: list[PartSaved] = []

    def _board(self, number: int) -> Board:
        create_board(str(self.folder / board_name(0, number)))
        board = Board(str(self.folder / board_name(0, number)))
        board.words[Field.STEP], board.words[Field.PID] = STEP, os.getpid()
        return board

    def _ask(self, number: int, what: str, arguments: dict[str, Any], seconds: float, done: Any) -> None:
        assert what == "save" and seconds == 20.0
        self.asked.append(number)
        self.arguments.append(arguments)
        answer = self.answers.get(number, SAVED)
        if isinstance(answer, str):
            done({}, {number: answer})
        elif answer is not None:
            done({number: answer}, {})

    def _sample(self) -> None:
        self.samples += 1

    def _judge(self, path: str, step: int, *_: object, says: int | None) -> SeenInTime | str:
        self.looks.append((path, step))
        self.says = says
        return self.found

    def _judge_parts(self, parts: list[PartSaved], step: int, attempt: int) -> SeenInTime | str:
        self.parts = parts
        return self.found

    def shard(self, parts: int, ready: tuple[int, ...] = ()) -> None:
        """What the ranks train is sharded, on a mesh of as many replicas as there are ranks for."""
        for number, board in self.boards.items():
            board.words[Field.PART], board.words[Field.PARTS] = number % parts + 1, parts
            board.words[Field.BACKWARD_AFTER] = int(number in ready)

    def feed(self, event: Any) -> bool:
        self.events.append(event)
        return True

    def post(self, call: Any) -> None:
        call()

    def in_background(self, work: Any, instead: Any, pool: object = None) -> None:
        try:
            if (event := work()) is not None:
                self.feed(event)
        except Exception as error:
            self.feed(instead(str(error)))

    def save(
        self, ranks: tuple[int, ...] = (0, 1, 2, 3), alive: tuple[int, ...] = (0, 1, 2, 3), **more: Any
    ) -> ev.SavedInTime | None:
        order = ac.SaveInTime(request=3, attempt=0, until_s=120.0, global_ranks=list(ranks), alive=list(alive), **more)
        saves = InTimeSaves(
            cast(InTimeNode, self), cast(Any, self), lambda: self.kept.append(1), lambda *told: self.used.append(told)
        )
        saves.begin(order)
        assert len(self.events) <= 1
        return self.events[0] if self.events else None
