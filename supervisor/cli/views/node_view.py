"""Nodes and their quarantine, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from guardrun.supervisor.cli.base.output import Output, clean

STYLES = {"free": "green", "quarantined": "red", "unknown": "yellow"}
_HEADINGS = ("Node", "State", "Cause", "Who", "Since", "Until", "Why")
_PAST = ("Cause", "Who", "Since", "Ended", "Why")


def print_list(out: Output, nodes: Sequence[Mapping[str, Any]], troubles: Sequence[str]) -> None:
    """A row for each isolation that holds, and one for each other node."""
    rows: list[list[str]] = []
    styles: list[str] = []
    for node in nodes:
        held = [one for one in node["isolations"] if one["holds"]] or [{}]
        for one in held:
            rows.append([node["node"], node["state"], *_cells(one)])
            styles.append("" if node["state"] == "free" else STYLES[node["state"]])
    out.table(_HEADINGS, rows, styles)
    if any(node["state"] == "quarantined" for node in nodes):
        out.line("times are UTC; guardctl node show NODE tells more", "dim")
    print_troubles(out, troubles)


def print_node(out: Output, node: Mapping[str, Any], troubles: Sequence[str], paths: Sequence[str]) -> None:
    """What holds, then what is over, then the last release. node: as `guardctl node show --json` has it."""
    head = Text(clean(node["node"]), "bold")
    head.append(" · ")
    head.append(node["state"], f"bold {STYLES[node['state']]}")
    out.print(head)
    for one in node["isolations"]:
        if one["holds"]:
            _print_isolation(out, one)
    past = [one for one in node["isolations"] if not one["holds"]]
    if past:
        out.line()
        out.table(_PAST, [[*_cells(one)[:3], one["ended"], one["summary"]] for one in past])
    if node["releases"]:
        last = node["releases"][-1]
        reason = f": {last['reason']}" if last["reason"] else ""
        out.line(f"last released {_clock(last['at'])} by {last['who']}{reason}")
    print_troubles(out, troubles)
    out.line(f"kept in {', '.join(paths)}; times are UTC", "dim")


def print_troubles(out: Output, troubles: Sequence[str]) -> None:
    """A warning for each record that could not be read or written."""
    for trouble in troubles:
        out.line(f"warning: {trouble}", "yellow")


def _print_isolation(out: Output, one: Mapping[str, Any]) -> None:
    until = _clock(one["until"]) if one["until"] else "somebody releases it"
    out.line(f"{one['cause']}: isolated by {one['who']}, since {_clock(one['since'])}, until {until}")
    if one["summary"]:
        out.line(f"  {one['summary']}")
    found = " ".join(f"{name} {one[key]}" for name, key in (("run", "run_id"), ("incident", "incident")) if one[key])
    if found:
        out.line(f"  found in {found}")
    rows = [(f"  {name}", str(value)) for name, value in one["evidence"].items()]
    if rows:
        out.table(("", ""), rows)


def _cells(one: Mapping[str, Any]) -> list[str]:
    if not one:
        return [""] * 5
    return [one["cause"], one["who"], _clock(one["since"]), _clock(one["until"]), one["summary"]]


def _clock(iso: str | None) -> str:
    return iso[:16].replace("T", " ") if iso else ""
