"""The linter of what may import what: docs/design.md's rules as a table, checked on the syntax tree."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("hooks", "launcher", "slurm", "supervisor", "systemd")
"""Of the product."""


def product_files() -> list[Path]:
    """All Python files of the product."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@dataclass(frozen=True)
class Rule:
    """What the files of one folder may import and call. Module names cover their submodules."""

    folder: str
    why: str
    allowed: frozenset[str] | None = None
    """Modules that may be imported anywhere in a file; None: all but the forbidden."""
    lazy: frozenset[str] = frozenset()
    """Modules that may be imported inside functions only."""
    forbidden: frozenset[str] = frozenset()
    """Modules that may not be imported at all."""
    forbidden_calls: frozenset[str] = frozenset()
    """Builtins that may not be named."""
    without: tuple[str, ...] = ()
    """Folders below that have a rule of their own."""


ONLY_NAMES = {"signal": re.compile(r"Signals|SIG[A-Z0-9]+")}
"""Allowed modules of which only these attributes may be used: names of signals, no handlers."""

CORE = Rule(
    folder="supervisor/engine",
    why="the core decides from events and now_s alone",
    allowed=frozenset(
        {
            "__future__",
            "abc",
            "bisect",
            "collections",
            "dataclasses",
            "enum",
            "functools",
            "heapq",
            "itertools",
            "math",
            "operator",
            "re",
            "signal",
            "statistics",
            "typing",
            "msgspec",
            "guardrun.supervisor.engine",
            "guardrun.supervisor.health",
        }
    ),
    forbidden_calls=frozenset(
        {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint", "globals", "id", "hash"}
    ),
)
HEALTH = Rule(
    folder="supervisor/health",
    why="the judges of a node decide from readings alone",
    allowed=(CORE.allowed or frozenset()) - {"guardrun.supervisor.engine"},
    forbidden_calls=CORE.forbidden_calls,
)
PURE = (CORE, HEALTH)
HOOKS = Rule(
    folder="hooks",
    why="hooks run in every rank: nothing of ours but hooks, no torch before the script asks for it",
    allowed=frozenset({*sys.stdlib_module_names, "msgspec", "zmq", "sitecustomize", "guardrun.hooks"}),
    lazy=frozenset({"torch"}),
    forbidden_calls=frozenset({"print", "input", "breakpoint"}),
)
SUPERVISOR = Rule(
    folder="supervisor",
    why="the supervisor stays small and starts fast",
    lazy=frozenset({"guardrun.slurm"}),  # only jobs of Slurm's have a use for it
    forbidden=frozenset({"torch", "numpy", "guardrun.systemd"}),
    without=(
        "supervisor/engine",
        "supervisor/health",
        "supervisor/agent",
        "supervisor/cli/verbs/node_agent.py",
        "supervisor/cli/verbs/sbatch.py",
        "supervisor/cli/verbs/slurm.py",
    ),
)
NODE = tuple(
    Rule(
        folder=folder,
        why="the node agent stays small; it alone is a service of systemd's",
        forbidden=frozenset({"torch", "numpy", "guardrun.slurm"}),
    )
    for folder in ("supervisor/agent", "supervisor/sensors", "supervisor/quarantine")
)
RULES = (*PURE, HOOKS, SUPERVISOR, *NODE)


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    is_lazy: bool


def is_within(module: str, names: frozenset[str]) -> bool:
    """Say whether module is one of names, or below one."""
    parts = module.split(".")
    return any(".".join(parts[: end + 1]) in names for end in range(len(parts)))


def is_typing_only(node: ast.AST) -> TypeGuard[ast.If]:
    """Say whether this is `if TYPE_CHECKING:`, whose body never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def find_imports(node: ast.AST, is_lazy: bool = False) -> Iterator[Import]:
    """Every import below node that runs; `from guardrun import b` counts as guardrun.b."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno, is_lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module == "guardrun":
        yield from (Import(f"guardrun.{alias.name}", node.lineno, is_lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield Import("." * node.level + (node.module or ""), node.lineno, is_lazy)
    elif is_typing_only(node):
        for statement in node.orelse:
            yield from find_imports(statement, is_lazy)
    else:
        inside = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from find_imports(child, inside)


def import_problem(found: Import, rule: Rule) -> str | None:
    """What the rule has against an import."""
    if found.module.startswith("."):
        return f"imports {found.module}: write it from guardrun. on"
    if is_within(found.module, rule.lazy):
        return None if found.is_lazy else f"imports {found.module} at import time"
    if is_within(found.module, rule.forbidden):
        return f"imports {found.module}"
    if rule.allowed is None or is_within(found.module, rule.allowed):
        return None
    return f"imports {found.module}"


def find_uses(tree: ast.AST, rule: Rule) -> Iterator[tuple[int, str]]:
    """Builtins and attributes that the rule forbids, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in rule.forbidden_calls:
            yield node.lineno, f"uses {node.id}"
        elif rule in PURE and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = ONLY_NAMES.get(node.value.id)
            if names and not names.fullmatch(node.attr):
                yield node.lineno, f"uses {node.value.id}.{node.attr}"
        elif rule in PURE and isinstance(node, ast.ImportFrom) and node.module in ONLY_NAMES:
            for alias in node.names:
                if not ONLY_NAMES[node.module].fullmatch(alias.name):
                    yield node.lineno, f"uses {node.module}.{alias.name}"


def lint(source: str, rule: Rule) -> list[str]:
    """What is wrong with one file: `LINE: problem (why)`."""
    tree = ast.parse(source)
    problems = [(found.line, import_problem(found, rule)) for found in find_imports(tree)]
    problems += find_uses(tree, rule)
    return [f"{line}: {text} ({rule.why})" for line, text in sorted(problems, key=str) if text]


def files_under(rule: Rule, root: Path = ROOT) -> list[Path]:
    """The files that the rule is for."""
    return [
        path
        for path in sorted((root / rule.folder).rglob("*.py"))
        if not any(path.is_relative_to(root / folder) for folder in rule.without)
    ]
