"""The garbage collector on the board, in messages, and by PYTHONGC_THRESHOLD."""

from __future__ import annotations

import time

import pytest

from guardrun.hooks.patches.garbage_collector import parse_threshold
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.messages import GcHeld, HookFailed
from tests.hooks.bed import Bed, finish

pytestmark = pytest.mark.cold
"""How many objects a process has, and how long they take to collect, is what these are about."""

SLOW = """
import gc, sys, time
from guardrun.hooks import step
class Slow:
    '''Cyclic garbage whose collection takes its time.'''
    def __init__(self, duration_s): self.me, self.duration_s = self, duration_s
    def __del__(self): time.sleep(self.duration_s)
def collect(duration_s):
    Slow(duration_s); gc.collect()
gc.collect()
"""


def test_a_collection_is_seen_while_it_runs(bed: Bed) -> None:
    code = """
import gc, os, sys, time
class Waits:
    def __init__(self): self.me = self
    def __del__(self):
        while not os.path.exists(sys.argv[1]): time.sleep(0.01)
Waits()
gc.collect()
gc.collect()
"""
    sign = bed.sockets / "seen"
    process = bed.start(["-c", code, str(sign)])
    since_ns = bed.wait_until(Field.GC_SINCE_NS, lambda since: since and bed.board()[Field.GC_GENERATION] == 2)
    assert process.poll() is None
    lasts_ns = time.monotonic_ns() - since_ns
    sign.touch()
    done = finish(process)
    assert (done.returncode, done.stderr) == (0, "")
    board = bed.board()
    assert board[Field.GC_SINCE_NS] == 0
    assert board[Field.GC_TOTAL_NS] >= lasts_ns > 0
    assert board[Field.GC_COUNT] >= 2


def test_collections_that_hold_up_a_step_are_told_whenever_they_have_grown_by_a_quarter(bed: Bed) -> None:
    code = SLOW + "step(7)\nfor _ in range(4): collect(0.4)\nstep(8); collect(0.4)\nstep(9); collect(1.1)\nstep(10)"
    finish(bed.start(["-c", code + "; time.sleep(0.2)"]))
    held = bed.hear_all(GcHeld)
    assert [message.step for message in held] == [7, 7, 9]
    assert 1.2 <= held[0].duration_s <= held[1].duration_s / 1.25
    assert all(message.lasted_s >= message.duration_s for message in held)
    assert held[0].generation == 2
    assert held[0].collected >= 3


def test_the_threshold_is_made_true(bed: Bed) -> None:
    done = bed.run("import gc; print(gc.get_threshold(), gc.isenabled())", PYTHONGC_THRESHOLD="5000,20")
    assert done.stdout.startswith("(5000, 20, ")
    assert done.stdout.endswith("True\n")


@pytest.mark.parametrize("text", ["many", "1,2,3,4", "-5", "1;2", ",", "99999999999999999999"])
def test_a_bad_threshold_is_said_and_changes_nothing(bed: Bed, text: str) -> None:
    failed, done = bed.run_until(HookFailed, "import gc; print(gc.get_threshold()[0])", PYTHONGC_THRESHOLD=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert failed.error.startswith(f'ValueError: PYTHONGC_THRESHOLD="{text}" is not')
    assert len(bed.hear_all(HookFailed)) == 1


@pytest.mark.parametrize(("text", "values"), [("700", (700,)), ("700,10,10", (700, 10, 10)), (" 0 , 5", (0, 5))])
def test_thresholds(text: str, values: tuple[int, ...]) -> None:
    assert parse_threshold(text) == values


def test_a_long_full_collection_tells_how_many_objects_there_are(bed: Bed) -> None:
    code = SLOW + "alive = [[] for _ in range(50_000)]\nstep(7); collect(1.1); step(8); collect(1.1)\n"
    code += "print(len(gc.get_objects()), gc.get_freeze_count(), gc.get_count()[2])"
    done = finish(bed.start(["-c", code + "; time.sleep(0.2)"]))
    tracked, frozen, _ = map(int, done.stdout.split())
    first, second = bed.hear_all(GcHeld)
    assert first.tracked == pytest.approx(tracked, rel=0.15)
    assert second.tracked == -1, "counted again within a minute"
    assert frozen == 0


def test_what_the_script_has_frozen_stays_frozen(bed: Bed) -> None:
    code = SLOW + "gc.freeze(); before = gc.get_freeze_count(); step(7); collect(1.1)\n"
    done = finish(bed.start(["-c", code + "print(gc.get_freeze_count() == before); time.sleep(0.2)"]))
    assert done.stdout == "True\n"
    assert bed.wait_for(GcHeld).tracked == -1
