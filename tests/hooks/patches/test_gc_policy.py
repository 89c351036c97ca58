"""The policy for the collector: what it does in a rank, and when it keeps its hands off."""

from __future__ import annotations

import json

import pytest

from guardrun.hooks.wire.messages import HookFailed, Noted
from tests.hooks.bed import Bed

pytestmark = pytest.mark.cold
"""gc.get_freeze_count() and what is collected are what these are about."""

WATCH = """
import gc, json, os, sys, time
from guardrun.hooks.rank import rank; from guardrun.hooks import step
steps = []
now = 0
def note(phase, info):
    if phase == "start": steps.append((now, info["generation"]))
gc.callbacks.append(note)
def train(first, last):
    global now
    for now in range(first, last + 1):
        step()
def show(**more):
    print(json.dumps({"at": [s for s, g in steps if g and (s >= 5 or g == 2) and s],
                      "full": [s for s, g in steps if g == 2 and s], "enabled": gc.isenabled(),
                      "frozen": gc.get_freeze_count() > 0, **more}))
"""
POLICY = {"policy": "freeze", "every_steps": 10}


def run(bed: Bed, code: str) -> dict[str, object]:
    done = bed.run(WATCH + code)
    assert (done.returncode, done.stderr) == (0, "")
    shown: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return shown


def test_it_collects_after_the_warm_up_and_then_at_the_same_steps(bed: Bed) -> None:
    bed.gc = POLICY
    shown = run(bed, "train(1, 240); show()")
    assert shown["at"] == [5, *range(15, 241, 10)]
    assert shown["full"] == [5, 105, 205]
    assert (shown["enabled"], shown["frozen"]) == (False, True)
    assert "followed from step 5 on" in bed.wait_for(Noted).text


def test_it_is_off_by_default(bed: Bed) -> None:
    shown = run(bed, "train(1, 40); show()")
    assert (shown["full"], shown["enabled"], shown["frozen"]) == ([], True, False)
    assert bed.hear_all(Noted) == []


@pytest.mark.parametrize(
    ("takes_over", "why", "enabled"),
    [
        ("gc.disable()", "turned the collector off", False),
        ("gc.set_threshold(50_000, 20)", "thresholds of its own", True),
        ("gc.freeze()", "frozen objects itself", True),
        ("train(1, 2); gc.collect(); train(3, 3)", "collects by itself", True),
    ],
)
def test_a_script_that_handles_the_collector_is_left_alone(bed: Bed, takes_over: str, why: str, enabled: bool) -> None:
    bed.gc = POLICY
    shown = run(bed, f"{takes_over}; train(4, 40); show()")
    assert shown["enabled"] is enabled
    assert all(step < 4 for step in shown["full"])  # type: ignore[attr-defined]
    assert why in bed.wait_for(Noted).text
    assert len(bed.hear_all(Noted)) == 1


def test_collections_before_the_first_step_are_nobodys_policy(bed: Bed) -> None:
    bed.gc = POLICY
    assert run(bed, "gc.collect(); train(1, 20); show()")["at"] == [5, 15]


def test_a_script_that_turns_it_on_later_keeps_it(bed: Bed) -> None:
    bed.gc = POLICY
    shown = run(bed, "train(1, 16); gc.enable(); train(17, 60); show()")
    assert (shown["full"], shown["enabled"]) == ([5], True)
    assert ["followed" in note.text for note in bed.hear_all(Noted)] == [True, True]


def test_a_forked_child_and_the_end_are_as_without(bed: Bed) -> None:
    bed.gc = POLICY
    code = """
import atexit
train(1, 10)
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(w, json.dumps([gc.isenabled(), gc.get_freeze_count() > 0]).encode()); os._exit(0)
os.waitpid(pid, 0)
show(child=json.loads(os.read(r, 99)))
atexit.register(lambda: print(json.dumps({"enabled": gc.isenabled(), "frozen": gc.get_freeze_count()})))
"""
    done = bed.run(WATCH + code)
    assert (done.returncode, done.stderr) == (0, "")
    during, after = map(json.loads, done.stdout.splitlines())
    assert (during["enabled"], during["frozen"], during["child"]) == (False, True, [True, True])
    assert after == {"enabled": True, "frozen": 0}


def test_the_collector_is_lent_back_while_no_step_comes(bed: Bed) -> None:
    bed.gc = POLICY
    code = """
from guardrun.hooks.patches import garbage_collector as gcpolicy
gcpolicy.IDLE_NS = 300_000_000
train(1, 6)
until = time.monotonic() + 20
while not gc.isenabled() and time.monotonic() < until: time.sleep(0.05)
lent = gc.isenabled()
train(7, 7)
show(lent=lent)
"""
    shown = run(bed, code)
    assert (shown["lent"], shown["enabled"], shown["full"]) == (True, False, [5])
    assert len(bed.hear_all(Noted)) == 1


def test_garbage_that_piles_up_is_collected_early_and_the_common_steps_stay(bed: Bed) -> None:
    bed.gc = {**POLICY, "every_steps": 20}
    code = """
from guardrun.hooks.patches import garbage_collector as gcpolicy
gcpolicy.MAX_NEW_OBJECTS = 10_000
train(1, 7)
pile = [[] for _ in range(20_000)]
until = time.monotonic() + 20
policy = rank.active.gc_policy
while policy._due > 8 and time.monotonic() < until: time.sleep(0.05)
train(8, 50)
show()
"""
    assert run(bed, code)["at"] == [5, 8, 25, 45]


@pytest.mark.parametrize("wrong", [{"every_steps": 0}, {"every_steps": "x"}, {}])
def test_a_policy_that_makes_no_sense_is_said(bed: Bed, wrong: dict[str, object]) -> None:
    bed.gc = {"policy": "freeze", **wrong}
    assert run(bed, "train(1, 40); time.sleep(0.4); show()")["full"] == []
    assert bed.wait_for(HookFailed).hook == "gc policy"


def test_optimizer_steps_count_too_and_a_step_costs_little(bed: Bed) -> None:
    bed.gc = {"policy": "freeze", "every_steps": 1000}
    code = """
import statistics, torch
class Still(torch.optim.Optimizer):
    def step(self, closure=None): pass
still = Still([torch.zeros(1)], {})
for now in range(1, 1006): still.step()
policy = rank.active.gc_policy
assert policy is not None
def block():
    taken = []
    for _ in range(200):
        began = time.perf_counter_ns(); still.step(); taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken)
blocks = {True: [], False: []}
policy._due = 10**9
for _ in range(45):
    for on in (True, False):
        rank.active.gc_policy = policy if on else None
        blocks[on].append(block())
best = {on: min(taken) for on, taken in blocks.items()}  # of the quietest moments: others make a step cost anything
show(added=best[True] / best[False] - 1)  # 1.4 of 8.6 microseconds, on a slow machine
"""
    shown = run(bed, code)
    assert shown["at"] == [5, 1005]
    assert shown["added"] < 0.25  # type: ignore[operator]
