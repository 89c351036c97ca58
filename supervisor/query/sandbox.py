"""A database in memory that a stranger's SQL may be run in: it reads our tables, and can do nothing else.

What keeps it so:

- SQLite asks the authorizer about everything that a statement does before it does any of it. Reading our tables,
  SQLite's own list of them and json_each is allowed, and calling functions but those of NOT_CALLED; all else is
  refused: writing, ATTACH, PRAGMA, BEGIN. VACUUM is the one statement that asks nothing: what does not begin with a
  SELECT is refused as well. Once the tables are filled the connection is `query_only` besides.
- One statement at a time: sqlite3 refuses more.
- Time: a handler that is called every PROGRESS instructions stops it. One function over one huge text is one
  instruction: text is bounded (SQLITE_LIMIT_LENGTH, from Python 3.11 on), and where even that is too slow, Watchdog
  ends the process.
- Memory: SQLite's own hard limit, for this process; the limit of the process where SQLite is too old for that (3.31).
  Nothing is written to disk, so that what is sorted counts, too.
- The answer has at most so many rows, and characters.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from types import FrameType
from typing import Any

from guardrun.supervisor.query.bounds import Answer, Bounds, FailedError, RefusedError, Watchdog, bound_process
from guardrun.supervisor.query.table import MAX_TEXT, Cell, Table, by_name, storable

MAX_SQL = 100_000
"""Characters of a query."""
MAX_ANSWER = 32 << 20
"""Characters of all its rows."""
MAX_LENGTH = 4 * MAX_TEXT + 1000
"""Bytes of one value: UTF-8 of the longest that we store."""
MAX_PATTERN = 2000
PROGRESS = 5000
GRACE_S = 5.0
"""After its time is up: for a query to notice."""
ROWS_AT_ONCE = 500
NOT_CALLED = frozenset(
    {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "zeroblob", "randomblob", "sqlite_log"}
)
CATALOGUE = frozenset({"sqlite_master", "sqlite_temp_master", "sqlite_schema", "sqlite_temp_schema"})
ITSELF = frozenset({"json_each", "json_tree"})
_VERBS = frozenset(
    {
        "ALTER", "ANALYZE", "ATTACH", "BEGIN", "COMMIT", "CREATE", "DELETE", "DETACH", "DROP", "END", "INSERT",
        "PRAGMA", "REINDEX", "RELEASE", "REPLACE", "ROLLBACK", "SAVEPOINT", "UPDATE", "VACUUM",
    }
)  # fmt: skip
_STATEMENTS = {sqlite3.SQLITE_INSERT: "INSERT", sqlite3.SQLITE_UPDATE: "UPDATE", sqlite3.SQLITE_DELETE: "DELETE"}
"""That may come after a WITH."""
_COMMENT = r"--[^\n]*(?:\n|$)|/\*(?:(?!\*/).)*(?:\*/|$)"
_EXPLAINS = re.compile(rf"(?:\s|;|{_COMMENT})*explain\b", re.IGNORECASE | re.DOTALL)
_FIRST = re.compile(rf"(?:\s|;|{_COMMENT})*([a-z]+)", re.IGNORECASE | re.DOTALL)
_NOTHING = re.compile(rf"(?:\s|;|{_COMMENT})*", re.DOTALL)


class Sandbox:
    """The database, for one query: make, `compile`, `fill`, `run`, `close`."""

    def __init__(self, tables: Sequence[Table], bounds: Bounds) -> None:
        self._tables, self._bounds = tables, bounds
        self._by_name = by_name(tuple(tables))
        self._is_ours = True
        """What is done is our own doing."""
        self._is_select = False
        self._verb = self._refused = ""
        self._read: dict[str, set[str]] = {}
        self._deadline_s = float("inf")
        self._why_stopped = ""
        self._connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
        self._connection.set_authorizer(self._authorize)
        for database in sorted({table.database for table in tables} - {"main"}):
            self._connection.execute(f"ATTACH ':memory:' AS {database}")
        for table in tables:
            self._connection.execute(table.create())
        self._bound()
        self._is_ours = False

    def close(self) -> None:
        """Forget everything."""
        self._connection.close()

    def _bound(self) -> None:
        self._connection.execute("PRAGMA temp_store = MEMORY")
        # One that is too old for it gives no row.
        told = self._connection.execute(f"PRAGMA hard_heap_limit = {self._bounds.memory_bytes}").fetchall()
        self._has_heap_limit = bool(told and told[0][0])
        with suppress(sqlite3.Error):  # once: whatever it makes in the list of tables is not asked for again
            self._connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")
        if sys.version_info >= (3, 11):
            for limit, most in (
                (sqlite3.SQLITE_LIMIT_LENGTH, MAX_LENGTH),
                (sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL + 1000),
                (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN),
                (sqlite3.SQLITE_LIMIT_ATTACHED, len({table.database for table in self._tables})),
                (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
            ):
                self._connection.setlimit(limit, most)

    # What is allowed --------------------------------------------------------------------------------------------------

    def _authorize(self, code: int, one: str | None, two: str | None, database: str | None, inner: str | None) -> int:
        if self._is_ours:
            return sqlite3.SQLITE_OK
        why = ""
        if code == sqlite3.SQLITE_SELECT:
            self._is_select = True
        elif code == sqlite3.SQLITE_READ:
            why = self._note_read(str(one), two or "")
        elif code == sqlite3.SQLITE_FUNCTION:
            if str(two).lower() in NOT_CALLED:
                why = f"{two}() can't be called"
        elif code == sqlite3.SQLITE_UPDATE and one in CATALOGUE:  # also how a table of SQLite's own comes into being
            why = "a query only reads, and only the tables that `guardctl query --schema` has"
        elif code != sqlite3.SQLITE_RECURSIVE:
            what = self._verb or _STATEMENTS.get(code, "that")
            why = f"a query only reads: {what} is refused, SELECT is what there is"
        if not why:
            return sqlite3.SQLITE_OK
        self._refused = self._refused or why
        return sqlite3.SQLITE_DENY

    def _note_read(self, table: str, column: str) -> str:
        if table in CATALOGUE or table in ITSELF:
            return ""
        known = self._by_name.get(table)
        if known is None:
            if not column:  # what the query itself names (WITH), of which it reads no column
                return ""
            return f"{table} can't be read: `guardctl query --schema` has the tables"
        self._read.setdefault(known.name, set()).add(column)
        return ""

    def compile(self, sql: str) -> dict[str, frozenset[str]]:
        """Which tables a query reads, and which of their columns, without running it. Raises RefusedError."""
        if len(sql) > MAX_SQL:
            raise RefusedError(f"the query has more than {MAX_SQL:,} characters")
        if "\0" in sql:
            raise RefusedError("the query has a NUL character")
        if _NOTHING.fullmatch(sql):
            raise RefusedError("there is no query")
        self._is_select, self._refused, self._read = False, "", {}
        first = _FIRST.match(sql)
        self._verb = first[1].upper() if first and first[1].upper() in _VERBS else ""
        prefix = "" if _EXPLAINS.match(sql) else "EXPLAIN "
        self._start_clock()
        try:
            self._connection.execute(prefix + sql.encode("utf-8", "replace").decode()).close()
        except (sqlite3.Error, sqlite3.Warning, MemoryError, OverflowError, ValueError) as error:
            raise RefusedError(self._refused or self._why_stopped or self._describe(error, sql)) from None
        finally:
            self._connection.set_progress_handler(None, PROGRESS)
        if not self._is_select:
            raise RefusedError(f"a query only reads: {self._verb or 'that'} is refused, SELECT is what there is")
        return {name: frozenset(columns) for name, columns in self._read.items()}

    def _describe(self, error: Exception, sql: str) -> str:
        text = str(error) or type(error).__name__
        if "one statement at a time" in text:
            return "one statement at a time"
        if "bindings supplied" in text:
            return "a query has no parameters (?, :name)"
        if found := re.match(r"no such table: (.+)", text):
            names = ", ".join(table.name for table in self._tables)
            return f"no table {found[1]}; there are: {names}"
        if text.startswith("no such column"):
            words = set(re.findall(r"\w+", sql.lower()))
            named = [table for table in self._tables if table.short_name in words]
            has = [f"{table.name} has: {', '.join(one.name for one in table.columns)}" for table in named[:2]]
            return "; ".join([text, *has])
        return text

    # Filling ----------------------------------------------------------------------------------------------------------

    def fill(self, table: Table, rows: Iterable[Iterable[Any]]) -> int:
        """Add rows, in batches; answers how many. Raises FailedError."""
        count = 0
        statement, it = table.insert(), iter(rows)
        self._is_ours = True
        try:
            with self._memory():
                while batch := [storable(table, tuple(row)) for row in islice(it, ROWS_AT_ONCE)]:
                    self._connection.execute("BEGIN")
                    self._connection.executemany(statement, batch)
                    self._connection.execute("COMMIT")
                    count += len(batch)
        except (MemoryError, sqlite3.Error) as error:
            raise FailedError(f"{table.name} can't be held in memory: {self._why(error)}") from None
        finally:
            self._is_ours = False
        return count

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self, sql: str) -> Answer:
        """The answer. Raises FailedError, and KeyboardInterrupt where the user has had enough."""
        self._is_ours = True
        self._connection.execute("PRAGMA query_only = ON")
        self._is_ours = False
        self._refused = ""
        # Anew: what was compiled before is compiled again under this.
        self._connection.set_authorizer(self._authorize)
        self._start_clock()
        try:
            with self._interruptible(), Watchdog(self._bounds.seconds + GRACE_S), self._memory():
                return self._fetch(sql.encode("utf-8", "replace").decode())
        except (MemoryError, sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            if self._why_stopped == "interrupted":
                raise KeyboardInterrupt from None
            raise FailedError(self._refused or self._why_stopped or self._why(error)) from None
        finally:
            self._connection.set_progress_handler(None, PROGRESS)

    def _start_clock(self) -> None:
        self._why_stopped = ""
        self._deadline_s = time.monotonic() + self._bounds.seconds
        self._connection.set_progress_handler(self._is_over, PROGRESS)

    def _why(self, error: Exception) -> str:
        if isinstance(error, MemoryError) or "out of memory" in str(error) or "full" in str(error):
            return f"it takes more than {self._bounds.memory_bytes >> 20} MB of memory"
        if isinstance(error, sqlite3.DataError) or "too big" in str(error):
            return "a value in it is too long"
        return str(error) or type(error).__name__

    def _fetch(self, sql: str) -> Answer:
        cursor = self._connection.execute(sql)
        try:
            names = [str(one[0]) for one in cursor.description or ()]
            rows: list[tuple[Cell | bytes, ...]] = []
            size = 0
            for row in cursor:
                size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
                if len(rows) >= self._bounds.rows or (rows and size > MAX_ANSWER):
                    return Answer(names, rows, True)
                rows.append(row)
            return Answer(names, rows, False)
        finally:
            cursor.close()

    def _is_over(self) -> int:
        if not self._why_stopped and time.monotonic() > self._deadline_s:
            self._why_stopped = f"the query took longer than {self._bounds.seconds:g} s: --timeout gives it more"
        return 1 if self._why_stopped else 0

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C stops the query: SQLite, which calls us, would swallow what Python raises."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self._why_stopped = "interrupted"

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
            if self._why_stopped == "interrupted":  # after its last row
                raise KeyboardInterrupt
        finally:
            signal.signal(signal.SIGINT, before)

    def _memory(self) -> AbstractContextManager[None]:
        return nullcontext() if self._has_heap_limit else bound_process(self._bounds.memory_bytes)
