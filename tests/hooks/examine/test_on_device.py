"""What is asked of ranks, on a device whose backward pass has a thread of its own: modules, state, a profile."""

from __future__ import annotations

import json
from pathlib import Path

from guardrun.hooks.wire.messages import HookFailed
from tests.hooks.bed import Bed, finish

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "traced_device.py")


def test_losses_are_the_same_and_no_module_is_missed(tmp_path: Path) -> None:
    losses = {}
    for how in ("plain", "trace"):
        with Bed() as bed:
            done = finish(bed.start([SCRIPT, str(tmp_path), how], more={"EMU_SPIN": "0"}))
            assert done.returncode == 0, done
            assert bed.hear_all(HookFailed) == []
            losses[how] = done.stdout
    assert losses["trace"] == losses["plain"] != ""
    traced, state, profiled = json.loads((tmp_path / "told").read_text())
    assert traced["memory"] == "device" and len(traced["steps"]) == 2 and not traced["is_cut"]
    counts: dict[tuple[str, str], int] = {}
    for row in traced["rows"].split(";"):
        _, place, stage, _, allocated = map(int, row.split())
        assert 0 < allocated < 1 << 20, "of the device, where nothing else is"
        key = traced["names"][place], traced["stages"][stage]
        counts[key] = counts.get(key, 0) + 1
    names = ("", "block", "block.linear", "block.relu", "head")
    expected = {(name, stage): 2 for name in names for stage in ("forward", "backward")}
    assert counts == {**expected, ("block.linear", "recompute"): 2}, "it stops as soon as it has what it needs"
    assert [group["group"] for group in state["at_step"]["gradients"]] == ["head", "block.linear"]
    assert state["at_step"]["gradient_norm"] > 0 and state["models"][0]["devices"] == {"emu:0": 306}
    assert state["largest"][0]["device"] == "emu:0" and state["troubles"] == {}
    assert len(profiled["steps"]) == 2 and profiled["unrecorded"] == "emu" and profiled["why"] == ""
    events = [one for one in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if one["ph"] == "X"]
    threads = {one["name"]: one["tid"] for one in events}
    assert threads["AddmmBackward0"] != threads["guardrun.step#13"], "operators of the backward pass's own thread"
