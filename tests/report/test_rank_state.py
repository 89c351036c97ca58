"""What ranks train with, in words; and in what they differ, but for what is each one's own."""

from __future__ import annotations

from typing import Any

import pytest

from guardrun.supervisor.report.rank_state import difference_lines, differences, sections
from tests.report.rank_states import STATE, changed


def test_a_rank_in_words() -> None:
    found = dict(sections(STATE))
    assert found["Optimizers"] == [
        "AdamW, group 0: parameters 6, numbers 3,362, lr 0.0003, betas (0.9, 0.95)",
        "and 2 groups more",
    ]
    first, bad, good, rest = found["Gradients"]
    assert "norm 1.25; 1 tensors have a NaN or an infinity" in first and "as AdamW has used them" in first
    assert bad == "  layers.3: 0  NaN or infinite: 1 of 2" and good == "  head: 1.25" and "7 groups" in rest
    assert found["Models"][0].startswith(
        "DistributedDataParallel: 3,362 parameters in 6 tensors, 3,282 of them trained"
    )
    assert found["Models"][-1] == "  DDP: static_graph no"
    assert found["Data loaders"] == ["Text: batch_size 4, sampler: type Shuffled, rank 0"]
    assert found["Mixed precision"] == ["GradScaler: enabled yes", "factors now: 65536.0"]
    assert found["Process groups"] == ["0: nccl, 16 ranks (0, 1, 2, …)"]
    assert found["Threads"] == ["1 of Python, 40 in all", "  MainThread: wait (x.py:3)"]
    assert found["Environment"] == ["NCCL_DEBUG=WARN", "RANK=0"] and "Not known" not in found


def test_what_was_not_read_is_said() -> None:
    found = dict(sections(changed(at_step={}, at_step_trouble="no step ended", troubles={"models": "KeyError"})))
    assert found["Gradients"] == ["not read: no step ended"] and found["Not known"] == ["models: KeyError"]
    assert dict(sections({"threads": {}})) == {"Gradients": ["not read: the last step has left none"]}


@pytest.mark.parametrize("odd", [{"optimizers": [3]}, {"models": [{}]}, {"at_step": {"gradients": 3}}])
def test_what_is_of_another_version(odd: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError, ValueError)):
        sections(odd)


def test_ranks_that_are_alike() -> None:
    other = changed(
        step=811,
        at_step__step=811,
        at_step__gradient_norm=9.0,
        models__0__devices={"cuda:1": 3362},
        loaders__0__sampler={"type": "Shuffled", "rank": 1},
        settings__initial_seed=4,
        environment={"NCCL_DEBUG": "WARN", "RANK": "1"},
    )
    assert differences({0: STATE, 1: other}) == {} and differences({0: STATE}) == {} and differences({}) == {}


def test_ranks_that_differ() -> None:
    other = changed(
        optimizers__0__groups__0__lr=0.1, environment={"RANK": "3"}, settings__torch="2.12.0", at_step__autocast=True
    )
    assert difference_lines({0: STATE, 1: STATE, 3: other}) == [
        "at_step.autocast: no on rank 0-1; yes on rank 3",
        "environment.NCCL_DEBUG: WARN on rank 0-1; - on rank 3",
        "optimizers.0.groups.0.lr: 0.0003 on rank 0-1; 0.1 on rank 3",
        "settings.torch: 2.13.0 on rank 0-1; 2.12.0 on rank 3",
    ]


def test_ranks_that_were_not_at_the_same_step() -> None:
    """A schedule gives the one that is a step further another rate: that is no fault, and both steps are told."""
    further = changed(step=813, optimizers__0__groups__0__lr=0.00029)
    behind = changed(step=811, optimizers__0__groups__0__lr=0.0003)
    assert difference_lines({0: STATE, 1: further, 2: behind}) == [
        "optimizers.0.groups.0.lr: 0.0003 on rank 0,2 (steps 811 to 812); 0.00029 on rank 1 (step 813)",
        "They were not all at the same step when they were read: what a schedule changes differs by that.",
    ]
    assert difference_lines({0: STATE, 1: changed(step=813)}) == []
    unknown = {**further, "step": None}
    assert difference_lines({0: STATE, 1: unknown})[0].endswith("0.0003 on rank 0 (step 812); 0.00029 on rank 1")
