"""What tests share lies beside them: pytest loads a test module in its own way, and an import loads it once more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.project.purity import ROOT


def imported_names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of all that is imported outside functions; for `from a import b` that is a.b."""
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for child in ast.iter_child_nodes(node):
            yield from imported_names(child)


def imported_tests(source: str) -> list[str]:
    """`LINE: name` of each test module, or part of one, that a file imports outside functions."""
    names = imported_names(ast.parse(source))
    return [f"{line}: {name}" for line, name in names if re.match(r"tests\.(.*\.)?test_", name)]


def test_no_test_module_is_imported_by_another() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert files
    found = [f"{path.relative_to(ROOT)}:{text}" for path in files for text in imported_tests(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from tests.runs.test_signals import log_of", ["1: tests.runs.test_signals.log_of"]),
        ("import tests.runs.test_signals as signals", ["1: tests.runs.test_signals"]),
        ("\nfrom tests.runs import runs, test_signals", ["2: tests.runs.test_signals"]),
        ("if TYPE_CHECKING:\n    import tests.test_x", ["2: tests.test_x"]),
        ("from tests.runs.runs import check_replay", []),
        ("def f():\n    from tests.runs.test_signals import log_of", []),
        ("CODE = 'from tests.runs.test_signals import log_of'", []),
        ("from torch.testing import test_signals", []),
    ],
)
def test_what_is_such_an_import(source: str, found: list[str]) -> None:
    assert imported_tests(source) == found
