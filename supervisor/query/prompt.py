"""The prompt of `guardctl query`: statements over several lines, a few commands with a dot, completion.

What is typed is kept for the arrow keys, and written nowhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from guardrun.supervisor.query.table import Table

FIRST, MORE = "query> ", "   ...> "
KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "OFFSET", "DISTINCT", "AS", "AND", "OR",
    "NOT", "IN", "IS", "NULL", "LIKE", "GLOB", "BETWEEN", "EXISTS", "CASE", "WHEN", "THEN", "ELSE", "END", "JOIN",
    "LEFT", "CROSS", "ON", "USING", "UNION", "ALL", "EXCEPT", "INTERSECT", "WITH", "RECURSIVE", "VALUES", "ASC",
    "DESC", "OVER", "PARTITION", "COUNT", "SUM", "AVG", "MIN", "MAX", "TOTAL", "ROUND", "ABS", "LENGTH", "LOWER",
    "UPPER", "SUBSTR", "COALESCE", "EXPLAIN",
)  # fmt: skip
DELIMITERS = " \t\n\"'`<>=;|&(),+-*/%"
"""A dot is none: `python.backtrace` is one word."""

Read = Callable[[str], str]
"""Shows a prompt and answers a line. Raises EOFError, and KeyboardInterrupt."""


class Prompt:
    """Reads statements until there are no more."""

    def __init__(self, read: Read, run: Callable[[str], None], commands: Mapping[str, Callable[[str], None]]) -> None:
        """commands: by name, `.schema`; each is given the rest of its line. Every one may raise KeyboardInterrupt."""
        self._read, self._run, self._commands = read, run, commands
        self.lines: list[str] = []
        """Of the statement that is being typed."""

    def loop(self) -> None:
        """Until Ctrl-D, or .quit."""
        while True:
            try:
                line = self._read(MORE if self.lines else FIRST)
                if not self._on_line(line):
                    return
            except EOFError:
                return
            except KeyboardInterrupt:
                self.lines = []

    def _on_line(self, line: str) -> bool:
        """Answers whether to go on."""
        name, _, rest = line.strip().partition(" ")
        if not self.lines and name.startswith("."):
            if name in (".quit", ".exit"):
                return False
            self._commands.get(name, self._commands[".help"])(rest.strip())
            return True
        if not self.lines and not name:
            return True
        self.lines.append(line)
        text = "\n".join(self.lines)
        if not line.strip() or sqlite3.complete_statement(text):
            self.lines = []
            self._run(text)
        return True


# Completion ---------------------------------------------------------------------------------------------------------


class Completer:
    """Words that may stand where the cursor is."""

    def __init__(self, tables: Sequence[Table], commands: Sequence[str]) -> None:
        self._tables, self._commands = tables, commands

    def words(self, begun: str, before: str) -> list[str]:
        """Those that begin like this. before: what has been typed of the statement so far."""
        if begun.startswith("."):
            return [one for one in self._commands if one.startswith(begun)] if not before.strip(". \t") else []
        named = [table for table in self._tables if table.name in before or f" {table.short_name}" in before]
        columns = [column.name for table in named or self._tables for column in table.columns]
        names = [table.name for table in self._tables] + [one.short_name for one in self._tables if "." in one.name]
        keywords = [word.lower() if begun.islower() else word for word in KEYWORDS]
        found = dict.fromkeys([*columns, *names, *keywords] if named else [*names, *keywords, *columns])
        return [word for word in found if word.lower().startswith(begun.lower())]


@contextmanager
def completion(completer: Completer, prompt: Callable[[], Prompt]) -> Iterator[None]:
    """With the terminal's line editing, where Python has it. prompt: the one that is open."""
    try:
        import readline
    except ImportError:
        yield
        return
    words: list[str] = []

    def complete(begun: str, state: int) -> str | None:
        if state == 0:
            line = readline.get_line_buffer()[: readline.get_begidx()]
            words[:] = completer.words(begun, "\n".join([*prompt().lines, line]))
        return words[state] if state < len(words) else None

    before: tuple[Any, str] = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(complete)
    readline.set_completer_delims(DELIMITERS)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
