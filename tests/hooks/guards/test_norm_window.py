"""Steps whose gradient norm is far above those before: which, by rule, and that all ranks leave the same ones out."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.hooks.guards.norm_window import LEAST, NormWindow
from guardrun.hooks.wire.messages import HookFailed
from guardrun.hooks.wire.metrics_page import Flag, metrics_name
from guardrun.supervisor.collect.ranks.metrics import MetricsReader
from tests.hooks.bed import Bed, finish
from tests.support.keep_group import KEEP_GROUP
from tests.support.ports import free_ports

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "far_norms.py")


def far(norm: Callable[[int, random.Random], float], steps: int = 2000, sigmas: float = 6.0) -> list[int]:
    """The steps that are left out."""
    window, chance = NormWindow(sigmas), random.Random(7)
    return [step for step in range(steps) if window.is_far(norm(step, chance))]


def noisy(chance: random.Random) -> float:
    return chance.lognormvariate(0.0, 0.2)


@pytest.mark.parametrize("factor", [4, 50, 1e6])
def test_one_that_is_far_above_the_others(factor: float) -> None:
    assert far(lambda step, chance: noisy(chance) * (factor if step in (500, 900) else 1)) == [500, 900]


def test_norms_that_are_nearly_equal_have_no_spread() -> None:
    assert far(lambda step, chance: 1.0 + 1e-6 * chance.random() + (0.8 if step == 700 else 0.0)) == []
    assert far(lambda step, chance: 3.0 if step == 700 else 1.0) == [700]


@pytest.mark.parametrize(
    "norm",
    [
        pytest.param(lambda step, chance: noisy(chance), id="noise"),
        pytest.param(lambda step, chance: noisy(chance) * 10 * math.exp(-step / 50), id="they fall"),
        pytest.param(lambda step, chance: noisy(chance) * math.exp(step / 2000), id="they grow"),
        pytest.param(lambda step, chance: noisy(chance) * (1 + math.sin(step / 20) ** 2 * 3), id="they go up and down"),
        pytest.param(lambda step, chance: noisy(chance) * (5 if step % 4 == 0 else 1), id="every fourth is larger"),
        pytest.param(lambda step, chance: 0.0, id="none"),
        pytest.param(lambda step, chance: 1.0, id="clipped"),
        pytest.param(lambda step, chance: 1e3 if step < LEAST else 1.0, id="the first ones are huge"),
    ],
)
def test_norms_of_daily_life_are_left_alone(norm: Callable[[int, random.Random], float]) -> None:
    assert far(norm) == []


def test_heavy_tails_cost_a_step_now_and_then() -> None:
    assert len(far(lambda step, chance: chance.lognormvariate(0.0, 0.7))) <= 2000 / 200


@pytest.mark.parametrize("factor", [5, 14, 1000])
def test_a_level_that_is_another_for_good_is_soon_the_usual_one(factor: float) -> None:
    """Layers are unfrozen, or the loss is summed instead of averaged."""
    left_out = far(lambda step, chance: noisy(chance) * (factor if step >= 700 else 1))
    assert left_out == list(range(700, 700 + len(left_out))) and len(left_out) <= 5


def test_what_is_no_number_is_no_norm() -> None:
    window = NormWindow(6.0)
    assert not any(window.is_far(value) for value in [math.inf] * 200)
    assert not any(window.is_far(1.0) for _ in range(200)) and window.is_far(9.0)


def test_nobody_asked_for_it() -> None:
    assert far(lambda step, chance: 1e6 if step == 500 else 1.0, sigmas=0.0) == []


def test_all_ranks_leave_the_same_step_out() -> None:
    """By their own norm under DDP, by the clipped one where gradients are sharded; of DTensors none is known."""
    [port] = free_ports(1)
    with Bed(world_size=2) as bed:
        bed.numeric, bed.skip_sigmas = "skip", 6.0
        more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        done = [finish(rank) for rank in [bed.start([KEEP_GROUP, SCRIPT], rank=n, more=more) for n in range(2)]]
        assert [rank.returncode for rank in done] == [0, 0], done
        assert bed.hear_all(HookFailed) == []
        reader = MetricsReader(bed.sockets / metrics_name(0, 0))
        left_out = [record for record in reader.records() if record.flags & Flag.LEFT_OUT]
        reader.close()
    first, second = (json.loads(rank.stdout) for rank in done)
    assert {way: told["same"] for way, told in first.items()} == {
        "plain": [90], "clipped": [90], "fsdp1": [90], "fsdp2": []
    }  # fmt: skip
    assert {way: told["same"] for way, told in second.items()} == {way: told["same"] for way, told in first.items()}
    assert [first[way]["digest"] for way in ("plain", "clipped")] == [
        second[way]["digest"] for way in ("plain", "clipped")
    ]
    assert len(left_out) == 3 and all(record.flags & Flag.FAR for record in left_out)
