"""The page of two runs: both curves, and text that stays text."""

from __future__ import annotations

import math
import re

import pytest

from guardrun.supervisor.report.comparison.comparison_page import MAX_POINTS, comparison_html, headline
from guardrun.supervisor.report.comparison.differences import compare_runs
from guardrun.supervisor.report.comparison.run_facts import Attempt, Curve, RunFacts, Trouble
from guardrun.supervisor.rundir.environment import FileDigest, Repository
from tests.report.comparison.facts import ENVIRONMENT, curve, recorded, run
from tests.report.pages import comparison_page
from tests.report.soundness import Hostile, check


def page_of(a: RunFacts, b: RunFacts) -> str:
    return comparison_html(a, b, compare_runs(a, b))


def test_everything_different() -> None:
    text = check(comparison_page())
    assert "Most telling: code (train.py)" in text and "could not be drawn" not in text
    assert "What differs, most telling first" in text and "Not known" in text


def test_where_curves_part_is_marked() -> None:
    page = page_of(run(), run("b", curves={"loss": curve(away=0.5, since=200)}))
    text = check(page)
    assert "not equal from 200 on" in text and re.search(r"apart from (19\d|20\d) on", text)
    assert len(re.findall(r'class="curve of-[ab]"/?>', page)) >= 2 + 2 * 2


def test_nothing_different_and_nothing_known() -> None:
    assert headline(compare_runs(run(), run("b"))).startswith(
        "Nothing that is known differs. Loss: equal to the last bit"
    )
    text = check(page_of(RunFacts(run_id="a", run_dir="/a"), RunFacts(run_id="b", run_dir="/b")))
    assert "Nothing that is known differs." in text and "Step by step" not in text and "could not be" not in text


def test_what_runs_say_is_text() -> None:
    bad = Hostile()
    changes = {"files": {bad(): FileDigest(why=bad())}, "packages": {bad(): bad()}, "variables": {bad(): bad()}}
    environments = recorded(
        **changes, flags={"f": bad()}, device=bad(), repository=Repository(folder="/", commit="b" * 40)
    )
    a = run(
        bad(),
        run_dir=bad(),
        node=bad(),
        cwd=bad(),
        user=bad(),
        script=["python", bad(), bad(), bad()],
        config={bad(): {bad(): bad()}},
        outcome=bad(),
        attempts=[Attempt(number=0, world_size=2, nodes=[bad()])],
        incidents=[Trouble(cause=bad(), step=1, action=bad())],
        environments=environments,
        missing=[bad()],
    )
    b = run("b", environments=recorded(flags={"f": "other"}, device="d", packages={"x": "1"}))
    assert ENVIRONMENT.device
    assert bad.missing_in(page_of(a, b)) == []


@pytest.mark.parametrize(
    "values",
    [[math.nan] * 50, [0.0] * 50, [-0.0, 5.0] * 25, [1.7e308, -1.7e308] * 25, [5e-324] * 50, [math.inf, 1.0], [3.0]],
)
def test_values_of_any_kind_are_drawn(values: list[float]) -> None:
    points = Curve([(step, value) for step, value in enumerate(values, start=1)])
    for a, b in ((points, curve()), (curve(), points), (points, points)):
        text = check(
            page_of(run(curves={"loss": a, "learning_rate": a}), run("b", curves={"loss": b, "learning_rate": b}))
        )
        assert "could not be drawn" not in text


def test_a_long_run_is_thinned_and_keeps_its_peaks() -> None:
    points = [(step, 1.0) for step in range(1, 100_001)]
    points[54_321] = (54_322, 2.0)
    page = page_of(run(curves={"loss": Curve(points)}), run("b", curves={}))
    [drawn] = re.findall(r'<polyline points="([^"]*)" class="curve of-a"', page)
    ys = {float(place.split(",")[1]) for place in drawn.split()}
    assert len(drawn.split()) <= MAX_POINTS and len(ys) == 2
