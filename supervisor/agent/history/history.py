"""What has been on this node: samples and entries in a SQLite file that stays within bounds.

The file is a ring: when rows or bytes reach their bound, the oldest tenth goes. What a user other than root has caused
has a bound of its own, at which that user's oldest rows go and nobody else's. In WAL mode without a sync a commit, a
SIGKILL loses nothing that was committed; a loss of power may lose the last minutes, and spoils nothing. A file that is
spoilt all the same is set aside and a new one begun.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from guardrun.supervisor.agent.history.downsampling import Point
from guardrun.supervisor.base.printable import make_printable

NAME = "history.db"
SCHEMA_VERSION = 2
MAX_SAMPLES = 1_000_000
MAX_ENTRIES = 50_000
MAX_ENTRIES_OF_ONE_USER = 1_000
MAX_ENTRIES_OF_USERS = 20_000
"""Of all together: many users leave room for the node's own."""
MAX_BYTES = 64 * 1024 * 1024
_PAGE_BYTES = 4096
_WAL_PAGES = 256
_MAX_TEXT = 2000
MAX_LIMIT = 10_000

_BY_UID = "CREATE INDEX entries_by_uid ON entries (uid) WHERE uid != 0"
_SCHEMA = f"""
CREATE TABLE series (id INTEGER PRIMARY KEY, subject TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (subject, name));
CREATE TABLE samples (id INTEGER PRIMARY KEY, series INTEGER NOT NULL, wall_s REAL NOT NULL,
                      low REAL, high REAL, mean REAL, text TEXT NOT NULL);
CREATE INDEX samples_by_series ON samples (series, wall_s);
CREATE TABLE entries (id INTEGER PRIMARY KEY, wall_s REAL NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL,
                      name TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL, uid INTEGER NOT NULL DEFAULT 0);
{_BY_UID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class Entry(NamedTuple):
    """Something that happened, or was found, decided, begun or ended."""

    wall_s: float
    what: str
    """`happening`, `finding`, `quarantine`, `job`, `agent`, `clock`."""
    subject: str
    name: str
    text: str = ""
    data: dict[str, Any] = {}  # noqa: RUF012  # never changed
    uid: int = 0
    """Of the user whose doing it is; 0: root's, and the node's own."""


class Query(NamedTuple):
    """What is wanted; None and empty: any."""

    since_wall_s: float | None = None
    until_wall_s: float | None = None
    subject: str = ""
    """A beginning of it."""
    name: str = ""
    what: str = ""
    limit: int = 1000
    """The newest so many, of samples and of entries."""
    has_samples: bool = True
    """Samples, too; with `what` there are none."""


class SpoiltError(Exception):
    """The file is no history that can be read; says why."""


class History:
    """An open history, for one thread. Every method raises sqlite3.Error where the disk, or the file, has troubles."""

    def __init__(
        self, path: Path, max_samples: int = MAX_SAMPLES, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES
    ) -> None:
        """Open the file, or make it. Raises SpoiltError, or sqlite3.Error where it can't be opened or made."""
        self._bounds = {"samples": max_samples, "entries": max_entries}
        self._max_pages = max(64, max_bytes // _PAGE_BYTES)
        self._series: dict[tuple[str, str], int] = {}
        self._db = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            self._open()
            self._rows = {table: self._count(table) for table in self._bounds}
        except BaseException as error:
            self._db.close()
            if is_spoilt(error):
                raise SpoiltError(str(error)) from None
            raise

    def _open(self) -> None:
        self._db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        self._db.execute(f"PRAGMA journal_size_limit = {2 * _WAL_PAGES * _PAGE_BYTES}")
        self._db.execute("PRAGMA cache_size = -512")  # KiB: the agent stays small
        self._db.execute(f"PRAGMA max_page_count = {self._max_pages}")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._db.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
        elif version == 1:
            column = "ALTER TABLE entries ADD COLUMN uid INTEGER NOT NULL DEFAULT 0"
            self._db.executescript(f"BEGIN;{column};{_BY_UID};PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
        elif version != SCHEMA_VERSION:
            raise SpoiltError(f"it is of version {version}; this guardrun writes {SCHEMA_VERSION}")
        found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise SpoiltError(str(found))
        self._series = {
            (subject, name): key for key, subject, name in self._db.execute("SELECT id, subject, name FROM series")
        }

    def write(self, points: Iterable[Point], entries: Iterable[Entry]) -> None:
        """Add to the ring, all or nothing; makes room where there is none left, once."""
        points, entries = list(points), list(entries)
        try:
            self._write(points, entries)
        except sqlite3.OperationalError as error:
            if "full" not in str(error) or not self._is_at_bound():
                raise
            self._drop_oldest("samples", max(1, self._rows["samples"] // 10))
            self._drop_oldest("entries", max(1, self._rows["entries"] // 10))
            self._write(points, entries)
        for uid in {entry.uid for entry in entries if entry.uid}:
            self._drop_of_user(uid)
        for table, bound in self._bounds.items():
            if self._rows[table] > bound:
                self._drop_oldest(table, self._rows[table] - bound + bound // 10)

    def _write(self, points: Sequence[Point], entries: Sequence[Entry]) -> None:
        with self._transaction():
            rows = [(self._key(p), p.wall_s, p.low, p.high, p.mean, p.text[:_MAX_TEXT]) for p in points]
            self._db.executemany(
                "INSERT INTO samples (series, wall_s, low, high, mean, text) VALUES (?, ?, ?, ?, ?, ?)", rows
            )
            self._db.executemany(
                "INSERT INTO entries (wall_s, what, subject, name, text, data, uid) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [_entry_row(entry) for entry in entries],
            )
        self._rows["samples"] += len(points)
        self._rows["entries"] += len(entries)

    def read(self, query: Query) -> dict[str, Any]:
        """`samples` and `entries` that the query wants, the newest of them, in their order."""
        return read(self._db, query)

    def count(self) -> dict[str, int]:
        """Rows of each table, and bytes of the file."""
        pages = self._db.execute("PRAGMA page_count").fetchone()[0]
        return {**self._rows, "bytes": pages * _PAGE_BYTES}

    def close(self) -> None:
        """Close the file; never raises, unlike every other method."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._series = {}  # what was made in this transaction is none
            raise

    def _key(self, point: Point) -> int:
        key = (point.subject, point.name)
        found = self._series.get(key)
        if found is None:
            self._db.execute("INSERT OR IGNORE INTO series (subject, name) VALUES (?, ?)", key)
            row = self._db.execute("SELECT id FROM series WHERE subject = ? AND name = ?", key).fetchone()
            found = self._series[key] = int(row[0])
        return found

    def _count(self, table: str) -> int:
        if table == "entries":  # a user's own may go from between
            return int(self._db.execute("SELECT count(*) FROM entries").fetchone()[0])
        # Ids are given in order, and only the oldest ever go.
        first, last = self._db.execute(f"SELECT min(id), max(id) FROM {table}").fetchone()
        return last - first + 1 if last is not None else 0

    def _drop_of_user(self, uid: int) -> None:
        """Keep a user's rows within their bounds, by a tenth: the user's own oldest go."""
        own, all_users = self._db.execute(
            "SELECT coalesce(sum(uid = ?), 0), count(*) FROM entries INDEXED BY entries_by_uid WHERE uid != 0", (uid,)
        ).fetchone()
        over = own - MAX_ENTRIES_OF_ONE_USER
        if over <= 0 and all_users > MAX_ENTRIES_OF_USERS:
            over = min(own, all_users - MAX_ENTRIES_OF_USERS)
        if over <= 0:
            return
        rows = min(own, over + MAX_ENTRIES_OF_ONE_USER // 10)
        with self._transaction():
            oldest = "SELECT id FROM entries WHERE uid = ? ORDER BY id LIMIT ?"
            self._db.execute(f"DELETE FROM entries WHERE id IN ({oldest})", (uid, rows))
        self._rows["entries"] = self._count("entries")

    def _drop_oldest(self, table: str, rows: int) -> None:
        with self._transaction():
            oldest = f"SELECT id FROM {table} ORDER BY id LIMIT ?"
            self._db.execute(f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM ({oldest}))", (rows,))
            if table == "samples":
                self._db.execute("DELETE FROM series WHERE id NOT IN (SELECT DISTINCT series FROM samples)")
                self._series = {}
        self._rows[table] = self._count(table)

    def _is_at_bound(self) -> bool:
        """Whether it is our own bound that has been reached, and not the disk's."""
        return bool(self._db.execute("PRAGMA page_count").fetchone()[0] >= self._max_pages - 16)


def read(db: sqlite3.Connection, query: Query) -> dict[str, Any]:
    """As History.read, of any connection. Raises sqlite3.Error."""
    where, values = _conditions(query)
    points = []
    if query.has_samples and not query.what:
        points = db.execute(
            "SELECT subject, name, wall_s, low, high, mean, text FROM samples JOIN series ON series.id = series"
            f"{where} ORDER BY samples.id DESC LIMIT ?",
            (*values, _limit(query)),
        ).fetchall()
    if query.what:
        where += f"{' AND' if where else ' WHERE'} what = ?"
        values.append(query.what)
    entries = db.execute(
        f"SELECT wall_s, what, subject, name, text, data FROM entries{where} ORDER BY id DESC LIMIT ?",
        (*values, _limit(query)),
    ).fetchall()
    return {
        "samples": [Point(*row)._asdict() for row in reversed(points)],
        "entries": [_entry(row) for row in reversed(entries)],
    }


def read_file(path: Path, query: Query) -> dict[str, Any]:
    """Likewise, of a file that somebody else may be writing, and that is not changed. Raises sqlite3.Error."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
    try:
        return read(db, query)
    finally:
        db.close()


def is_spoilt(error: BaseException) -> bool:
    """Whether an error says that the file is damaged, rather than that it can't be reached or written now.

    SQLITE_CORRUPT and SQLITE_NOTADB are the two that Python raises as DatabaseError itself (Modules/_sqlite/util.c).
    """
    return type(error) is sqlite3.DatabaseError


def set_aside(path: Path) -> Path:
    """Move a spoilt file out of the way, in the place of an earlier one. Raises OSError."""
    aside = path.with_name(f"{path.name}.spoilt")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside


def _entry_row(entry: Entry) -> tuple[Any, ...]:
    texts = make_printable([entry.what, entry.subject, entry.name, entry.text[:_MAX_TEXT]])
    data = json.dumps(make_printable(entry.data), default=str)
    if len(data) > 4 * _MAX_TEXT:
        short = {key: value for key, value in entry.data.items() if len(str(value)) <= 200}
        data = json.dumps(make_printable(short), default=str)
    return (entry.wall_s, *texts, data if len(data) <= 4 * _MAX_TEXT else "{}", entry.uid)


def _entry(row: tuple[Any, ...]) -> dict[str, Any]:
    wall_s, what, subject, name, text, data = row
    told = {"wall_s": wall_s, "what": what, "subject": subject, "name": name, "text": text}
    return {**told, "data": _parse_data(data)}


def _parse_data(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _limit(query: Query) -> int:
    return max(1, min(query.limit, MAX_LIMIT))


def _conditions(query: Query) -> tuple[str, list[Any]]:
    parts: list[str] = []
    values: list[Any] = []
    for column, sign, value in (("wall_s", ">=", query.since_wall_s), ("wall_s", "<=", query.until_wall_s)):
        if value is not None and math.isfinite(value):
            parts.append(f"{column} {sign} ?")
            values.append(value)
    if query.subject:
        parts.append("substr(subject, 1, ?) = ?")
        values += [len(query.subject), query.subject]
    if query.name:
        parts.append("name = ?")
        values.append(query.name)
    return (f" WHERE {' AND '.join(parts)}" if parts else ""), values
