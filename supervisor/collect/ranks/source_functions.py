"""Which function a line of a source file is in: for places that come without one. By indentation, without parsing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from guardrun.supervisor.base.source_files import UnsuitableError, read_source_lines

_DEF = re.compile(r"(?:async\s+)?def\s+(\w+)")


def function_at(lines: Sequence[str], number: int) -> str:
    """Name the function that a line (from 1) is in; empty where it is in none, or the file has no such line."""
    if not 1 <= number <= len(lines):
        return ""
    indent = _indent(lines[number - 1])
    for line in reversed(lines[: number - 1]):
        text = line.lstrip()
        if not text or text[0] in "#)]}" or _indent(line) >= indent:
            continue
        if match := _DEF.match(text):
            return match[1]
        indent = _indent(line)
    return ""


def _indent(line: str) -> int:
    expanded = line.expandtabs()
    return len(expanded) - len(expanded.lstrip())


def read_lines(path: str) -> list[str]:
    """Lines of a plain file; none where it can't be read, or is too long."""
    try:
        return read_source_lines(path)[0]
    except (OSError, UnsuitableError):
        return []


def name_functions(told: dict[str, Any], cwd: str) -> None:
    """Add `function` to each site (`file`, `line`) of what a rank has told of its allocations. cwd: the rank's."""
    known: dict[str, list[str]] = {}
    sites = told.get("sites")
    for site in sites if isinstance(sites, list) else ():
        if not isinstance(site, dict) or not isinstance(file := site.get("file"), str):
            continue
        if file not in known:
            known[file] = read_lines(os.path.join(cwd, file)) if not file.startswith("<") and "\0" not in file else []
        line = site.get("line")
        site["function"] = function_at(known[file], line) if isinstance(line, int) else ""
