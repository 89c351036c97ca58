"""Ranks are asked to save as often as that is worth it, and not otherwise."""

from __future__ import annotations

from itertools import pairwise

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.interval_save import (
    CEILING_S,
    FIRST_S,
    FLOOR_S,
    best_interval_s,
    next_interval_s,
)
from tests.engine.conftest import Told
from tests.engine.recovery.falling import numeric

HOUR = 3600.0


class Training:
    """Two ranks that step every two seconds, and save when they are asked."""

    def __init__(self, told: Told, save_s: float = 1.0, **settings: object) -> None:
        self.told, self.save_s, self.step = told, save_s, 10
        self.asked: list[float] = []
        told.running(**{"auto_interval": True, **settings})

    def until(self, end_s: float, *, saves: bool = True) -> list[float]:
        """When they were asked meanwhile."""
        before = len(self.asked)
        while self.told.now_s < end_s:
            self.step += 1
            at_s = self.told.now_s + 2.0
            due_s = self.told.engine.next_deadline_s()
            while due_s is not None and due_s <= at_s:
                self._heed(self.told.tick(), saves)
                due_s = self.told.engine.next_deadline_s()
            self._heed(self.told.step(self.step, at_s), saves)
        return self.asked[before:]

    def _heed(self, actions: list[ac.Action], saves: bool) -> None:
        if any(isinstance(one, ac.AskSave) for one in actions):
            self.asked.append(self.told.now_s)
            if saves:
                for rank in (0, 1):
                    self.save(rank)

    def save(self, rank: int = 0) -> None:
        saved = ev.CheckpointSaved(
            attempt=self.told.attempt, global_rank=rank, path=f"/out/{self.step}.pt", step=self.step,
            duration_s=self.save_s / (1 + rank),
        )  # fmt: skip
        self.told.tell(saved, self.told.now_s + self.save_s)


def test_the_first_after_a_minute_and_then_as_often_as_it_is_worth(told: Told) -> None:
    training = Training(told)
    asked = training.until(2000.0)
    assert asked[0] == pytest.approx(1.0 + FIRST_S, abs=0.1)
    best_s = best_interval_s(1.0, 12 * HOUR)
    assert 250 < best_s < 320
    gaps = [later - at_s for at_s, later in pairwise(asked)]
    assert gaps and all(abs(gap - best_s) < 10 for gap in gaps)


def test_by_default_nobody_is_asked(told: Told) -> None:
    assert Training(told, auto_interval=False).until(500.0) == []


def test_what_the_script_saves_by_itself_counts(told: Told) -> None:
    training = Training(told)
    for at_s in (50.0, 100.0, 200.0, 300.0):
        training.until(at_s)
        training.save()
    assert training.asked == []


def test_ranks_that_do_not_save_are_asked_no_more_often(told: Told) -> None:
    asked = Training(told).until(400.0, saves=False)
    assert len(asked) == 6


@pytest.mark.parametrize("why", ["held", "may not act", "numeric"])
def test_nobody_is_asked(why: str, told: Told) -> None:
    told = told.branch() if why == "numeric" else told  # its state is changed by hand, which no replay would do
    training = Training(told, act=why != "may not act")
    if why == "held":
        told.tell(ev.HoldSet(is_held=True, who="ada"), 5.0)
    elif why == "numeric":
        numeric(told)
    assert training.until(300.0) == []


def test_an_attempt_that_may_have_begun_anew_is_not_asked(told: Told) -> None:
    training = Training(told)
    told.crashed()
    told.chosen(ev.Checkpoint(path="/out/8.pt", step=8))
    told.started(1, at_s=told.now_s + 1.0)
    assert told.state.attempt is not None and not told.state.attempt.has_resumed
    assert training.until(told.now_s + 10.0) == []


@pytest.mark.parametrize(
    ("before_s", "save_s", "broken_off_s", "found_s"),
    [
        (0.0, 0.0, 60.0, FLOOR_S),
        (0.0, 1e-9, 1e9, CEILING_S),
        (0.0, 100.0, 12 * HOUR, best_interval_s(100.0, 12 * HOUR)),
        (0.0, 60.0, 600.0, 600.0),
        (0.0, 1000.0, 10.0, CEILING_S),
        (280.0, 1.0, 12 * HOUR, 280.0),
        (280.0, 1.0, HOUR, best_interval_s(1.0, HOUR)),
    ],
)
def test_its_bounds(before_s: float, save_s: float, broken_off_s: float, found_s: float) -> None:
    assert next_interval_s(before_s, save_s, broken_off_s) == pytest.approx(found_s)
