"""What becomes of figures: targets, tables, the documentation's page, the exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.docs import BEGIN, END, render, replace_between
from benchmarks.item import Bench, CannotMeasure, Effort, Figure, Target
from benchmarks.items.supervisor_cost import parse_pss_kb
from benchmarks.machine import describe, parse_cpu
from benchmarks.report import Failure, Report
from benchmarks.suite import ITEMS, main
from benchmarks.table import as_markdown, row
from tests.project.purity import ROOT


class Steady:
    """An item that yields what it was given."""

    def __init__(self, name: str, *figures: Figure) -> None:
        self.name = self.title = name
        self._figures = figures

    def measure(self, bench: Bench) -> Sequence[Figure]:
        bench.say("measuring")
        return self._figures


class Unmeasurable:
    """An item that cannot be measured, one way or another."""

    name = "unmeasurable"
    title = "Nothing"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def measure(self, bench: Bench) -> Sequence[Figure]:
        raise self._error


LATE = Figure("start", "s", (2.0, 2.5, 2.25), (1.5, 2.0, 2.25))
MISS = Figure("later", "s", (0.25, 0.5), target=Target(0.2))
HIT = Figure("throughput", "", (0.99, 1.0, 0.998), target=Target(0.995, is_floor=True))


def report_of(*figures: Figure) -> Report:
    return Report(machine=describe(), command="python benchmarks/run.py", figures=list(figures))


def test_a_figure_is_its_median_and_its_target_is_for_that() -> None:
    assert (LATE.value, LATE.baseline, LATE.ratio) == (2.25, 2.0, 1.125)
    assert MISS.is_missed
    assert not HIT.is_missed
    assert not LATE.is_missed


def test_a_row_has_medians_spread_ratio_target_and_mark() -> None:
    assert row(LATE) == ("start", "2.25 s (2.00 … 2.50)", "2.00 s (1.50 … 2.25)", "1.125", "–", "")
    assert row(MISS) == ("later", "0.375 s (0.250 … 0.500)", "–", "–", "≤ 0.2 s", "MISSED")
    assert row(HIT) == ("throughput", "0.998 (0.990 … 1.00)", "–", "–", "≥ 0.995", "met")


def test_markdown_marks_misses() -> None:
    lines = as_markdown(report_of(HIT, MISS)).splitlines()
    assert lines[0].startswith("| measurement | guardrun | torchrun |")
    assert lines[2].endswith("| met |")
    assert lines[3].endswith("| **MISSED** |")


@pytest.mark.parametrize(
    ("error", "words"), [(CannotMeasure("no ranks"), "no ranks"), (ZeroDivisionError("bug"), "ZeroDivisionError: bug")]
)
def test_what_cannot_be_measured_is_told_and_costs_only_itself(
    error: Exception, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "bench.json"
    assert main(["--json", str(path)], [Unmeasurable(error), Steady("steady", HIT)]) == 1
    said = capsys.readouterr()
    assert "throughput" in said.out
    assert "not measured: unmeasurable" in said.err
    assert words in said.err
    assert words in json.loads(path.read_text())["failures"][0]["reason"]


def test_what_an_item_could_measure_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    assert main(["--json", str(path)], [Unmeasurable(CannotMeasure("the rest", [HIT]))]) == 1
    assert [figure["name"] for figure in json.loads(path.read_text())["figures"]] == ["throughput"]


def test_a_miss_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    items = [Steady("one", MISS), Steady("two", HIT)]
    assert main(["--json", str(path), "--only", "one"], items) == 0
    assert "MISSED" in capsys.readouterr().out
    assert [figure["name"] for figure in json.loads(path.read_text())["figures"]] == ["later"]
    assert main(["--from-json", str(path)], items) == 0
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--quick"], ["--only", "one"]])
def test_the_documentation_takes_whole_runs_only(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--write-docs", *flags], [Steady("one", HIT)])
    assert ended.value.code == 2
    assert "whole run" in capsys.readouterr().err


def test_the_page_takes_the_table_and_keeps_the_rest() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    report = report_of(HIT)
    report.failures.append(Failure(item="hang", reason="why"))
    new = replace_between(page, render(report))
    assert "throughput | 0.998" in new
    assert "Not measured: hang." in new
    assert replace_between(new, "x").partition(BEGIN)[0] == page.partition(BEGIN)[0]
    assert replace_between(new, "x").partition(END)[2] == page.partition(END)[2]


@pytest.mark.parametrize("page", ["", BEGIN, f"{END} {BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_one_place_for_the_table_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        replace_between(page, "table")


def test_every_item_has_a_name_of_its_own() -> None:
    assert len({item.name for item in ITEMS}) == len(ITEMS)


def test_the_machine_is_described_without_naming_it() -> None:
    assert parse_cpu("processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\n") == "Some CPU @ 2 GHz"
    assert parse_cpu("")
    assert describe().cores >= 1


def test_pss_is_read_from_its_own_line() -> None:
    assert parse_pss_kb("Rss:  99 kB\nPss:  21 kB\nPss_Dirty:  1 kB\n") == 21
    with pytest.raises(ValueError, match="no Pss"):
        parse_pss_kb("Pss_Dirty: 1 kB\n")


def test_a_quick_run_does_less() -> None:
    quick, normal = (Bench(effort, lambda text: None) for effort in (Effort.QUICK, Effort.NORMAL))
    assert (quick.choose(1, 5), normal.choose(1, 5)) == (1, 5)
