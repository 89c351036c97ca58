"""Steps with bad gradients are left out on a device; that waits for it, once a step, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guardrun.hooks.wire.messages import HookFailed, Noted
from tests.emu.ranks import LIGHT, SCRIPT
from tests.hooks.bed import Bed, finish

pytestmark = pytest.mark.real("g++")


@pytest.mark.parametrize("numeric", ["skip", "watch"])
def test_a_bad_step_is_left_out_on_a_device(library: Path, numeric: str) -> None:
    with Bed() as bed:
        bed.numeric = numeric
        done = finish(bed.start([str(SCRIPT.with_name("guarded.py"))], more=LIGHT))
        assert done.returncode == 0, done
        assert bed.hear_all(HookFailed) == [] and bed.hear_all(Noted) == []
    told = json.loads(done.stdout)
    is_skip = numeric == "skip"
    assert told["same"] == [False, is_skip, *[False] * 3]
    assert told["is_finite"] == is_skip
    bad = told["waits"].pop(2)
    assert told["waits"] == [int(is_skip)] * 5
    assert bad > 1 if is_skip else bad == 0, "each of its numbers is looked at, here on the host"
