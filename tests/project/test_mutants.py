"""The table of mutations is about the source as it is, its tests are there, and what is planted is what is imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.core import CORE
from tests.mutants.edge import EDGE
from tests.mutants.mutation import ROOT, Mutation, StaleError, mutate
from tests.mutants.tree import Tree, clean_environment

MUTATIONS = (*CORE, *EDGE)
PURE = ("supervisor/engine/", "supervisor/health/")
TOTAL, BY_QUICK = 30, 25
"""So many at least; and those that a quick test catches."""
COMMAND_S = 60


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_mutation_is_about_the_source_as_it_is() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text()
        mutated = mutate(mutation, text)
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text)), f"{mutation.name}: another program"


def test_their_tests_are_there() -> None:
    assert [mutation.name for mutation in MUTATIONS if not mutation.caught_by] == []
    for test in (test for mutation in MUTATIONS for test in mutation.caught_by):
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in names_in(file), test


def test_the_table() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(names) >= TOTAL and len(set(names)) == len(names)
    assert sum(bool(mutation.quick) for mutation in MUTATIONS) >= BY_QUICK
    assert all(mutation.file.startswith(PURE) for mutation in CORE)
    assert not any(mutation.file.startswith(PURE) for mutation in EDGE)


def test_quick_tests_are_among_those_that_are_run_before_a_commit() -> None:
    wanted = sorted({test.partition("[")[0] for mutation in MUTATIONS for test in mutation.quick})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.support.quick", *wanted]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    selected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert [test for test in wanted if test not in selected] == [], done.stdout[-2000:]


def test_a_mutation_whose_place_is_gone_or_not_the_only_one_says_so() -> None:
    mutation = Mutation(name="x", file="a.py", before="b", after="c", breaks="")
    assert mutate(mutation, "abd") == "acd"
    for text in ("a", "bb"):
        with pytest.raises(StaleError, match=r"x: a\.py"):
            mutate(mutation, text)


def test_commands_of_a_copy_run_what_is_planted_in_it_and_nothing_else_does(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "copy")
    mutation = Mutation(
        name="planted",
        file="supervisor/cli/guardctl.py",
        before="argv = sys.argv[1:] if argv is None else argv",
        after="raise SystemExit(93)",
        breaks="",
    )
    before = (ROOT / mutation.file).read_bytes()

    def status() -> int:
        command: list[str | Path] = [tree.python.with_name("guardctl"), "--help"]
        return subprocess.run(
            command, env=clean_environment(), capture_output=True, timeout=COMMAND_S, check=False
        ).returncode

    assert status() == 0
    with tree.planted(mutation, 0):
        assert status() == 93
        assert (ROOT / mutation.file).read_bytes() == before
    assert status() == 0
