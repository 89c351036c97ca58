"""Which checkpoint answers a request to save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.wire.board import Board, Field, board_name, create_board
from guardrun.supervisor.collect.ranks.boards import open_boards
from guardrun.supervisor.engine.model.actions import AskCheckpoint, Spoiled
from guardrun.supervisor.engine.model.events import Checkpoint, CheckpointCompleted
from guardrun.supervisor.engine.recovery.voluntary.in_time import NO_STEP
from guardrun.supervisor.saving import final_save
from guardrun.supervisor.saving.final_save import FinalSave, _Wanted

ASKED_S = 1000.0


def saved(at_s: float, path: str = "/out/b") -> Checkpoint:
    return Checkpoint(path=path, step=9, written_wall_s=at_s)


@pytest.mark.parametrize(("late_s", "does"), [(0.5, True), (0.0, True), (-0.004, True), (-0.5, False)])
def test_one_that_the_signal_itself_set_off_counts(late_s: float, does: bool) -> None:
    """The kernel dates a file by its last tick, some milliseconds back."""
    found = saved(ASKED_S + late_s)
    assert _Wanted(1, ASKED_S, is_quiet=True).is_met_by(found) is does
    known = _Wanted(1, ASKED_S, before=found, is_before_known=True, is_quiet=True)
    assert known.is_met_by(found) is does, "it was there already when the newest was looked for"


def test_what_was_there_before_a_request_is_none() -> None:
    before = saved(ASKED_S + 0.2)
    wanted = _Wanted(1, ASKED_S, before=before, is_before_known=True)
    assert not wanted.is_met_by(before) and not wanted.is_met_by(None)
    assert wanted.is_met_by(saved(ASKED_S + 0.3))
    assert not wanted.is_met_by(saved(ASKED_S - 0.3, "/out/a")), "an older one is no answer"


def test_a_request_ends_with_its_time_and_with_its_attempt() -> None:
    wanted = _Wanted(1, ASKED_S, attempt=2, until_s=60.0)
    assert [wanted.is_over(2, now_s) for now_s in (10.0, 59.9, 60.0)] == [False, False, True]
    assert wanted.is_over(3, 10.0) and wanted.is_over(-1, 10.0)


def test_one_before_the_job_ends_holds_until_nothing_is_alive() -> None:
    wanted = _Wanted(1, ASKED_S)
    assert not any(wanted.is_over(attempt, now_s) for attempt in (-1, 0, 3) for now_s in (0.0, 1e9))


class Asked:
    """Two ranks that train, and have their script's save_with() called, where a request to save has come."""

    def __init__(self, folder: Path) -> None:
        for rank in (0, 1):
            create_board(str(folder / board_name(0, rank)))
        self.boards = [Board(str(folder / board_name(0, rank))) for rank in (0, 1)]
        self.readers = open_boards(folder, 0, (0, 1))
        self.ranks = {n: SimpleNamespace(step=102, progress=9) for n in (0, 1)}
        self.attempt = SimpleNamespace(number=0, may_save_in_time=True, ranks=self.ranks, in_time=None, first_step=100)
        self.events: list[tuple[int, int]] = []
        node: Any = SimpleNamespace(sampler=SimpleNamespace(boards=self.readers), feed=self.feed)
        engine = SimpleNamespace(state=SimpleNamespace(attempt=self.attempt))
        context: Any = SimpleNamespace(fleet_agreement=None, is_running=True, engine=engine)
        self.saving = FinalSave(node, context)
        self.saving._wanted = _Wanted(1, ASKED_S, is_before_known=True)

    def feed(self, event: Any) -> None:
        self.events.append((event.request, event.at_call))

    def close(self) -> None:
        for one in (*self.boards, *self.readers.values()):
            one.close()


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    one = Asked(tmp_path)
    yield one
    one.close()


