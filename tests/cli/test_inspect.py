"""`guardctl inspect`: one rank whole, and what the others have different."""

from __future__ import annotations

import pytest

from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import Ctl, FakeSupervisor
from tests.report.rank_states import STATE, changed


@pytest.fixture
def state(live: FakeSupervisor) -> FakeSupervisor:
    other = changed(optimizers__0__groups__0__lr=0.1, models__0__type="Net\x1b[2J")
    data = {"ranks": {"0": STATE, "1": other}, "missing": {"2": "it is stopped"}, "nodes": {"0": "node-a"}}
    live.answers["examine"] = Answer(is_ok=True, data=data)
    return live


def test_the_first_rank_and_what_differs(ctl: Ctl, state: FakeSupervisor) -> None:
    out = ctl("inspect")
    assert out.startswith("Rank 0 on node-a, at step 812\nOptimizers:\n  AdamW, group 0: ")
    assert "Rank 1" not in out and "In what 2 ranks differ:" in out
    assert "  optimizers.0.groups.0.lr: 0.0003 on rank 0; 0.1 on rank 1" in out
    assert out.endswith("Rank 2: it is stopped\n") and "\x1b" not in out
    (asked,) = state.asked
    assert asked.arguments.pop("who")
    expected = {"ranks": "all", "what": "state", "arguments": {"seconds": 10.0}, "seconds": 10.0}
    assert (asked.verb, asked.arguments) == ("examine", expected)


def test_ranks_that_are_named(ctl: Ctl, state: FakeSupervisor) -> None:
    out = ctl("inspect", "1", "--seconds", "3")
    assert out.startswith("Rank 1 on ?, at step 812") and "lr 0.1" in out
    assert state.asked[0].arguments["ranks"] == [1]


def test_as_json(ctl: Ctl, state: FakeSupervisor) -> None:
    data = ctl.json("inspect")
    assert data["ranks"]["0"]["optimizers"][0]["type"] == "AdamW"
    assert data["differences"]["optimizers.0.groups.0.lr"] == {"0.0003": [0], "0.1": [1]}


def test_what_is_wrong(ctl: Ctl, state: FakeSupervisor) -> None:
    ctl("inspect", "--seconds", "0", code=2)
    assert state.asked == []
    state.answers["examine"] = Answer(is_ok=True, data={"ranks": {"0": {"models": [3]}}})
    ctl("inspect", code=1)
    assert "not one of this version" in ctl.err
    state.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": {"0": "it is stopped"}})
    assert ctl("inspect", code=1) == "Rank 0: it is stopped\n"
