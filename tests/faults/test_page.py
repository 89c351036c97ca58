"""The page has the rows of the table, no more and no fewer; and how a result is written there."""

from __future__ import annotations

from benchmarks.machine import describe
from tests.faults.page import BEGIN, END, PAGE, Result, figures, parse_rows, render
from tests.faults.row import PARTS
from tests.faults.table import SAMPLE, TABLE


def test_the_page_has_exactly_the_tables_rows() -> None:
    wanted = [(row.part, row.fault, row.moment, row.story.holds) for row in TABLE]
    assert parse_rows(PAGE.read_text()) == wanted, "make soak PYTEST_ARGS=--write-faults"


def test_each_row_has_a_name_and_a_part_and_each_part_has_rows() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE) >= 60
    assert {row.part for row in TABLE} == set(PARTS)
    assert not [row for row in TABLE if "|" in f"{row.fault}{row.moment}{row.story.holds}"]


def test_those_that_are_always_played_are_few_and_one_is_of_several_nodes() -> None:
    assert 4 <= len(SAMPLE) <= 8
    assert [row.real for row in SAMPLE if row.real] == [("netns",)]


def test_a_result_can_be_read_again() -> None:
    first, second, third = TABLE[:3]
    results = {
        first.name: Result(seen="the same | one", messages=1000, took_s=3.4),
        second.name: Result(failure="AssertionError: 15 was saved after 20"),
        third.name: Result(skipped="no mount"),
    }
    text = render(TABLE[:3], results, describe(), "pytest -n 4", 61.0)
    assert len(parse_rows(f"{BEGIN}\n{text}{END}")) == 3
    assert "the same \\| one | 3 | survived |" in text
    assert "15 was saved after 20 | 0 | **lost** |" in text
    assert "not played: no mount" in text
    assert "**3 faults, 1,000 hostile messages: survived 1, not played 1; lost: in 1, which say so.**" in text


def test_nothing_lost_is_said_so() -> None:
    assert figures([Result(), Result()]) == "**2 faults, 0 hostile messages: survived 2; lost: nothing.**"
