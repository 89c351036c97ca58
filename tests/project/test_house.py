"""The house: imports of folders go one way, and one place acts on verdicts."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.project.purity import FOLDERS, ROOT

ACTS = frozenset({"Incident", "Isolate", "ReadExits", "Say", "StopAttempt", "TakeLook"})
"""What follows from a verdict."""


def read_modules(root: Path) -> dict[str, Path]:
    """Modules of the product by their dotted names."""
    found = {}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.py"):
            name = "guardrun." + ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports_of(tree: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    """Modules of the product that a file imports anywhere, for types alone, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in known:
                name = name.rpartition(".")[0]  # noqa: PLW2901
            if name:
                yield name


def folder_graph(root: Path) -> dict[str, set[str]]:
    """Folder → the other folders that its files import from."""
    modules = read_modules(root)
    folders = {name: str(path.parent.relative_to(root)) for name, path in modules.items()}
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for other in imports_of(ast.parse(path.read_text()), modules):
            if folders[other] != folders[name]:
                graph[folders[name]].add(folders[other])
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Sets of folders that import each other, directly or by way of others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        stack = list(graph[start])
        while stack:
            one = stack.pop()
            if one not in seen:
                seen.add(one)
                stack += graph.get(one, ())
        reached[start] = seen
    found = {frozenset(b for b in seen if a in reached.get(b, ())) for a, seen in reached.items() if a in seen}
    return sorted(found, key=sorted)


def test_folders_import_one_way() -> None:
    assert circles(folder_graph(ROOT)) == []


def test_a_circle_for_types_alone_is_found(tmp_path: Path) -> None:
    for name, text in (
        ("supervisor/a/x.py", "from guardrun.supervisor.b.y import Y\n"),
        ("supervisor/b/y.py", "from guardrun.supervisor.c import z\n"),
        ("supervisor/c/z.py", "if TYPE_CHECKING:\n    from guardrun.supervisor.a.x import X\n"),
        ("hooks/h.py", "from guardrun.hooks import h\nimport guardrun.supervisor.a.x\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert circles(folder_graph(tmp_path)) == [frozenset({"supervisor/a", "supervisor/b", "supervisor/c"})]


def acting(source: str) -> set[str]:
    """What of ACTS a file calls: by its name, as an attribute of its module, or by another name that it is given."""
    nodes = list(ast.walk(ast.parse(source)))
    imports = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = {alias.asname or alias.name: alias.name for alias in imports}
    called = set()
    for func in (node.func for node in nodes if isinstance(node, ast.Call)):
        if isinstance(func, ast.Name):
            called.add(names.get(func.id, func.id))
        elif isinstance(func, ast.Attribute):
            called.add(func.attr)
    return called & ACTS


@pytest.mark.parametrize("source", ["Say(1)", "ac.Say(1)", "from a import Say as S\nS(1)"])
def test_whoever_acts_by_another_name_is_found(source: str) -> None:
    assert acting(source) == {"Say"}


LARGE = 500
"""Lines of a file: most have no third of it."""


def test_a_file_that_is_much_larger_than_others_says_why() -> None:
    for path in read_modules(ROOT).values():
        source = path.read_text()
        if source.count("\n") > LARGE:
            assert re.search(r"^One (module|class)\b", ast.get_docstring(ast.parse(source)) or "", re.MULTILINE), path


def test_one_place_acts_on_verdicts() -> None:
    engine = ROOT / "supervisor" / "engine"
    found = {str(path.relative_to(engine)) for path in engine.rglob("*.py") if acting(path.read_text())}
    assert found == {"recovery/decide.py"}


def test_detectors_only_answer() -> None:
    """They neither act nor see the state that they could write."""
    for path in (ROOT / "supervisor" / "engine" / "detectors").rglob("*.py"):
        source = path.read_text()
        assert not acting(source), path
        assert not re.search(r"engine\.(state\.|recovery)", source), path


def memory_writes(source: str) -> list[str]:
    """Assignments to what a detector remembers, made from outside: `state.detectors.hang.look = 3`."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute | ast.Subscript)]
    written = [ast.unparse(node) for node in nodes if not isinstance(node.ctx, ast.Load)]
    return [text for text in written if re.search(r"\bdetectors\.", text)]


def test_nobody_else_writes_a_detectors_memory() -> None:
    assert memory_writes("state.detectors.hang.look = 3") and memory_writes("del state.detectors.hang.looks[1]")
    for path in (ROOT / "supervisor").rglob("*.py"):
        assert memory_writes(path.read_text()) == [], path
