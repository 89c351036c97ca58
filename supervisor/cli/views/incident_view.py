"""Incidents in a list: a table where there is room, else two lines each."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from guardrun.supervisor.cli.base.output import Output, clean

HEADINGS = ("Incident", "Cause", "Step", "Detected", "Action", "Recovered", "What")
TABLE_COLUMNS = 110
"""Below it the sentence would be a column of single words."""


def incidents_view(out: Output, records: list[dict[str, Any]]) -> RenderableType:
    """The list, oldest first. Times are UTC."""
    rows = [_row(record) for record in records]
    if out.console.width >= TABLE_COLUMNS:
        return out.make_table(HEADINGS, rows)
    return Group(*(part for row in rows for part in _two_lines(row)))


def _two_lines(row: list[str]) -> list[RenderableType]:
    number, cause, step, detected, action, recovered, what = (clean(cell) for cell in row)
    facts = [cause, f"step {step}" if step else "", detected, action, f"recovered {recovered}" if recovered else ""]
    head = Text(number, style="bold")
    head.append("  " + " · ".join(fact for fact in facts if fact), "dim")
    return [head, Padding(Text(what), (0, 0, 0, 2))]


def _row(record: dict[str, Any]) -> list[str]:
    recovered = record.get("recovered")
    return [
        str(record.get("id", "")),
        f"{record.get('kind', '')} {record.get('cause', '')}",
        "" if record.get("step") is None else str(record["step"]),
        _clock(record.get("detected")),
        str(record.get("action", "")).replace("_", " "),
        _clock(recovered) if recovered else "",
        str(record.get("summary", "")),
    ]


def _clock(iso: Any) -> str:
    """`11-20 23:53:34` of a UTC time."""
    return str(iso)[5:19].replace("T", " ") if iso else ""