def test_an_interval_asks_all_at_one_call_and_moves_no_call_that_is_still_to_come(asked: Asked) -> None:
    saving, boards = asked.saving, asked.boards
    saving._wanted = None

    def ask() -> list[int]:
        saving.by_interval()
        return [board[Field.CHECKPOINT_AT] for board in boards]

    assert ask() == [0, 0], "they never ask"
    boards[0].words[Field.CHECKS], boards[1].words[Field.CHECKS] = 5, 4
    [first, second] = ask()
    assert first == second > 5
    boards[0].words[Field.CHECKS] = first
    assert ask() == [first, first], "rank 1 has still to come to it"
    boards[1].words[Field.CHECKS] = first
    assert ask()[0] > first
    boards[0].words[Field.CHECKS] = boards[1].words[Field.CHECKS] = ask()[0]
    saving._wanted = _Wanted(1, ASKED_S)
    before = boards[0][Field.CHECKPOINT_AT]
    assert ask() == [before, before], "somebody else asks"


def test_that_ranks_never_ask_is_told_once(asked: Asked) -> None:
    asked.saving.try_asking()
    asked.saving.try_asking()
    assert asked.events == [(1, 0)]
    for board in asked.boards:
        board.words[Field.CHECKS] = 3
    asked.attempt.in_time = SimpleNamespace(is_pending=True)
    asked.saving.try_asking()
    assert asked.events == [(1, 0)], "one saves just now: two would write at once"
    asked.attempt.in_time = SimpleNamespace(is_pending=False)
    asked.saving.try_asking()
    assert len(asked.events) == 2 and asked.events[1][1] > 3, "they ask by now"


def test_ranks_that_have_hardly_begun_may_ask_yet(asked: Asked) -> None:
    """Batches and collectives come before the first step, which may take minutes."""
    asked.ranks[1].step = 101
    asked.saving.try_asking()
    asked.ranks[1].step, asked.attempt.first_step = 102, None
    asked.saving.try_asking()
    assert asked.events == []


def test_nobody_wants_to_know_where_there_is_no_other_way(asked: Asked) -> None:
    asked.attempt.may_save_in_time = False
    asked.saving.try_asking()
    assert asked.events == []


def test_what_a_save_leaves_behind_after_its_time_is_no_answer(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function may be at it yet, while training changes what it reads: the next start passes over that as well."""
    monkeypatch.setattr(final_save, "SETTLE_S", 0.0)
    monkeypatch.setattr(final_save, "SEEK_S", 0.0)
    saving, node, context = asked.saving, asked.saving._node, asked.saving._context
    late, ordinary = saved(ASKED_S + 40.0, "/out/jit"), saved(ASKED_S + 50.0, "/out/a")
    there, looks = [late], []
    doubt = Spoiled(attempt=0, from_step=NO_STEP, since_s=ASKED_S, until_s=2 * ASKED_S)

    def choose(spoiled: Sequence[Spoiled] = ()) -> SimpleNamespace:
        looks.append(list(spoiled))
        newest = [one for one in there if one is not late or not spoiled]
        return SimpleNamespace(checkpoint=newest[-1] if newest else None)

    def work_at_once(work: Any, *_: object) -> None:
        work()

    node.clock = SimpleNamespace(now=lambda: 0.0, wall_s=lambda at_s: at_s)  # type: ignore[misc,assignment]
    node.post, node.in_background = lambda call: call(), work_at_once  # type: ignore[method-assign,assignment]
    context.chooser, context.checkpoint_pool = SimpleNamespace(choose=choose), None  # type: ignore[misc,assignment]
    saving.asking.sample = lambda boards: None  # type: ignore[method-assign]
    asked.attempt.in_time = SimpleNamespace(is_pending=False)
    answers: list[Any] = []
    asked.feed = node.feed = lambda event: bool(answers.append(event))  # type: ignore[method-assign,assignment]
    saving.ask(AskCheckpoint(request=2, since_s=0.0), [doubt])
    for _ in range(3):
        saving.poll()
    assert [event for event in answers if isinstance(event, CheckpointCompleted)] == []
    there.append(ordinary)
    for _ in range(2):
        saving.poll()
    [answer] = [event for event in answers if isinstance(event, CheckpointCompleted)]
    assert answer == CheckpointCompleted(request=2, checkpoint=ordinary) and [doubt] in looks


def test_what_was_found_for_an_earlier_request_is_none_for_this_one(asked: Asked) -> None:
    asked.saving._node.post = lambda call: call()  # type: ignore[method-assign]
    choice: Any = SimpleNamespace(checkpoint=saved(ASKED_S + 1.0))
    for request, is_found in ((2, False), (1, True)):
        asked.saving.seen(choice, request)
        assert (asked.saving._found is not None) is is_found
