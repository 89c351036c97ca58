"""`guardctl flame`: a table of lines, and drawings beside the run; and why there are none of other ranks."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.cli.views.flame_view import describe
from guardrun.supervisor.collect.ranks.flame_samples import pack
from guardrun.supervisor.report.flame_graph import Box, Sampled
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import Ctl, FakeSupervisor

STACKS = Counter(
    {
        "thread (7): MainThread;main (/home/me/\x1b[2Jtrain.py:5)": 60,
        "thread (7): MainThread;main (/home/me/\x1b[2Jtrain.py:5);forward (/v/site-packages/torch/nn/x.py:3)": 40,
        "thread (7): MainThread;rare (/home/me/train.py:1)": 0,
    }
)
TOLD: dict[str, Any] = {
    "pid": 7,
    "seconds": 2.0,
    "rate": 50,
    "native": False,
    "samples": 100,
    "errors": 0,
    "left_out": 0,
    "stacks": pack(STACKS)[0],
}


@pytest.fixture
def flame(live: FakeSupervisor) -> FakeSupervisor:
    data = {"ranks": {"1": TOLD}, "missing": {"3": "it is gone"}, "nodes": {"1": "node-a", "3": "node-b"}}
    live.answers["examine"] = Answer(is_ok=True, data=data)
    return live


def test_lines_are_told_and_drawn(ctl: Ctl, flame: FakeSupervisor) -> None:
    out = ctl("flame", "3", "1", "--seconds", "2")
    assert out.startswith("Rank 1 on node-a: the thread that trains was seen 100 times in 2 s.\n")
    assert "\x1b" not in out and "rare" not in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("60%", "40%"))]
    assert rows[0][:3] == ["60%", "100%", "main"]
    assert rows[1][:4] == ["40%", "40%", "forward", "(torch/nn/x.py:3)"] and rows[1][4] == "main"
    assert "Rank 3: it is gone" in out
    assert "watching for 2 s. It ends by itself" in ctl.err and "paused" not in ctl.err
    (drawing,) = (path for line in out.splitlines() if line.startswith("drawn: ") for path in [Path(line.split()[1])])
    assert drawing.parent.name == "flames" and "<svg" in drawing.read_text()
    assert drawing.with_suffix(".folded").read_text().startswith("thread (7): MainThread;main")
    (asked,) = flame.asked
    assert asked.arguments.pop("who")
    terms = {"rate": 50, "native": False}
    assert asked.arguments == {"ranks": [1, 3], "what": "flame", "arguments": terms, "seconds": 2.0}


def test_of_a_run_that_is_over(ctl: Ctl, recorded: Path) -> None:
    """Nothing is said to be done, and nothing is made in its folder."""
    ctl("flame", "1", code=1)
    assert "is over" in ctl.err and "watching" not in ctl.err and not Path(recorded, "flames").exists()


def test_native_is_slow_and_says_so(ctl: Ctl, flame: FakeSupervisor, tmp_path: Path) -> None:
    out = ctl("flame", "1", "--native", "--output", str(tmp_path / "mine"))
    assert "paused 10 times a second for it" in ctl.err
    assert flame.asked[0].arguments["arguments"] == {"rate": 10, "native": True}
    assert f"drawn: {tmp_path / 'mine' / 'rank-1-'}" in out and len(list((tmp_path / "mine").iterdir())) == 2


def test_as_json(ctl: Ctl, flame: FakeSupervisor) -> None:
    data = ctl.json("flame")
    assert flame.asked[0].arguments["ranks"] == [0]
    one = data["ranks"]["1"]
    assert one["lines"][0]["own"] == 0.6 and all(Path(path).is_file() for path in one["files"])
    assert data["missing"] == {"3": "it is gone"} and ctl.err == ""


def test_where_nobody_was_seen(ctl: Ctl, flame: FakeSupervisor) -> None:
    flame.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": {"1": "ptrace refused"}, "nodes": {}})
    assert ctl("flame", "1", code=1) == "Rank 1: ptrace refused\n"
    empty = {**TOLD, "stacks": pack(Counter())[0]}
    flame.answers["examine"] = Answer(is_ok=True, data={"ranks": {"1": empty}, "missing": {}, "nodes": {}})
    assert "no thread of it was seen in 2 s" in ctl("flame", "1")


@pytest.mark.parametrize("wrong", ["--seconds=0", "--seconds=301", "--seconds=nan", "--rate=0", "--rate=201"])
def test_bounds(ctl: Ctl, flame: FakeSupervisor, wrong: str) -> None:
    ctl("flame", "1", wrong, code=2)
    assert f"{wrong.split('=', maxsplit=1)[0]} is from 1 to" in ctl.err and flame.asked == []


@pytest.mark.parametrize("answer", [{"1": {"stacks": 3}}, {"x": TOLD}, {"1": {**TOLD, "stacks": "%"}}])
def test_an_answer_of_another_version(ctl: Ctl, flame: FakeSupervisor, answer: dict[str, Any]) -> None:
    flame.answers["examine"] = Answer(is_ok=True, data={"ranks": answer})
    ctl("flame", "1", code=1)
    assert "not one of this version of guardrun" in ctl.err


def test_nobody_is_asked_where_nothing_can_be_written(
    ctl: Ctl, flame: FakeSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    ctl("flame", "1", "--output", str(tmp_path / "file" / "x"), code=1)
    assert "can't be made" in ctl.err
    monkeypatch.setattr("guardrun.supervisor.cli.base.verb.is_anybodys", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    ctl("flame", "1", code=1)
    assert "say where with --output DIR" in ctl.err
    assert flame.asked == []


def said(count: int, bare: int = 0, **changes: Any) -> list[str]:
    """Of a thread that was seen so often, and so often without a frame."""
    thread = Box("thread", count, {"main": Box("main", count - bare)})
    return describe(Sampled(**{**TOLD, **changes}), thread)


def test_how_much_samples_can_say() -> None:
    assert said(100)[1:] == []
    assert said(49)[1:] == ["That is few: shares are rough (--seconds, --rate)."]
    (errors,) = said(100, errors=11)[1:]
    assert errors.startswith("11 samples could not be taken")
    assert said(100, left_out=4)[1:] == ["4 samples of rare stacks are left out."]


def test_samples_without_a_line_of_python_are_told() -> None:
    """Of a rank that ends meanwhile they are many, and the shares in the table would not add up."""
    assert said(242, bare=62)[1:] == ["In 26% of these it ran no Python code, as while its interpreter starts or ends."]
    assert said(1000, bare=4)[1:] == []


def test_a_rank_that_ends_at_once() -> None:
    assert said(2, seconds=0.04)[0] == "the thread that trains was seen 2 times in 0.04 s."
    assert said(1, seconds=0.02)[0] == "the thread that trains was seen once in 0.02 s."
