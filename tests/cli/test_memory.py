"""`guardctl memory`: what ranks have told, in sentences and a table; and why others have not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from guardrun.supervisor.cli.views.memory_view import Allocations, describe
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import Ctl, FakeSupervisor

MIB = 1 << 20
GROWN = {
    "seconds": 38.0,
    "steps": 400,
    "resident_bytes": 420 * MIB,
    "shared_bytes": 0,
    "python_bytes": 400 * MIB,
    "tables_bytes": 2 * MIB,
}
TOLD: dict[str, Any] = {
    "traced_s": 60.0,
    "compared_s": 39.0,
    "is_from_start": False,
    "is_cut": False,
    "is_scripts": False,
    "frames": 4,
    "allocations": 12_000,
    "snapshots_s": 0.02,
    "grown": GROWN,
    "sites": [
        {
            "file": "/home/me/train.py",
            "line": 42,
            "bytes": 399 * MIB,
            "objects": 400,
            "function": "remember",
            "stack": [["/v/site-packages/metrics/cat.py", 7], ["/home/me/train.py", 42]],
        },
        {"file": "/home/me/\x1b[2Jx.py", "line": 1, "bytes": 2048, "objects": 3, "stack": [["/home/me/x.py", 1]]},
    ],
    "sites_left_out": 12,
}


def told(grown: dict[str, Any] | None = None, **changes: Any) -> Allocations:
    return msgspec.convert({**TOLD, "grown": {**GROWN, **(grown or {})}, **changes}, Allocations)


@pytest.fixture
def memory(live: FakeSupervisor) -> FakeSupervisor:
    data = {"ranks": {"1": TOLD}, "missing": {"3": "it is stopped"}, "nodes": {"1": "node-a", "3": "node-b"}}
    live.answers["examine"] = Answer(is_ok=True, data=data)
    return live


def test_lines_are_told_in_a_table(ctl: Ctl, memory: FakeSupervisor) -> None:
    out = ctl("memory", "3", "1", "1", "--seconds", "20")
    assert out.startswith("Rank 1 on node-a: its process came to hold 420 MB more in 38 s, 400 steps:")
    assert "Python's own allocations 400 MB more" in out and "does not see 18 MB more." in out
    row = next(line for line in out.splitlines() if "train.py" in line)
    assert row.split() == ["399", "MB", "+400", "remember", "(/home/me/train.py:42)", "metrics/cat.py:7"]
    assert "and 12 lines with less" in out and "Rank 3: it is stopped" in out
    assert "\x1b" not in out
    assert "tracing for 20 s: Python code runs slower there meanwhile" in ctl.err
    (asked,) = memory.asked
    assert asked.arguments.pop("who")
    expected = {"ranks": [1, 3], "what": "allocations", "arguments": {"seconds": 20.0}, "seconds": 20.0}
    assert (asked.verb, asked.arguments) == ("examine", expected)


def test_as_json(ctl: Ctl, memory: FakeSupervisor) -> None:
    data = ctl.json("memory", "1", "3")
    assert data["ranks"]["1"]["sites"][0]["line"] == 42 and data["missing"] == {"3": "it is stopped"}
    assert ctl.err == ""


def test_where_nobody_answers(ctl: Ctl, memory: FakeSupervisor) -> None:
    memory.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": {"1": "it is stopped"}, "nodes": {}})
    assert ctl("memory", "1", code=1) == "Rank 1: it is stopped\n"


@pytest.mark.parametrize("seconds", ["9", "601", "nan", "-5"])
def test_seconds_have_their_bounds(ctl: Ctl, memory: FakeSupervisor, seconds: str) -> None:
    ctl("memory", "1", f"--seconds={seconds}", code=2)
    assert "--seconds is from 10 to 600" in ctl.err and memory.asked == []


@pytest.mark.parametrize("answer", [{"1": {"sites": 3}}, {"x": TOLD}, {"1": {**TOLD, "sites": [3]}}])
def test_an_answer_of_another_version(ctl: Ctl, memory: FakeSupervisor, answer: dict[str, Any]) -> None:
    memory.answers["examine"] = Answer(is_ok=True, data={"ranks": answer})
    ctl("memory", "1", code=1)
    assert "not one of this version of guardrun" in ctl.err


def test_what_python_does_not_see_is_said_where_it_is_much() -> None:
    assert len(describe(told())) == 1
    first, second = describe(told({"python_bytes": 20 * MIB}))
    assert "does not see 398 MB more." in first
    assert "data of tensors on the host" in second and "memray attach --native" in second
    assert len(describe(told({"resident_bytes": 12 * MIB, "python_bytes": 0}))) == 1, "the C library's allocator"


def test_what_else_is_said() -> None:
    def others(grown: dict[str, Any] | None = None, **changes: Any) -> str:
        return " ".join(describe(told(grown, **changes))[1:])

    assert "14 s: 12,000 allocations had piled up" in others(is_cut=True, traced_s=14.2)
    assert "held up for 1.5 s in all" in others(snapshots_s=1.5)
    assert "no time for a comparison" in others(is_from_start=True)
    assert "No step was seen to end" in others({"steps": 0})
    assert "traces its allocations itself (frames: 4)" in others(is_scripts=True)
    assert "64 MB more of shared memory" in others({"shared_bytes": 64 * MIB})
    assert describe(told({"resident_bytes": -3 * MIB}))[0].startswith("its process came to hold 3 MB less in 38 s")


def test_tensors_are_told_with_what_the_allocator_says() -> None:
    kind = {"device": "cuda:0", "dtype": "torch.float32", "shape": [64, 1024], "tensors": 400, "bytes": 100 * MIB}
    loss = {"device": "cuda:0", "dtype": "torch.float32", "shape": [], "tensors": 400, "bytes": 1600}
    said = " ".join(describe(told({"device_bytes": 101 * MIB}, tensors=[kind, loss])))
    assert "The device's allocator has handed out 101 MB more. Tensors of which there are more: " in said
    assert "400 of float32[64, 1024] on cuda:0, 100 MB; 400 of float32[] on cuda:0, 1.6 KB." in said
    said = " ".join(describe(told({"device_bytes": 400 * MIB}, tensors=[loss])))
    assert "handed out 400 MB more. Tensors that Python knows are 1.6 KB of it: the rest is held by C++" in said
    said = " ".join(describe(told({"device_bytes": 400 * MIB}, tensors_trouble="RuntimeError: no shape")))
    assert "Python knows" not in said and "Tensors were not counted: RuntimeError: no shape." in said
    assert len(describe(told({"device_bytes": -400 * MIB}))) == 1


def test_no_line(ctl: Ctl, memory: FakeSupervisor) -> None:
    data = {"ranks": {"1": {**TOLD, "sites": []}}, "missing": {}, "nodes": {"1": "node-a"}}
    memory.answers["examine"] = Answer(is_ok=True, data=data)
    assert "No line of Python came to hold more." in ctl("memory", "1")


def test_of_a_run_that_is_over(ctl: Ctl, recorded: Path) -> None:
    ctl("memory", "1", code=1)
    assert "is over" in ctl.err and "tracing" not in ctl.err


SITE = {"file": "/home/ada/model.py", "line": 31, "function": "forward\x1b[2J", "bytes": 6 << 20, "blocks": 2}
SNAPSHOT = {
    "seconds": 10.1, "is_scripts": False, "held_s": 0.12, "reserved_bytes": 20 << 20, "allocated_bytes": 7 << 20,
    "largest_free_bytes": 13 << 20, "segments": 1, "unknown_bytes": 1 << 20, "unknown_blocks": 1, "held": [SITE],
    "held_left_out": 4, "asked": [{**SITE, "file": "", "function": ""}], "entries": 20_000, "is_full": True,
    "file": "snapshots/001-rank-1.pickle", "file_bytes": 2048, "file_trouble": "",
}  # fmt: skip


def test_what_the_device_s_allocator_holds(ctl: Ctl, live: FakeSupervisor) -> None:
    data = {"ranks": {"1": SNAPSHOT}, "missing": {"2": "it uses no device"}, "nodes": {"1": "node-a"}}
    live.answers["examine"] = Answer(is_ok=True, data=data)
    out = ctl("memory", "1", "2", "--device")
    assert live.asked[0].arguments["what"] == "snapshot" and live.asked[0].arguments["arguments"] == {"seconds": 10.0}
    assert "Rank 1 on node-a: the allocator holds 20 MB of the device in 1 segment, 7 MB of it handed out." in out
    assert "13 MB are free, the largest piece of that 13 MB." in out and "in 1 block were handed out before" in out
    assert "(/home/ada/model.py:31)" in out and "(not known)" in out and "room for 20,000 entries" in out
    assert "pytorch.org/memory_viz: snapshots/001-rank-1.pickle" in out and "\x1b" not in out
    assert out.endswith("Rank 2: it uses no device\n") and "some microseconds more" in ctl.err
    assert ctl.json("memory", "1", "--device")["ranks"]["1"] == SNAPSHOT
    ctl("memory", "1", "--device", "--seconds", "0.5", code=2)
    live.answers["examine"] = Answer(
        is_ok=True, data={**data, "ranks": {"1": {**SNAPSHOT, "file": "", "file_trouble": "No space left on device"}}}
    )
    assert "the snapshot was not kept: No space left on device" in ctl("memory", "1", "--device")
