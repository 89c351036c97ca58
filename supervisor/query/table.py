"""What a table that can be asked is: its name, its columns with a word on each, and why it may be empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.printable import make_printable
from guardrun.supervisor.report.elements.quantities import iso_time
from guardrun.supervisor.rundir.run_directory import RunFile

Cell = None | int | float | str
Row = tuple[Any, ...]
"""One value a column, in their order; made storable by `storable`."""

TEXT, INTEGER, REAL, JSON = "TEXT", "INTEGER", "REAL", "JSON"
"""Types of columns. JSON: text for SQLite's JSON functions; NULL where it would be longer than MAX_TEXT."""
MAX_TEXT = 1_000_000
"""Characters of a cell; longer text is cut."""
_MAX_INTEGER = 1 << 63


class Column(NamedTuple):
    """One column."""

    name: str
    type: str
    doc: str


class Table(NamedTuple):
    """One table. A name with a dot is of the database of that name: `python.backtrace`."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    why_empty: str
    """Why it may have no rows, as a clause; without a full stop."""
    is_live: bool = False
    """A living run is asked for it, at the moment of the query."""
    look_lacks: str = ""
    """What a look at ranks has none of where the table is empty and there was a look; likewise a clause."""

    @property
    def short_name(self) -> str:
        """Without its database."""
        return self.name.rpartition(".")[2]

    @property
    def database(self) -> str:
        """SQLite's name of it."""
        return self.name.rpartition(".")[0] or "main"

    def create(self) -> str:
        """The statement that makes it."""
        columns = ", ".join(f'"{one.name}" {"TEXT" if one.type == JSON else one.type}' for one in self.columns)
        return f'CREATE TABLE {self.database}."{self.short_name}" ({columns})'

    def insert(self) -> str:
        """The statement that adds a row."""
        return f'INSERT INTO {self.database}."{self.short_name}" VALUES ({", ".join("?" * len(self.columns))})'


def columns(*lines: tuple[str, str, str]) -> tuple[Column, ...]:
    """Columns of (name, type, doc)."""
    return tuple(Column(*line) for line in lines)


def storable(table: Table, row: Row) -> list[Cell]:
    """A row as SQLite takes it, whatever the files of a run say."""
    return [
        # The most frequent first: journals have millions of them.
        cell if cell is None or type(cell) is float else _storable(column.type, cell)
        for column, cell in zip(table.columns, row, strict=True)
    ]


def _storable(kind: str, value: Any) -> Cell:
    if isinstance(value, int):  # bool, too
        return value if -_MAX_INTEGER <= value < _MAX_INTEGER else float(value) if abs(value) < 1e300 else None
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            value = None if kind == JSON else value[:MAX_TEXT]
        return value if value is None or value.isascii() else str(make_printable(value))
    return value if value is None or isinstance(value, float) else str(value)


def by_name(tables: tuple[Table, ...]) -> dict[str, Table]:
    """Tables by their names, with and without their databases."""
    return {**{one.short_name: one for one in tables}, **{one.name: one for one in tables}}


def describe(tables: tuple[Table, ...]) -> Iterator[dict[str, Any]]:
    """The schema as data."""
    for table in tables:
        yield {
            "table": table.name,
            "about": table.doc,
            "is_live": table.is_live,
            "columns": [{"name": one.name, "type": one.type, "about": one.doc} for one in table.columns],
        }


def date(run: RunFile, at_s: float | None) -> str | None:
    """A time of the engine's, UTC; None where it is none that a calendar has."""
    try:
        return None if at_s is None else iso_time(run.date_s(at_s))
    except (ValueError, OverflowError, OSError):
        return None


def encode(value: Any) -> str:
    """JSON for a cell."""
    return msgspec.json.encode(value).decode()
