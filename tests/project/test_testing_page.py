"""docs/testing.md says truly where each real part is used, and each behaviour shown by the real thing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.project.purity import ROOT
from tests.support.real import PARTS

PAGE = ROOT / "docs" / "testing.md"
HELPERS = ROOT / "docs" / "testing-support.md"
FILE = re.compile(r"`(tests/[\w/]+\.py)(?:::\w+)?`")
MADE_UP = {"flux-capacitor"}
"""Named within a test's text (tests/project/test_real_parts.py)."""


def rows(heading: str, text: str) -> dict[str, list[str]]:
    """First cell → the files named in the row, of the table below a heading."""
    section = re.split(r"^#+ ", text.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0].strip("`"): FILE.findall(row[-1]) for row in cells[1:]}


def is_real(call: ast.AST) -> bool:
    return isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.real")


def strings(node: ast.AST) -> list[str]:
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def parts_in(source: str) -> Iterator[str]:
    """Parts of a file's `real` marks. Raises ValueError where it cannot be read from the source which these are."""
    if "mark.real" not in source:
        return
    tree = ast.parse(source)
    looped = [node for node in ast.walk(tree) if isinstance(node, ast.ListComp) and is_real(node.elt)]
    for loop in looped:
        yield from strings(loop.generators[0].iter)
    within = {id(loop.elt) for loop in looped}
    for node in ast.walk(tree):
        if is_real(node) and id(node) not in within:
            assert isinstance(node, ast.Call)
            if len(strings(node)) != len(node.args):
                raise ValueError(f"line {node.lineno}: {ast.unparse(node)}")
            yield from strings(node)


@pytest.fixture(scope="module")
def marked() -> dict[str, set[str]]:
    """Part → the files that have tests marked with it."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for part in parts_in(path.read_text()):
            found.setdefault(part, set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_file_that_the_page_names_is_there() -> None:
    named = FILE.findall(PAGE.read_text())
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_helper_has_a_line_on_its_page() -> None:
    support = ROOT / "tests" / "support"
    modules = sorted(str(path.relative_to(support)) for path in support.rglob("*.py") if path.name != "__init__.py")
    assert modules
    assert [name for name in modules if f"| [{name}](../tests/support/{name}) | " not in HELPERS.read_text()] == []


def test_every_part_has_a_row_and_every_row_a_part(marked: dict[str, set[str]]) -> None:
    assert set(rows("Real parts", PAGE.read_text())) == set(marked) - MADE_UP


def test_the_files_of_a_row_use_its_part(marked: dict[str, set[str]]) -> None:
    table = rows("Real parts", PAGE.read_text())
    assert {part for part, files in table.items() if not files} == set()
    wrong = {part: sorted(set(files) - marked.get(part, set())) for part, files in table.items()}
    assert {part: files for part, files in wrong.items() if files} == {}


def test_parts_that_can_be_probed_are_parts_that_are_used(marked: dict[str, set[str]]) -> None:
    """What tests/support/real.py knows to look for, and nobody asks for, is a real part that was lost."""
    assert set(PARTS) - set(marked) <= {"git", "gdb"}


def test_every_behaviour_is_shown_by_tests() -> None:
    table = rows("Behaviours", PAGE.read_text())
    assert len(table) >= 15
    assert [behaviour for behaviour, files in table.items() if not files] == []
    simulated = ("tests/engine/", "tests/sim/")
    assert [behaviour for behaviour, files in table.items() if all(name.startswith(simulated) for name in files)] == []


def test_every_way_of_starting_is_shown_by_a_test_that_starts_cold() -> None:
    section = PAGE.read_text().partition("### Started cold\n")[2].partition("\n## ")[0]
    shown = re.findall(r"\| `(tests/[\w/]+\.py)(?:::(\w+))?` \|$", section, re.MULTILINE)
    assert 15 <= len(shown) <= 20
    started_by_others = {
        "tests/slurm/test_job.py",
        "tests/agent/systemd/test_booted.py",
        "tests/project/test_packaging.py",
    }
    for file, test in shown:
        tree = ast.parse((ROOT / file).read_text())
        named = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test]
        assert named or not test, f"{file} has no {test}"
        marks = [ast.unparse(mark) for node in named for mark in node.decorator_list]
        marks += [ast.unparse(node.value) for node in tree.body if ast.unparse(node).startswith("pytestmark = ")]
        is_cold = file in started_by_others and ".programs" not in (ROOT / file).read_text()  # SlurmLab.programs
        is_cold |= any("with client.executed():" in ast.unparse(node) for node in named)
        assert "pytest.mark.cold" in marks or is_cold, f"{file}::{test} may be forked"


def test_every_mark_is_explained() -> None:
    marks = re.findall(r'^  "(\w+)(?:\(.*?\))?: ', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {"real", "cold", "slow"} <= set(marks)
    assert [mark for mark in marks if f"| `{mark}" not in PAGE.read_text()] == []


def test_parts_are_read_from_marks_of_every_form() -> None:
    source = """
pytestmark = [pytest.mark.real(part) for part in ("root", "mount")]
netns = pytest.mark.real("netns", "cc")
@pytest.mark.real("slurm")
def test_a(): pass
"""
    assert sorted(parts_in(source)) == ["cc", "mount", "netns", "root", "slurm"]
    with pytest.raises(ValueError, match="line 1"):
        list(parts_in("pytest.mark.real(PART)"))
