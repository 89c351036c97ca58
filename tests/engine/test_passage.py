"""A hang goes through the engine as data: how far it walks, and in which order, as docs/architecture.md shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine.passage import Figures, Stop, Walk, figures, hang_of, record, together, verdict_of, walks_of
from tests.support.journals import read

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
SHOWN = "sleep"
"""The hang of the page: rank 1 is blocked in a call of its own, rank 0 waits for it."""
HANGS = (SHOWN, "all_hang", "gil", "skipped_all_reduce", "spin", "stop", "worker_sleep")

LOOK = Figures(places=22, stops=37, comes_back=16)
"""Of the look that leads to the verdict, at most: modules, …"""
LOOK_ROOMS = Figures(places=8, stops=18, comes_back=10)
"""… and rooms."""
WHOLE = Figures(places=40, stops=74, comes_back=35)
"""Of the whole hang: its suspicion, all looks, the verdict, the stop, the choice of a checkpoint, the start."""
WHOLE_ROOMS = Figures(places=10, stops=38, comes_back=29)


@cache
def hang(case: str) -> list[Walk]:
    """The walks of a recorded hang."""
    return hang_of(walks_of(read(case)))


def is_within(found: Figures, bound: Figures) -> bool:
    return all(one <= most for one, most in zip(found, bound, strict=True))


@pytest.mark.parametrize("case", HANGS)
def test_one_look_leads_to_the_verdict_by_a_short_way(case: str) -> None:
    walk = verdict_of(hang(case))
    assert walk.actions == ["Say", "WriteIncident", "StopAttempt"]
    assert is_within(figures(walk.modules), LOOK), walk.modules
    assert is_within(figures(walk.rooms), LOOK_ROOMS), walk.rooms


@pytest.mark.parametrize("case", HANGS)
def test_a_whole_hang_goes_a_short_way(case: str) -> None:
    walk = together(hang(case))
    assert {"TakeLook", "StopAttempt", "ChooseCheckpoint", "StartAttempt"} <= set(walk.actions)
    assert is_within(figures(walk.modules), WHOLE), walk.modules
    assert is_within(figures(walk.rooms), WHOLE_ROOMS), walk.rooms


# What the page says --------------------------------------------------------------------------------------


def section() -> str:
    return PAGE.read_text().partition("### A hang as data\n")[2].partition("\n## ")[0]


def test_the_page_shows_the_rooms_in_their_order() -> None:
    rows = re.findall(r"^\| `supervisor/engine/([\w/]+)\.py` \| `(?:\w+\.)?(\w+)` \|", section(), re.MULTILINE)
    assert rows == [(stop.module, stop.function) for stop in verdict_of(hang(SHOWN)).doors]


def test_the_page_tells_how_far_that_is() -> None:
    look, whole = verdict_of(hang(SHOWN)), together(hang(SHOWN))
    said = " ".join(section().split())
    assert words("This look passes", look) in said
    assert words("The whole hang, from suspicion to restart, passes", whole) in said


def words(subject: str, walk: Walk) -> str:
    modules, rooms = figures(walk.modules), figures(walk.rooms)
    return (
        f"{subject} {modules.places} modules in {modules.stops} stops, {modules.comes_back} of them at one where it "
        f"has been before; {rooms.places} rooms in {rooms.stops}."
    )


# How it is counted ---------------------------------------------------------------------------------------


def function(module: str, text: str, **known: Any) -> Callable[..., Any]:
    """A function f of a module that lies in the engine, if only by its name."""
    code = compile(text, f"/x/supervisor/engine/{module}.py", "exec")
    exec(code, known)
    return known["f"]  # type: ignore[no-any-return]


def names(stops: list[Stop]) -> list[str]:
    return [stop.module for stop in stops]


def test_calls_to_other_modules_count_and_coming_back_does_not() -> None:
    b = function("room/b", "def f(): return 1")
    a = function("room/a", "def f(): return b() + own()\ndef own(): return 2", b=b)
    assert names(record(function("engine", "def f(): return a() + 1", a=a))[1]) == ["room/a", "room/b"]


def test_a_loop_is_one_passage_and_what_it_calls_in_turn_is_several() -> None:
    b, c = (function(f"room/{name}", "def f(): return 1") for name in "bc")
    a = function("room/a", "def f():\n for _ in range(3):\n  b()\n  c()\n b()\n", b=b, c=c)
    walk = Walk("", [], record(function("engine", "def f(): return a()", a=a))[1])
    assert walk.modules == ["room/a", "room/b", "room/c", "room/b"]
    assert figures(walk.modules) == Figures(places=3, stops=4, comes_back=1)
    assert walk.rooms == ["room"]


def test_what_only_reads_a_value_is_no_place() -> None:
    read_value = function("model/run_view", "def f(): return 1")
    assert names(record(function("engine", "def f(): return read_value()", read_value=read_value))[1]) == []


def test_what_goes_a_way_again_adds_nothing() -> None:
    b = function("room/b", "def f(): return 1")
    a = function("room/a", "def f(): return b()", b=b)
    stops = record(a)[1]
    assert names(together([Walk("", [], stops), Walk("", [], record(a)[1])]).stops) == ["room/b"]
