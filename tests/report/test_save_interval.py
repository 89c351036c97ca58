"""How often a run saved, and how often it should have."""

from __future__ import annotations

import random

import msgspec
import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.interval_save import best_interval_s
from guardrun.supervisor.report.run_page import run_html
from guardrun.supervisor.report.save_interval import (
    MAX_SAVES,
    SaveInterval,
    Saves,
    Terms,
    describe,
    judge,
)
from tests.report.pages import run_data

HOUR = 3600.0


def saved(every_s: float, until_s: float, took_s: float = 0.8, attempts: int = 1, ranks: int = 2) -> Saves:
    """Saves of each attempt, every so often; all ranks tell theirs, the last one slowest."""
    saves, step = Saves(), 0
    for attempt in range(attempts):
        at_s = attempt * until_s + every_s
        while at_s < (attempt + 1) * until_s:
            step += 1
            for rank in range(ranks):
                event = ev.CheckpointSaved(
                    attempt=attempt,
                    global_rank=rank,
                    path=f"/o/{step}",
                    step=step,
                    duration_s=took_s * (rank + 1) / ranks,
                )
                saves.feed(event, at_s)
            at_s += every_s
    return saves


def test_saves_that_come_too_seldom() -> None:
    found = judge(saved(HOUR, 5 * HOUR, attempts=3), Terms(2, 15 * HOUR, 58 * 60.0))
    assert found is not None and (found.save_s, found.interval_s, found.broken_off_s) == (0.8, HOUR, 7.5 * HOUR)
    assert found.cost_s == pytest.approx(58 * 60 + 12 * 0.8, abs=0.1)
    assert found.best_interval_s == pytest.approx((2 * 0.8 * 7.5 * HOUR) ** 0.5, rel=0.02)
    assert found.best_cost_s == pytest.approx(2 * 103.7 + 15 * HOUR / 207.4 * 0.8, rel=0.02)
    assert describe(found) == (
        "The run saved every 1 h; what was done again after restarts, and saves of 0.8 s each, took 58 min 10 s. A "
        "save every 3 min 27 s would have cost some 6 min 56 s, where training is broken off every 7 h 30 min on "
        "average."
    )


def test_saves_that_come_too_often() -> None:
    found = judge(saved(60.0, 10 * HOUR, took_s=20.0), Terms(1, 10 * HOUR, 30.0))
    assert found is not None and found.best_interval_s > 900 and found.best_cost_s < found.cost_s / 4


@pytest.mark.parametrize(
    ("saves", "terms"),
    [
        (Saves(), Terms(3, HOUR, 900.0)),
        (saved(HOUR, 1.5 * HOUR, attempts=3), Terms(2, 4.5 * HOUR, 3000.0)),  # one each: from what to what?
        (saved(HOUR, 9 * HOUR), Terms(0, 9 * HOUR, 0.0)),
        (saved(210.0, 5 * HOUR, attempts=3), Terms(2, 15 * HOUR, 380.0)),  # as it should have
        (saved(HOUR, 5 * HOUR, attempts=3), Terms(2, 15 * HOUR, 20.0)),  # luck: little was done again
        (saved(10.0, 100.0, took_s=0.01), Terms(1, 100.0, 9.0)),  # nothing that is worth a sentence
        (saved(180.0, 5 * HOUR, attempts=3), Terms(2, 15 * HOUR, 2000.0)),  # bad luck, at a good interval
    ],
)
def test_nothing_is_said(saves: Saves, terms: Terms) -> None:
    assert judge(saves, terms) is None


@pytest.mark.parametrize(("save_s", "broken_off_s"), [(0.8, 27_000.0), (30.0, 3600.0), (60.0, 600.0)])
def test_it_is_the_best_one_of_those_that_are_tried(save_s: float, broken_off_s: float) -> None:
    """A job whose failures come at random, played: no other interval costs much less."""

    def cost_s(interval_s: float) -> float:
        rng, spent_s, done_s = random.Random(7), 0.0, 0.0
        until_s = rng.expovariate(1 / broken_off_s)
        while done_s < 3000 * broken_off_s:
            if until_s > interval_s + save_s:
                until_s -= interval_s + save_s
                spent_s, done_s = spent_s + interval_s + save_s, done_s + interval_s
            else:
                spent_s, until_s = spent_s + until_s, rng.expovariate(1 / broken_off_s)
        return spent_s / done_s - 1

    best_s = best_interval_s(save_s, broken_off_s)
    assert all(cost_s(best_s) < 1.03 * cost_s(best_s * factor) for factor in (0.5, 0.7, 1.4, 2.0))


def test_a_save_that_takes_longer_than_training_lasts() -> None:
    assert best_interval_s(500.0, 100.0) == 100.0


def test_a_journal_that_has_no_end_is_bounded() -> None:
    saves = Saves()
    for step in range(MAX_SAVES + 5):
        saves.feed(ev.CheckpointSaved(attempt=0, global_rank=0, path="", step=step, duration_s=1.0), float(step))
    saves.feed(ev.CheckpointSaved(attempt=0, global_rank=0, path="", step=0, duration_s=-1.0), 0.0)
    saves.feed(ev.Ticked(), 0.0)
    assert len(saves.costs_s()) == MAX_SAVES and set(saves.costs_s()) == {1.0}


def test_the_page_has_the_sentence() -> None:
    found = SaveInterval(
        save_s=0.8, interval_s=3600.0, broken_off_s=27000.0, cost_s=3490.0, best_interval_s=207.0, best_cost_s=416.0
    )
    page = run_html(run_data(save_interval=msgspec.to_builtins(found)), None)
    assert describe(found) in " ".join(page.split())
    assert "The run saved every" not in run_html(run_data(), None)
