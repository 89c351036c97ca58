"""`guardctl node history`: what has been on this node, as its agent has kept it. SQLite is imported only then."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guardrun.supervisor.base.node_state import SYSTEM_FOLDER
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, read_config
from guardrun.supervisor.client.agent_client import RefusedError, Unreachable, ask
from guardrun.supervisor.quarantine.record_places import absolute_folders
from guardrun.supervisor.report.elements.quantities import iso_time, parse_iso_time

if TYPE_CHECKING:
    from guardrun.supervisor.agent.history.history import Query

KINDS = ("happening", "finding", "quarantine", "job", "agent", "clock")
TIMEOUT_S = 10.0
"""The agent may have to read the whole of it."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add(actions: Any) -> argparse.ArgumentParser:
    """Add the action to those of `guardctl node`."""
    text = "what has happened on this node, and how its parts have been"
    parser: argparse.ArgumentParser = actions.add_parser("history", help=text, description=f"{text.capitalize()}.")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="for programs")
    parser.add_argument("--guard-config", metavar="FILE", default=argparse.SUPPRESS, help="as for guardrun")
    parser.add_argument("--since", metavar="WHEN", default="1d", help="2h, 7d, 2026-11-22T10:00Z (default: 1d)")
    parser.add_argument("--until", metavar="WHEN", default="", help="likewise (default: now)")
    parser.add_argument("--subject", default="", metavar="PART", help="of one part: gpu:, disk:/scratch, job:RUN, cpu")
    parser.add_argument("--name", default="", help="of one name: temperature_c, xid, gpu_ecc")
    parser.add_argument("--what", default="", choices=KINDS, help="of one kind, without samples")
    parser.add_argument("--samples", action="store_true", help="quantities, too (a line a minute and quantity)")
    parser.add_argument("--limit", type=int, default=200, metavar="N", help="the newest N of each (default: 200)")
    parser.set_defaults(run_action=_run)
    return parser


def parse_when(text: str, now_wall_s: float) -> float:
    """`2h` (ago), or a time, as seconds since the epoch. Raises CtlError."""
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS and number.replace(".", "", 1).isdigit():
        return now_wall_s - float(number) * _UNITS[unit]
    try:
        return parse_iso_time(text)
    except ValueError:
        example = "how long ago, as in 90m, 2h or 7d, or a time, as in 2026-11-22T10:00Z"
        raise CtlError(f"{text}: expected {example}") from None


def _run(call: Call) -> int:
    from guardrun.supervisor.agent.history.history import Query

    arguments, now_s = call.arguments, time.time()
    query = Query(
        since_wall_s=parse_when(arguments.since, now_s),
        until_wall_s=parse_when(arguments.until, now_s) if arguments.until else None,
        subject=arguments.subject,
        name=arguments.name,
        what=arguments.what,
        limit=max(1, arguments.limit),
        has_samples=arguments.samples and not arguments.what,
    )
    data = _ask(call, query)
    if call.out.is_json:
        call.out.json(data)
    else:
        _print(call, data)
    return OK


def _ask(call: Call, query: Query) -> dict[str, Any]:
    """From the agent, or from its file where it does not answer. Raises CtlError where there is neither."""
    import sqlite3

    from guardrun.supervisor.agent.history.history import NAME, read_file

    try:
        return ask("history", query._asdict(), timeout_s=TIMEOUT_S)
    except RefusedError as refused:
        raise CtlError(str(refused)) from None
    except Unreachable as error:
        path = _state_dir(call) / NAME
        if not os.access(path, os.R_OK):
            raise CtlError(f"{error}, and there is no history at {path}") from None
        trouble = f"{error}: read from {path}"
    try:
        return {**read_file(path, query), "trouble": trouble}
    except sqlite3.Error as error:
        raise CtlError(f"{path}: {error}") from None


def _state_dir(call: Call) -> Path:
    config = read_config(call, is_written_by=True)
    folders = absolute_folders(config.node.state_dir, config.node.shared_dir, call.cwd)
    return Path(folders.state_dir or SYSTEM_FOLDER)


def _print(call: Call, data: dict[str, Any]) -> None:
    out = call.out
    if data["trouble"]:
        out.line(data["trouble"], "yellow")
    entries = data["entries"]
    rows = [(iso_time(e["wall_s"]), e["what"], e["subject"], e["name"], e["text"]) for e in entries]
    styles = ["red" if e["data"].get("response") == "isolate" else "" for e in entries]
    if rows:
        out.table(("Time", "What", "Part", "Name", "Told"), rows, styles)
    elif not data["samples"]:
        out.line("nothing is known of that time")
    if data["samples"]:
        out.line()
        out.table(
            ("Time", "Part", "Name", "Mean", "Lowest", "Highest"),
            [_cells(sample) for sample in data["samples"]],
        )


def _cells(sample: dict[str, Any]) -> tuple[str, ...]:
    mean, low, high = (_number(sample[key]) for key in ("mean", "low", "high"))
    return iso_time(sample["wall_s"]), sample["subject"], sample["name"], sample["text"] or mean, low, high


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
