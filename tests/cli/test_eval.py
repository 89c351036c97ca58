"""`guardctl eval`, `set` and `scale`: what is asked of whom, and what is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.cli.verbs import evaluate as module
from guardrun.supervisor.client.live_client import LiveRefused
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import Ctl, FakeSupervisor

TOLD: dict[str, Any] = {
    "outcome": "done", "where": "step", "why_beside": "", "step": 812, "frame": "main (train.py:16)", "ranks": 2,
    "result": "7", "result_left_out": 0, "output": "", "output_left_out": 0, "error": "", "took_s": 0.25,
    "changes": [], "assigned": [], "names_trouble": "",
}  # fmt: skip
Answers = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def answers(live: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Have rank 1 tell something; what is asked of it."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        module, "find_ranks", lambda run_id: {1: (Path("/sockets"), True), 2: (Path("/sockets"), False)}
    )

    def answer(refused: str = "", **changes: Any) -> list[dict[str, Any]]:
        def run_code(folder: Path, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            asked.append({**question, "folder": folder})
            return {"error": refused} if refused else {"told": {**TOLD, **changes}, "node": "node-a"}

        monkeypatch.setattr(module, "run_code", run_code)
        return asked

    return answer


def test_what_is_asked_and_told(ctl: Ctl, answers: Answers, tmp_path: Path) -> None:
    asked = answers()
    out = ctl("eval", "1", "3 + 4")
    where = "at the end of step 812, on the thread that trains, in main (train.py:16)"
    assert out == f"Rank 1 on node-a, {where}, 0.25 s\n7\n"
    assert asked[0].pop("who")
    assert asked[0] == {
        "rank": 1, "code": "3 + 4", "timeout_s": 10.0, "wait_s": 10.0, "only_at_step": False, "folder": Path("/sockets")
    }  # fmt: skip
    (tmp_path / "look.py").write_text("a = 1\na")
    ctl("eval", "1", "-f", str(tmp_path / "look.py"), "--timeout", "2", "--wait", "3", "--only-at-step")
    assert [asked[1][name] for name in ("code", "timeout_s", "wait_s", "only_at_step")] == ["a = 1\na", 2.0, 3.0, True]
    assert ctl.json("eval", "1", "1") == {"rank": 1, "node": "node-a", **TOLD}


def test_changes_of_one_rank_are_pointed_at(ctl: Ctl, answers: Answers) -> None:
    answers(changes=["learning rate × 2 (1 → 2) in SGD"], assigned=["model"])
    out = ctl("eval", "1", "1")
    assert "changed: learning rate × 2 (1 → 2) in SGD\non this rank only: guardctl set lr and scale lr" in out
    assert "assigned here only: model." in out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outcome": "raised", "error": "ValueError: x"}, "ValueError: x"),
        ({"outcome": "interrupted", "took_s": 10.5}, "it had not ended after 10.5 s (--timeout). Training goes on"),
        (
            {"outcome": "held"},
            "it can't be interrupted: it is in C code, or catches everything. It ends when it returns",
        ),
        ({"outcome": "held", "where": "beside", "why_beside": "no step"}, "training does not wait for it"),
    ],
)
def test_what_did_not_go_well(changes: dict[str, Any], said: str, ctl: Ctl, answers: Answers) -> None:
    answers(**changes)
    assert said in ctl("eval", "1", "1", code=1)


def test_what_code_answers_can_not_drive_the_terminal(ctl: Ctl, answers: Answers) -> None:
    wild = "\x1b[2J\x9b\u202e"
    answers(result=wild, output=wild, output_left_out=5, error=wild, frame=wild, changes=[wild], assigned=[wild])
    for out in (ctl("eval", "1", "1"), str(ctl("eval", "1", "1", "--json"))):
        assert not {"\x1b", "\x9b", "\u202e"} & set(out)


def test_what_is_not_asked(ctl: Ctl, answers: Answers, live: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers()
    for arguments, said in (
        (["1"], "either CODE or -f FILE"),
        (["1", "1", "-f", "a"], "either CODE or -f FILE"),
        (["1", "for"], "line 1: invalid syntax\n  for\n     ^"),
        (["1", "x" * 70_000], "code of up to 64 KB can be run"),
        (["1", "1", "--timeout", "61"], "between 0.1 and 60"),
    ):
        ctl("eval", *arguments, code=2)
        assert said in ctl.err
    ctl("eval", "1", "-f", "nowhere.py", code=1)
    assert "nowhere.py can't be read" in ctl.err
    ctl("eval", "2", "1", code=1)
    assert "was started with [live] eval = false" in ctl.err
    live.answers["status"] = Answer(is_ok=True, data={"ranks": [{"global_rank": 9, "node": "node-z"}]})
    ctl("eval", "9", "1", code=1)
    assert "rank 9 is on node-z" in ctl.err and "never over the network: there, guardctl eval 9" in ctl.err
    ctl("eval", "8", "1", code=1)
    assert "has no rank 8 on this node: ranks 1-2 are here" in ctl.err
    assert asked == []
    answers(refused="it is stopped")
    ctl("eval", "1", "1", code=1)
    assert "rank 1: it is stopped" in ctl.err

    def refuse(*_: object) -> None:
        raise LiveRefused("not there")

    monkeypatch.setattr(module, "run_code", refuse)
    ctl("eval", "1", "1", code=1)
    assert "rank 1: not there" in ctl.err
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    monkeypatch.setattr("guardrun.supervisor.cli.base.verb.is_anybodys", lambda: True)
    ctl("eval", "1", "1", code=1)
    assert "and code is run for its own user alone" in ctl.err


def rates(live: FakeSupervisor, missing: dict[str, str] | None = None, **ranks: dict[str, Any]) -> None:
    told = {"step": 306, "changes": ["learning rate × 0.1 (1 → 0.1) in SGD"], "schedulers": [], "lasting": True}
    data = {
        number.removeprefix("r"): {**told, "later": {"step": 307, "lr": [1.0]}, **one} for number, one in ranks.items()
    }
    live.answers["examine"] = Answer(is_ok=True, data={"ranks": data, "missing": missing or {}, "nodes": {}})


def test_rates_of_all_ranks(ctl: Ctl, live: FakeSupervisor) -> None:
    rates(live, r0={"schedulers": ["LambdaLR"]}, r1={})
    out = ctl("scale", "lr", "0.1")
    assert out.splitlines() == [
        "learning rate × 0.1 (1 → 0.1) in SGD, on 2 ranks, at the end of step 306",
        "the schedule (LambdaLR) goes on from there, scaled alike",
    ]
    (asked,) = live.asked
    arguments = {"mode": "scale", "value": 0.1, "optimizer": None, "group": None}
    assert (asked.arguments["what"], asked.arguments["ranks"], asked.arguments["arguments"]) == (
        "rate",
        "all",
        arguments,
    )
    ctl("set", "lr", "1e-4", "--optimizer", "0", "--group", "1")
    arguments = {"mode": "set", "value": 1e-4, "optimizer": 0, "group": 1}
    assert live.asked[1].arguments["arguments"] == arguments


def test_rates_that_did_not_last_or_were_not_changed(ctl: Ctl, live: FakeSupervisor) -> None:
    rates(live, r0={}, r1={"changes": ["other"], "lasting": False})
    out = ctl("scale", "lr", "0.1")
    assert (
        "other, on rank 1, at the end of step 306\nbut on rank 1 it is 1 at the end of step 307: something sets" in out
    )
    rates(live, missing={"0": "it was late"})
    assert ctl("scale", "lr", "0.1", code=1) == "nothing was changed, on no rank\nRank 0: it was late\n"
    rates(live, missing={"1": "its node did not answer"}, r0={"lasting": None, "changes": []})
    out = ctl("set", "lr", "0.1", code=1)
    assert (
        "these ranks did not answer" in out
        and "nothing: it was so before, on rank 0" in out
        and "not seen in time" in out
    )
    for arguments in (
        ["scale", "lr", "0"],
        ["set", "lr", "0"],
        ["set", "lr", "-1"],
        ["set", "lr", "nan"],
        ["set", "wd", "1"],
    ):
        ctl(*arguments, code=2)
