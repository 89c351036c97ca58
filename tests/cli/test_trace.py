"""`guardctl trace`: what is asked of whom, and tables of what was kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import TRACED_ROWS, Ctl, FakeSupervisor, keep_trace


@pytest.fixture
def traced(live: FakeSupervisor, runs: Path) -> FakeSupervisor:
    run_dir = (runs / "latest").resolve()
    keep_trace(run_dir, 1, 0, TRACED_ROWS[:1])
    for rank in (0, 1):
        keep_trace(run_dir, 2, rank)
    live.answers["examine"] = Answer(
        is_ok=True, data={"ranks": {"0": {}, "1": {}}, "missing": {"3": "it is stopped"}, "nodes": {}, "number": 2}
    )
    return live


def test_tables_of_this_request(ctl: Ctl, traced: FakeSupervisor) -> None:
    out = ctl("trace", "on")
    assert out.startswith("Rank 0 on node-a: step 12, 100 ms each; 3 calls of modules.\n")
    assert "Rank 1 on node-a: " in out and out.endswith("Rank 3: it is stopped\n") and "\x1b" not in out
    row = next(line for line in out.splitlines() if line.startswith("(whole)"))
    assert row.split() == ["(whole)", "forward", "1", "50.000", "ms", "50.0", "ms", "50%", "+64", "MB"]
    assert "tracing 5 steps, for 60 s at most" in ctl.err and "ends by itself" in ctl.err
    (asked,) = traced.asked
    assert asked.arguments.pop("who")
    arguments = {"steps": 5, "seconds": 60.0}
    assert (asked.verb, asked.arguments) == (
        "examine", {"ranks": "all", "what": "modules", "arguments": arguments, "seconds": 60.0}
    )  # fmt: skip


def test_ranks_steps_and_lines_are_chosen(ctl: Ctl, traced: FakeSupervisor) -> None:
    out = ctl("trace", "on", "--ranks", "1,3-4", "--steps", "2", "--seconds", "9", "--top", "1")
    assert "Rank 0" not in out and "and 2 that took less (--top)" in out
    (asked,) = traced.asked
    assert asked.arguments["ranks"] == [1, 3, 4] and asked.arguments["arguments"] == {"steps": 2, "seconds": 9.0}


def test_one_step_is_not_steps(ctl: Ctl, traced: FakeSupervisor) -> None:
    ctl("trace", "on", "--steps", "1")
    assert "tracing 1 step, for 60 s at most" in ctl.err


def test_as_json(ctl: Ctl, traced: FakeSupervisor) -> None:
    data = ctl.json("trace", "on")
    assert (data["number"], data["missing"], ctl.err) == (2, {"3": "it is stopped"}, "")
    one = data["ranks"]["1"]
    assert "rows" not in one and one["modules"][0] == {
        "module": "(whole)",
        "stage": "forward",
        "count": 1,
        "mean_s": 0.05,
        "total_s": 0.05,
        "share": 0.5,
        "grew_bytes": 64 << 20,
    }


def test_what_was_kept_is_shown_of_a_run_that_is_over(ctl: Ctl, recorded: Path) -> None:
    ctl("trace", "show", code=1)
    assert "run vocab-1 has no traces" in ctl.err
    keep_trace(recorded, 1, 0, TRACED_ROWS[:1])
    keep_trace(recorded, 2, 1)
    out = ctl("trace", "show")
    assert "Rank 1" in out and "Rank 0" not in out
    assert ctl("trace", "show", "--ranks", "0,2", code=1) == ""
    assert "has none of these ranks: it is of rank 1" in ctl.err
    ctl("trace", "on", code=1)
    assert "is over" in ctl.err and "tracing" not in ctl.err


def test_it_ends_earlier(ctl: Ctl, traced: FakeSupervisor) -> None:
    traced.answers["examine"] = Answer(
        is_ok=True, data={"ranks": {"1": {"stopped": "modules"}}, "missing": {}, "nodes": {}}
    )
    assert ctl("trace", "off").startswith("asked: what was traced")
    (asked,) = traced.asked
    assert (asked.arguments["what"], asked.arguments["ranks"]) == ("stop", "all")
    assert asked.arguments["arguments"] == {"what": "modules"}
    traced.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": {"1": "nothing"}, "nodes": {}})
    assert ctl("trace", "off", code=1) == "nothing is being traced\n"


def test_where_nobody_answers(ctl: Ctl, traced: FakeSupervisor) -> None:
    traced.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": {"1": "it is stopped"}, "nodes": {}})
    assert ctl("trace", "on", code=1) == "Rank 1: it is stopped\n"


def test_many_ranks_of_which_there_is_nothing_and_those_that_were_not_asked(ctl: Ctl, traced: FakeSupervisor) -> None:
    missing = {**dict.fromkeys(map(str, range(63)), "it has not imported torch"), "63": "it is stopped"}
    traced.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": missing, "nodes": {}, "left_out": 936})
    assert ctl("trace", "on", code=1) == "Ranks 0-62: it has not imported torch\nRank 63: it is stopped\n"
    assert "936 more were not" in ctl.err


@pytest.mark.parametrize(
    "arguments",
    [["--steps", "0"], ["--steps", "1001"], ["--seconds", "nan"], ["--seconds", "601"], ["--ranks", "x"],
     ["--ranks", "3-1"], ["--ranks", "0-1-2"], ["--ranks", ""], ["--ranks", "-1"]],
)  # fmt: skip
def test_what_is_wrong(ctl: Ctl, traced: FakeSupervisor, arguments: list[str]) -> None:
    ctl("trace", "on", *arguments, code=2)
    assert traced.asked == []
