"""Lines that come to hold more are named, what comes and goes is not, and nothing of it stays behind."""

from __future__ import annotations

import _tracemalloc
import tracemalloc
from collections.abc import Iterator

import pytest

from guardrun.hooks.examine import allocations as module
from guardrun.hooks.examine.allocations import Allocations
from guardrun.hooks.rank.rank import Rank

SECOND = 1_000_000_000
FUNCTIONS = ("start", "stop", "is_tracing")
PLAIN = {name: getattr(_tracemalloc, name) for name in FUNCTIONS}
kept: list[bytearray] = []


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Whatever happens, nothing is traced afterwards, and the script's functions are its own."""
    assert not tracemalloc.is_tracing()
    yield
    kept.clear()
    left = [name for name in FUNCTIONS for each in (tracemalloc, _tracemalloc) if getattr(each, name) != PLAIN[name]]
    is_tracing = PLAIN["is_tracing"]()
    for name, function in PLAIN.items():
        setattr(tracemalloc, name, function)
        setattr(_tracemalloc, name, function)
    PLAIN["stop"]()
    assert (left, is_tracing) == ([], False)


def leak() -> None:
    kept.append(bytearray(100_000))


def cache(second: int) -> None:
    """A sawtooth: fills, and is emptied, at other seconds than those at which it is looked at."""
    teeth.append(bytearray(200_000))
    if second % 3 == 0:
        teeth.clear()


teeth: list[bytearray] = []


def beats(examination: Allocations, seconds: int, *, leaks: bool = True) -> dict[str, object] | None:
    """A second at a time, as the hooks' thread calls it; the answer."""
    began_ns = examination.ends_ns - 12 * SECOND
    for second in range(1, seconds + 1):
        if leaks:
            leak()
        cache(second)
        told = examination.on_beat(began_ns + second * SECOND)
        if told is not None:
            return told
    return None


def test_the_line_that_leaks_is_named_and_a_cache_that_is_emptied_is_not(rank: Rank) -> None:
    examination = Allocations(rank, {"seconds": 12})
    assert PLAIN["is_tracing"]()
    told = beats(examination, 12)
    assert told is not None
    sites = told["sites"]
    assert isinstance(sites, list)
    first = sites[0]
    assert (first["file"], first["line"]) == (__file__, leak.__code__.co_firstlineno + 1)
    assert first["bytes"] == pytest.approx(6 * 100_000, rel=0.2) and first["objects"] >= 5
    assert first["stack"][1] == [__file__, beats.__code__.co_firstlineno + 5]
    assert cache.__code__.co_firstlineno + 2 not in [site["line"] for site in sites]
    assert not any("guardrun/hooks/examine/" in site["file"] for site in sites)
    assert (told["is_cut"], told["is_scripts"], told["is_from_start"], told["frames"]) == (False, False, False, 4)
    grown = told["grown"]
    assert isinstance(grown, dict)
    assert grown["python_bytes"] > 300_000 and grown["steps"] == 0


def test_where_nothing_is_kept_no_line_is_named(rank: Rank) -> None:
    told = beats(Allocations(rank, {"seconds": 12}), 12, leaks=False)
    assert told is not None and isinstance(told["sites"], list)
    assert [site for site in told["sites"] if site["bytes"] > 50_000] == []


def test_the_script_sees_nothing_of_it(rank: Rank) -> None:
    examination = Allocations(rank, {"seconds": 12})
    assert not tracemalloc.is_tracing()
    with pytest.raises(RuntimeError, match="must be tracing"):
        tracemalloc.take_snapshot()
    tracemalloc.stop()
    assert PLAIN["is_tracing"]()
    examination.end()
    examination.end()


def test_a_script_that_begins_to_trace_has_tracing_of_its_own(rank: Rank) -> None:
    """It goes on when ours would have ended, with as many frames as it wants, and what it keeps is there."""
    examination = Allocations(rank, {"seconds": 12})
    tracemalloc.start(7)
    try:
        assert tracemalloc.is_tracing() and tracemalloc.get_traceback_limit() == 7
        with pytest.raises(ValueError, match="the script has begun to trace"):
            examination.on_beat(examination.ends_ns)
        examination.end()
        leak()
        assert tracemalloc.is_tracing()
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)])
        assert sum(one.size for one in found.statistics("lineno")) > 100_000
    finally:
        tracemalloc.stop()
    assert not tracemalloc.is_tracing()


def test_functions_that_a_script_has_taken_meanwhile_go_on_to_work(rank: Rank) -> None:
    examination = Allocations(rank, {"seconds": 12})
    start, stop, is_tracing = tracemalloc.start, tracemalloc.stop, tracemalloc.is_tracing
    examination.end()
    start(3)
    assert is_tracing() and PLAIN["is_tracing"]() and tracemalloc.get_traceback_limit() == 3
    stop()
    assert not is_tracing() and not PLAIN["is_tracing"]()


def test_a_script_that_traces_by_itself_is_looked_at_and_left_as_it_is(rank: Rank) -> None:
    tracemalloc.start(2)
    try:
        leak()
        told = beats(Allocations(rank, {"seconds": 12}), 12)
        assert told is not None
        assert (told["is_scripts"], told["frames"]) == (True, 2)
        assert isinstance(told["sites"], list)
        assert told["sites"][0]["line"] == leak.__code__.co_firstlineno + 1
        assert tracemalloc.is_tracing() and tracemalloc.get_traceback_limit() == 2
        assert tracemalloc.get_traced_memory()[0] > 100_000
        stopped = Allocations(rank, {"seconds": 12})
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="has stopped that"):
        stopped.on_beat(stopped.ends_ns)


def test_too_many_allocations_end_it_early(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    examination = Allocations(rank, {"seconds": 12})
    pile = [[number] for number in range(20_000)]
    monkeypatch.setattr(module, "MAX_TABLES_BYTES", 100_000)
    told = examination.on_beat(examination.ends_ns - 11 * SECOND)
    assert told is not None and len(pile) == 20_000
    assert (told["is_cut"], told["is_from_start"]) == (True, True)
    assert isinstance(told["allocations"], int) and told["allocations"] > 20_000
    tracemalloc.start()
    try:
        more = [[number] for number in range(20_000)]
        with pytest.raises(ValueError, match="traces its allocations itself, and so many"):
            Allocations(rank, {"seconds": 12})
        assert len(more) == 20_000 and tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seconds", [0, -1, 9.9, 601, float("nan"), float("inf"), None])
def test_for_so_long_nothing_is_traced(rank: Rank, seconds: object) -> None:
    with pytest.raises(ValueError, match="seconds can be traced"):
        Allocations(rank, {"seconds": seconds})
