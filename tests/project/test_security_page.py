"""docs/security.md names, for each of its sentences, a test that is there."""

from __future__ import annotations

import ast
import re

from tests.project.purity import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HELD = PAGE.partition("## What holds")[2].partition("\n## ")[0]
ROWS = [line for line in HELD.splitlines() if line.startswith("| ") and not line.startswith(("| sentence", "| daily"))]


def test_every_test_that_it_names_is_there() -> None:
    named = set(TEST.findall(PAGE))
    there = {file: ast.walk(ast.parse((ROOT / file).read_text())) for file, _ in named}
    known = {(file, node.name) for file, nodes in there.items() for node in nodes if isinstance(node, ast.FunctionDef)}
    assert named - known == set()


def test_each_sentence_names_one() -> None:
    assert len(ROWS) > 25
    assert [row for row in ROWS if not TEST.search(row.split(" | ")[-1])] == []
