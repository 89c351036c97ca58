"""Which function a line is in, by indentation, is what the parser says."""

from __future__ import annotations

import ast
import os
import threading
from pathlib import Path

from guardrun.supervisor.collect.ranks import source_functions as module
from guardrun.supervisor.collect.ranks.source_functions import function_at, name_functions, read_lines

ROOT = Path(module.__file__).resolve().parents[3]


def by_parser(text: str) -> dict[int, str]:
    """Line of a statement → the innermost function around it."""
    found: dict[int, str] = {}

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                found[child.lineno] = name
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            walk(child, child.name if is_function else name)

    walk(ast.parse(text), "")
    return found


def test_it_agrees_with_the_parser_on_our_own_source() -> None:
    lines_seen = 0
    for path in sorted((ROOT / "hooks").rglob("*.py")):
        text = path.read_text()
        lines = text.splitlines()
        for number, name in by_parser(text).items():
            assert function_at(lines, number) == name, f"{path}:{number}"
            lines_seen += 1
    assert lines_seen > 3000


def test_lines_that_are_in_none() -> None:
    lines = ["x = [", "    1,", "]", "def f(", "    a,", "):", "\tif a:", "\t\tkeep(a)"]
    assert [function_at(lines, number) for number in (0, 1, 2, 4, 8, 9)] == ["", "", "", "", "f", ""]


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "train.py").write_text("async def fetch():\n    keep()\n")
    told = {
        "sites": [
            {"file": "train.py", "line": 2},
            {"file": str(fifo), "line": 1},
            {"file": "<string>", "line": 1},
            {"file": str(tmp_path), "line": 1},
            {"file": "gone.py", "line": 1},
        ]
    }
    thread = threading.Thread(target=name_functions, args=(told, str(tmp_path)), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert [site["function"] for site in told["sites"]] == ["fetch", "", "", "", ""]


def test_a_file_without_end_is_not_read_to_it() -> None:
    assert read_lines("/dev/zero") == []
