"""Each scene of docs/debugging.md is played by one test, and what it printed stands there."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.project.purity import ROOT
from tests.support import scenes


def played() -> Counter[str]:
    """The texts of all tests that name a scene of the page, and how often they stand there."""
    names = scenes.blocks().keys()
    found: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if path.name != "test_scenes.py" and ("scenes.check(" in text or "check_show(" in text):
            nodes = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            found.update(value for value in nodes if value in names)
    return found


def test_each_scene_is_played_and_shows_what_was_printed() -> None:
    blocks = scenes.blocks()
    assert len(blocks) >= 20
    assert played() == Counter(blocks.keys())
    assert [name for name, block in blocks.items() if len(block.splitlines()) < 2] == []
    assert scenes.PAGE.read_text().count("<!-- scene: ") == len(blocks), "one has not the form of the others"


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        ("waited 5 s in call (a.py:12)", "Rank 1 has waited 1.2 min in call (a.py:7)", []),
        ("of run 20261126-184830-slow-49ae", "of run 20270101-000000-slow-0a0b, and more", []),
        ("reached in 12 to 18 s", "reached in about 15 s", []),
        ("holds 69.1 GB more", "holds 900 MB\n  more", []),
        ("it waits for rank 1", "it waits for nobody", ["rank"]),
        ("twice twice", "twice", ["twice"]),
        ("waited 5 steps", "waited 5 s", ["0", "steps"]),
    ],
)
def test_numbers_may_differ_and_words_may_not(shown: str, printed: str, missing: list[str]) -> None:
    left = scenes.words_of(shown) - scenes.words_of(printed)
    assert sorted(left.elements())[-len(missing) :] == missing if missing else not left, left
