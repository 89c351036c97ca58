"""docs/security.md names, for each of its sentences, a test that is there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.project.purity import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HELD = PAGE.partition("## What holds")[2].partition("\n## ")[0]
ROWS = [line for line in HELD.splitlines() if line.startswith("| ") and not line.startswith(("| sentence", "| daily"))]


@pytest.mark.parametrize(("file", "name"), sorted(set(TEST.findall(PAGE))))
def test_a_test_that_it_names_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_sentence_names_one() -> None:
    assert len(ROWS) > 25
    assert [row for row in ROWS if not TEST.search(row.split(" | ")[-1])] == []
