"""Asking ranks for one and the same call: beyond what any of them can have made by then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.hooks.wire.board import MAGIC, Board, Field, board_name, create_board
from guardrun.supervisor.collect.ranks.boards import BoardReader, open_boards
from guardrun.supervisor.saving.save_agreement import WAY_S, SaveAgreement, has_answered, next_call, read_counts


class Ranks:
    """Boards of two ranks."""

    def __init__(self, folder: Path) -> None:
        for rank in range(2):
            create_board(str(folder / board_name(0, rank)))
        self.boards: dict[int, BoardReader] = open_boards(folder, 0, range(2))
        self.own = [Board(str(folder / board_name(0, rank))) for rank in range(2)]
        for board in self.own:
            board.words[Field.MAGIC] = MAGIC

    def called(self, *counts: int) -> None:
        for board, count in zip(self.own, counts, strict=True):
            board.words[Field.CHECKS] = count

    def at(self) -> set[int]:
        return {board[Field.CHECKPOINT_AT] for board in self.own}


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    for board in made.own:
        board.close()
    for reader in made.boards.values():
        reader.close()


@pytest.mark.parametrize(
    ("counts", "pace", "way_s", "expected"),
    [
        ({0: 7, 1: 7}, 0.01, WAY_S, 8),  # a minute a step: the very next one
        ({0: 7, 1: 6}, 5.0, WAY_S, 10),
        ({0: 7, 1: 7}, 1000.0, WAY_S, 408),
        ({0: 7, 1: 7}, 0.01, 1.0, 9),  # from another node nobody notices that a rank was faster
        ({0: 7, 1: 5}, None, WAY_S, 14),
        ({0: 7, 1: 0}, 5.0, WAY_S, None),  # a rank that does not ask
        ({}, None, WAY_S, None),
    ],
)
def test_next_call(counts: dict[int, int], pace: float | None, way_s: float, expected: int | None) -> None:
    assert next_call(counts, pace, way_s) == expected


def test_all_ranks_are_told_one_number(ranks: Ranks) -> None:
    ranks.called(20, 21)
    assert SaveAgreement().ask(ranks.boards) == 42
    assert ranks.at() == {42}
    assert not has_answered(ranks.boards, 42)
    ranks.own[1].words[Field.CHECKPOINT_ACK] = 42
    assert has_answered(ranks.boards, 42)


def test_a_rank_that_was_faster_is_caught_up_with(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls between the reading of its board and the writing: everybody is given a later number."""
    ranks.called(20, 20)
    asking = SaveAgreement()
    write = BoardReader.write

    def overtake(reader: BoardReader, field: Field, value: int) -> None:
        if value == 40:
            ranks.called(40, 20)
        write(reader, field, value)

    monkeypatch.setattr(BoardReader, "write", overtake)
    at_call = asking.ask(ranks.boards)
    assert at_call is not None and at_call > 40
    assert ranks.at() == {at_call}


def test_ranks_without_a_board_do_not_ask(tmp_path: Path) -> None:
    boards = open_boards(tmp_path, 0, range(2))
    assert read_counts(boards) == {0: 0, 1: 0}
    assert SaveAgreement().ask(boards) is None
