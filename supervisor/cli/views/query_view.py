"""What `guardctl query` prints: answers as a table, JSON or CSV; the schema; examples."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from guardrun.supervisor.base.printable import make_harmless
from guardrun.supervisor.cli.base.output import Output, clean
from guardrun.supervisor.query.bounds import Answer
from guardrun.supervisor.query.examples import EXAMPLES
from guardrun.supervisor.query.run_query import QueryResult
from guardrun.supervisor.query.table import Table, describe

TABLE, JSON, CSV = "table", "json", "csv"
FORMATS = (TABLE, JSON, CSV)
MAX_SHOWN = 1000
"""Characters of a cell on a terminal; all of them elsewhere."""


def print_answer(out: Output, form: str, told: QueryResult, about: dict[str, Any]) -> None:
    """One answer; about: what JSON says of the run besides. What is beside the answer goes to stderr."""
    answer = told.answer
    notes = [*told.notes, *([_cut(answer)] if answer.is_cut else [])]
    if form == JSON:
        out.json({**about, **_data(answer), "is_cut": answer.is_cut, "as_of": told.as_of, "notes": notes})
    elif form == CSV:
        out.text(csv_text(answer))
    else:
        _print_table(out, answer)
    for note in notes:
        out.aside(note)


def _cut(answer: Answer) -> str:
    return f"more rows were left out: these are the first {len(answer.rows):,}; --rows N shows more, LIMIT says which"


def _data(answer: Answer) -> dict[str, Any]:
    names = _unique(answer.columns)
    rows = [{name: _plain(cell) for name, cell in zip(names, row, strict=True)} for row in answer.rows]
    return {"columns": names, "rows": rows}


def _unique(columns: Sequence[str]) -> list[str]:
    """Names of columns, of which none is there twice: `step`, `step_2`."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _plain(cell: Any) -> Any:
    """A value that JSON has."""
    if isinstance(cell, bytes):
        return cell.hex()
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def csv_text(answer: Answer) -> str:
    """With a line of names; NULL is an empty cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in [answer.columns, *answer.rows]:
        writer.writerow([make_harmless(cell) if isinstance(cell, str) else _plain(cell) for cell in row])
    return file.getvalue()


def _print_table(out: Output, answer: Answer) -> None:
    limit = MAX_SHOWN if out.is_terminal else None
    names = [_shown(name, limit) for name in answer.columns]
    cells = [[_shown(cell, limit) for cell in row] for row in answer.rows]
    are_numbers = [
        bool(answer.rows) and all(isinstance(row[number], int | float | None) for row in answer.rows)
        for number, _ in enumerate(names)
    ]
    if not out.is_terminal:
        out.text(_plain_table(names, cells, are_numbers))
        return
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for number, name in enumerate(names):
        is_short = all(len(row[number]) <= 12 for row in cells)
        side: JustifyMethod = "right" if are_numbers[number] else "left"
        no_wrap = is_short and out.console.width >= 60
        table.add_column(Text(name), overflow="fold", justify=side, no_wrap=no_wrap)
    for row in cells:
        table.add_row(*map(Text, row))
    out.print(table)
    out.line(f"{len(cells):,} row{'' if len(cells) == 1 else 's'}", "dim")


def _plain_table(names: list[str], cells: list[list[str]], are_numbers: list[bool]) -> str:
    """In a pipe nothing is folded, and rich would take seconds for ten thousand rows."""
    lines = [names, *cells]
    widths = [max(cell_len(line[number]) for line in lines) for number, _ in enumerate(names)]
    text = []
    for line in lines:
        padded = [
            " " * (width - cell_len(cell)) + cell if is_number else cell + " " * (width - cell_len(cell))
            for cell, width, is_number in zip(line, widths, are_numbers, strict=True)
        ]
        text.append("  ".join(padded).rstrip() + "\n")
    return "".join(text)


def _shown(cell: Any, limit: int | None) -> str:
    """A cell as text that does nothing to a terminal; NULL is empty."""
    if cell is None:
        return ""
    text = f"{cell:.10g}" if isinstance(cell, float) else f"x'{cell.hex()}'" if isinstance(cell, bytes) else str(cell)
    text = clean(make_harmless(text))
    return text if limit is None or len(text) <= limit else f"{text[:limit]}…"


# Schema and examples ------------------------------------------------------------------------------------------------


def print_schema(out: Output, tables: Sequence[Table]) -> None:
    """Tables with their columns; of more than one only which columns they have."""
    if out.is_json:
        out.json({"tables": list(describe(tuple(tables)))})
        return
    for table in tables:
        live = " (of a living run: now)" if table.is_live else ""
        out.line(f"{table.name}{live}", "bold")
        out.line(f"  {table.doc}")
        if len(tables) > 1:
            out.line(f"  {', '.join(column.name for column in table.columns)}", "dim")
        else:
            out.table(("", "", ""), [(f"  {one.name}", one.type, one.doc) for one in table.columns])
    if len(tables) > 1:
        out.line("guardctl query --schema TABLE says what each column is", "dim")


def print_examples(out: Output) -> None:
    """Queries, each under what it answers."""
    if out.is_json:
        out.json({"examples": [example._asdict() for example in EXAMPLES]})
        return
    for example in EXAMPLES:
        out.line(f"-- {example.about}", "dim")
        out.line(f"{example.sql};")


def about_run(run_id: str, run_dir: Path) -> dict[str, Any]:
    """What JSON says of the run that was asked."""
    return {"run_id": run_id, "run_dir": str(run_dir)}
