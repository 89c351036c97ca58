"""Loops of a few functions, told from work by what many looks show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.observation.rank_activity import RankActivity, judge
from guardrun.supervisor.engine.observation.repeated_frames import CLOSED_STACKS, Loop, over_looks

STDLIB = "/usr/lib/python3.11"
Shown = Callable[[int], list[Frame]]


def event_loop(number: int) -> list[Frame]:
    """asyncio.run(poll()) with `await asyncio.sleep(0)`: always one of nine stacks."""
    inner = [Frame(name, f"{STDLIB}/asyncio/base_events.py", 1) for name in ("_run_once", "select", "_run", "sleep")]
    depth = number * 7 % 9
    users = [Frame("poll", "/home/me/train.py", 5)] if depth % 2 else []
    return [*[inner[n % 4] for n in range(depth)], *users, Frame("wait_for_flag", "/home/me/train.py", 9)]


def copy(number: int) -> list[Frame]:
    """An endless copy between two small methods of the user's own."""
    inner = (Frame("read", "/home/me/io.py", 3), Frame("write", "/home/me/io.py", 7))[number % 3 :][:1]
    return [*inner, Frame("copyfileobj", f"{STDLIB}/shutil.py", 1), Frame("copy_shard", "/home/me/train.py", 12)]


def tokenise(number: int) -> list[Frame]:
    """Work: ever other stacks."""
    return [Frame(f"rule_{number % 60}", "/home/me/text.py", number), Frame("tokenise", "/home/me/train.py", 9)]


def doings(
    shown: Shown, gaps_s: list[float], faults: float = 0.0, starved: frozenset[int] = frozenset()
) -> list[tuple[float, RankActivity]]:
    """What a rank is judged to do, look by look. starved: by number, looks before which it hardly got a core."""
    loops: dict[int, Loop] = {}
    told, at_s, before, number, cpu_s = [], 10.0, None, 0, 0.0
    for turn, gap_s in enumerate(gaps_s):
        at_s += gap_s
        cpu_s += gap_s * (0.07 if turn in starved else 1.0)
        stacks = [shown(number := number + 1) for _ in range(4)]
        thread = ThreadLook(tid=7, is_main=True, cpu_s=cpu_s, frames=stacks[0])
        process = ProcessLook(
            pid=7, state="R", cpu_s=cpu_s, faults=int(faults * at_s), threads=[thread], variety=stacks[1:]
        )
        look = RankLook(global_rank=3, at_s=at_s, process=process, heart_s=at_s)
        if before is not None:
            told.append((at_s, over_looks(loops, judge(before, look), before, look, 0.0).doing))
        before = look
    return told


GAPS_S = [0, 3, 8, 10, 14, 18, 23, 30, 39]
"""As the watch looks at somebody busy."""


@pytest.mark.parametrize("shown", [event_loop, copy])
def test_a_closed_set_of_stacks_is_a_loop(shown: Shown) -> None:
    told = doings(shown, GAPS_S)
    assert told[-1][1] is RankActivity.SPINNING
    assert [doing for at_s, doing in told if at_s < 45] == [RankActivity.BUSY] * sum(at_s < 45 for at_s, _ in told)


@pytest.mark.parametrize("shown", [event_loop, copy])
def test_one_that_hardly_gets_a_core_for_a_while_is_still_the_loop_that_it_was(shown: Shown) -> None:
    for number in range(1, len(GAPS_S)):
        assert doings(shown, GAPS_S, starved=frozenset({number}))[-1][1] is RankActivity.SPINNING, number


def test_new_stacks_are_work() -> None:
    assert {doing for _, doing in doings(tokenise, GAPS_S)} == {RankActivity.BUSY}


def test_a_closed_set_that_touches_memory_is_work() -> None:
    assert RankActivity.SPINNING not in {doing for _, doing in doings(copy, GAPS_S, faults=5000)}


def test_too_many_stacks_are_no_loop() -> None:
    def many(number: int) -> list[Frame]:
        return [Frame(f"f{number % (CLOSED_STACKS + 6)}", "/home/me/x.py", 1), Frame("g", "/home/me/train.py", 9)]

    assert doings(many, [0, 3, *[8] * 40])[-1][1] is RankActivity.BUSY


def rarely(number: int) -> list[Frame]:
    """A loop of two stacks that now and then does a third thing."""
    inner = "tidy" if number % 45 == 44 else ("read", "write")[number % 2]
    return [Frame(inner, "/home/me/io.py", 3), Frame("copy_shard", "/home/me/train.py", 12)]


def test_what_a_loop_does_rarely_does_not_make_it_work() -> None:
    told = doings(rarely, [0, 3, *[8] * 15])
    assert {doing for at_s, doing in told if at_s > 100} == {RankActivity.SPINNING}


@pytest.mark.parametrize("shown", [rarely, copy])
def test_a_loop_counts_from_its_beginning(shown: Shown) -> None:
    loop = seen(shown, [8.0 * n for n in range(1, 20)])
    assert loop.is_closed(152)
    assert loop.began_s(152) == 0.0


def test_work_before_a_loop_does_not_count() -> None:
    """One piece of work in a few functions, then another one: each has its own beginning."""

    def pieces(number: int) -> list[Frame]:
        inner = ("parse", "split") if number <= 40 else ("pack", "shift")
        return [Frame(inner[number % 2], "/home/me/text.py", 3), Frame("prepare", "/home/me/train.py", 12)]

    loop = seen(pieces, [8.0 * n for n in range(1, 20)])
    assert loop.began_s(152) == 88


def seen(shown: Shown, looked_s: list[float]) -> Loop:
    """A loop, after looks of four samples each."""
    loop = Loop(since_s=0.0)
    for n, at_s in enumerate(looked_s):
        stacks = {str(shown(4 * n + k)) for k in range(1, 5)}
        loop.look(stacks, stacks, at_s)
    return loop
