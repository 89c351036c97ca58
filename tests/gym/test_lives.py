"""The scripts of daily life: what each says of itself, and what counts as harm."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.gym import lives
from benchmarks.gym.decoys import DECOYS
from benchmarks.gym.lives import (
    Life,
    Outcome,
    Played,
    as_markdown,
    digest,
    harms,
    outcomes,
    play,
    read_life,
    read_lives,
)

LIFE = Life("judge", "Rank 0 asks a judge.")
THEIRS = Played(name="judge", launcher="torchrun", date="", seconds=1, status=0, files={"a.json": "1"})
OURS = msgspec.structs.replace(THEIRS, launcher="guardrun")


def test_there_are_eighty_decoys_and_more_and_each_says_what_it_is() -> None:
    found = read_lives()
    assert len(found) + len(DECOYS) >= 80
    assert all(life.what.endswith(".") and 1 <= life.ranks <= 4 for life in found)
    assert len({life.name for life in found} | {decoy.name for decoy in DECOYS}) == len(found) + len(DECOYS)


def test_none_knows_of_guardrun() -> None:
    assert [life.name for life in read_lives() if "guardrun" in life.path.read_text().lower()] == []


def test_what_a_script_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "gate.py"
    path.write_text('"""Ends badly.\n\nOn purpose."""\n\n# ranks: 4\n# needs: pandas, nosuch\n# status: 1\n')
    life = read_life(path)
    assert (life.name, life.what, life.ranks, life.needs, life.status) == (
        "gate",
        "Ends badly.",
        4,
        ("pandas", "nosuch"),
        1,
    )
    assert not life.is_able
    path.write_text("import os\n")
    with pytest.raises(ValueError, match=r"gate\.py: no docstring"):
        read_life(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"told": 3}, []),
        ({"status": 1}, ["exit status 1, not 0"]),
        ({"status": None}, ["exit status None, not 0"]),
        ({"restarts": 1}, ["restarted 1 times"]),
        ({"incidents": ["Rank 0 …"]}, ["incident: Rank 0 …"]),
        ({"files": {"a.json": "2"}}, ["other files: a.json"]),
        ({"files": {}}, ["other files: a.json"]),
        ({"left": ["process 7"]}, ["left running: process 7"]),
    ],
    ids=str,
)
def test_harm_is_told(changes: dict[str, object], words: list[str]) -> None:
    assert harms(LIFE, msgspec.structs.replace(OURS, **changes), THEIRS) == words


def test_a_script_that_ends_badly_may_be_tried_once_more() -> None:
    gate = Life("gate", "Ends badly.", status=1)
    ours = msgspec.structs.replace(OURS, status=3, restarts=1, incidents=["Rank 0 exited with code 3"] * 2)
    assert harms(gate, ours, msgspec.structs.replace(THEIRS, status=1)) == []
    again = msgspec.structs.replace(ours, restarts=2, incidents=["…"] * 3)
    assert harms(gate, again, None) == ["restarted 2 times", *["incident: …"] * 3]
    assert harms(gate, OURS, None) == ["exit status 0, not 1"]


def test_the_page_counts_each_harm() -> None:
    harmed = msgspec.structs.replace(OURS, restarts=1, took_s=3600.0)
    [outcome] = outcomes([LIFE], [THEIRS, OURS, harmed])
    assert isinstance(outcome, Outcome) and outcome.harms == ["restarted 1 times"]
    text = as_markdown([outcome])
    assert "scripts: 1; harmed: 1" in text and "2, 1.0 hours" in text and "| restarted 1 times |" in text


def test_files_count_by_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_text("x")
    before = digest(tmp_path)
    assert list(before) == ["deep/a"]
    (tmp_path / "deep" / "a").write_text("y")
    assert digest(tmp_path) != before


@pytest.mark.parametrize("launcher", lives.LAUNCHERS)
def test_one_is_played_for_real(tmp_path: Path, launcher: str) -> None:
    [life] = [one for one in read_lives() if one.name == "judge_polled_each_second"]
    seen = play(life, launcher, tmp_path / "run", seconds=2)
    assert (seen.status, seen.restarts, seen.incidents, seen.left) == (0, 0, [], []), seen.output_tail
    assert seen.files and not (tmp_path / "run").exists()
