"""The list of promises and the tests of this folder are one and the same."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.torchrun.promises import PROMISES


def test_every_promise_has_its_test_and_every_test_its_promise() -> None:
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    functions = [
        node.name for path in files for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    tests = {name for name in functions if name.startswith("test_")}
    assert {name for names in PROMISES.values() for name in names} == tests
