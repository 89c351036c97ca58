"""`guardctl profile`: what is asked of whom; tables, and the page, of what was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.rundir.profiles import (
    Breakdown,
    Operator,
    ProfileSummary,
    begin_profile,
    write_summary,
)
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import Ctl, FakeSupervisor

PARTS = {"matmul": 0.1, "other": 0.02, "communication": 0.06, "memory": 0.01, "idle": 0.01}
UGLY = "aten::mm\x1b[2J<script>alert(1)</script>"


def summary(number: int, rank: int, *, matmul_s: float = 0.1, **changes: Any) -> ProfileSummary:
    """Two steps of 100 ms."""
    operators = [
        Operator(name=UGLY, kind="matmul", calls=20, total_s=matmul_s),
        Operator(name="gloo:all_reduce", kind="communication", calls=6, total_s=0.08, under="c10d::allreduce_"),
    ]
    breakdown = Breakdown(
        where="host",
        window_s=0.2,
        parts={**PARTS, "matmul": matmul_s, "communication": 0.16 - matmul_s},
        communication_s=0.08,
        hidden_s=0.02,
        operators=operators,
        operators_left_out=3,
        events=900,
    )
    told: dict[str, Any] = {
        "node": "node-a", "attempt": 0, "at_s": 1.0, "steps": [(7, 0.1), (8, 0.1)], "wanted": 2, "plain_s": 0.05,
        "held_s": (0.001, 0.1, 0.05), "trace": f"profiles/{number:03d}/rank-{rank}.json.gz", "trace_folder": "/there",
        "trace_bytes": 2048,
        "breakdown": breakdown, **changes,
    }  # fmt: skip
    return ProfileSummary(number=number, rank=rank, **told)


def keep(run_dir: Path, *summaries: ProfileSummary) -> int:
    number = begin_profile(run_dir)
    for one in summaries:
        write_summary(run_dir, one)
    return number


@pytest.fixture
def profiled(live: FakeSupervisor, runs: Path) -> FakeSupervisor:
    run_dir = (runs / "latest").resolve()
    keep(run_dir, *(summary(1, rank, matmul_s=0.08) for rank in (0, 1, 2)))
    keep(
        run_dir,
        summary(2, 0),
        summary(2, 1, matmul_s=0.14, steps=[(7, 0.1)], wanted=5, why="the script forked"),
        summary(2, 2),
    )
    live.answers["examine"] = Answer(
        is_ok=True, data={"ranks": {"0": {}, "1": {}}, "missing": {"3": "it is stopped"}, "nodes": {}, "number": 2}
    )
    return live


def test_tables_and_page_of_this_request(ctl: Ctl, profiled: FakeSupervisor, runs: Path) -> None:
    out = ctl("profile")
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["Rank", "Step", "matmul", "other", "comm", "memory", "idle", "hidden"]
    assert ["0", "100", "ms", "50%", "10%", "30%", "5%", "5%", "25%"] in rows
    assert (
        "Rank 1 does more by itself than rank 0, the median one: " in out and "above all matrix multiplication" in out
    )
    assert "than in profile 1" in out or "as long as in profile 1" in out
    assert "Rank 0 on node-a: steps 7 to 8, 100 ms each (50 ms without the profiler)" in out
    assert "5 steps were asked for. It ended earlier: the script forked." in out
    assert (
        "trace: /there/profiles/002/rank-0.json.gz (2" in out and "Rank 3: it is stopped" in out and "\x1b" not in out
    )
    assert "profiling 5 steps, after two to begin with, for 60 s at most" in ctl.err
    (asked,) = profiled.asked
    assert asked.arguments.pop("who")
    arguments = {"steps": 5, "seconds": 60.0}
    assert (asked.verb, asked.arguments) == (
        "examine", {"ranks": "all", "what": "profile", "arguments": arguments, "seconds": 90.0}
    )  # fmt: skip
    page = (runs / "latest").resolve() / "profiles" / "002" / "profile.html"
    assert out.endswith(f"page: {page}\n")
    html = page.read_text()
    assert "&lt;script&gt;" in html and "<script" not in html and "Rank 3: it is stopped" in html
    assert "The slowest rank beside the median one" in html and "Since the profile before" in html


def test_as_json(ctl: Ctl, profiled: FakeSupervisor) -> None:
    data = ctl.json("profile", "--ranks", "0-3", "--steps", "2", "--seconds", "9")
    assert (data["number"], data["missing"], ctl.err) == (2, {"3": "it is stopped"}, "")
    assert profiled.asked[0].arguments["ranks"] == [0, 1, 2, 3]
    assert data["ranks"]["0"]["step_s"] == 0.1 and data["ranks"]["0"]["breakdown"]["hidden_s"] == 0.02
    assert (data["beside"]["slowest"], data["beside"]["median"], data["beside"]["is_slower"]) == (1, 0, True)
    assert (data["since"]["number"], data["since"]["ranks"]) == (1, [0, 1, 2])
    assert data["page"].endswith("profiles/002/profile.html")


def test_what_was_kept_is_shown_of_a_run_that_is_over(ctl: Ctl, recorded: Path, tmp_path: Path) -> None:
    ctl("profile", "show", code=1)
    assert "run vocab-1 has no profiles" in ctl.err
    keep(recorded, summary(1, 0))
    keep(recorded)  # one that came to nothing
    out = ctl("profile", "show")
    assert "Rank 0" in out and "page:" not in out and not list(recorded.glob("profiles/*/profile.html"))
    assert f"page: {tmp_path / 'p.html'}" in ctl("profile", "show", "--output", str(tmp_path / "p.html"))
    ctl("profile", "show", "--number", "2", code=1)
    assert "has no profile 2" in ctl.err
    ctl("profile", "show", "--ranks", "1", code=1)
    assert "none of these ranks: it is of rank 0" in ctl.err
    ctl("profile", code=1)
    assert "is over" in ctl.err and "profiling" not in ctl.err


def test_it_ends_earlier(ctl: Ctl, profiled: FakeSupervisor) -> None:
    profiled.answers["examine"] = Answer(
        is_ok=True, data={"ranks": {"1": {"stopped": "profile"}}, "missing": {}, "nodes": {}}
    )
    assert ctl("profile", "off").startswith("asked: ")
    assert profiled.asked[0].arguments["arguments"] == {"what": "profile"}
    profiled.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": {"1": "nothing"}, "nodes": {}})
    assert ctl("profile", "off", code=1) == "nothing is being profiled\n"


def test_where_nobody_answers(ctl: Ctl, profiled: FakeSupervisor) -> None:
    missing = {"1": "a step has not ended for 60 s"}
    profiled.answers["examine"] = Answer(is_ok=True, data={"ranks": {}, "missing": missing, "nodes": {}})
    assert ctl("profile", code=1) == "Rank 1: a step has not ended for 60 s\n"
    assert ctl.json("profile", code=1) == {"number": None, "ranks": {}, "missing": missing}


@pytest.mark.parametrize(
    "arguments",
    [["--steps", "0"], ["--steps", "21"], ["--seconds", "nan"], ["--seconds", "301"], ["--ranks", "x"], ["of"]],
)
def test_what_is_wrong(ctl: Ctl, profiled: FakeSupervisor, arguments: list[str]) -> None:
    ctl("profile", *arguments, code=2)
    assert profiled.asked == []
