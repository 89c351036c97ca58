"""`guardctl incidents` and `guardctl show`: what happened in a run, and one incident of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import (
    OK,
    Call,
    CtlError,
    Verb,
    add_run_argument,
    add_run_option,
    named_run,
    read_run,
)
from guardrun.supervisor.cli.views.diagnosis_view import incidents_view, print_stacks
from guardrun.supervisor.report.elements import evidence_reader as ev
from guardrun.supervisor.report.elements.stored_stacks import read_stacks
from guardrun.supervisor.report.incident import STACKS
from guardrun.supervisor.report.run_record import read_incidents, read_json, short_incident


def _list(call: Call) -> int:
    run_dir = named_run(call)
    run = read_run(run_dir)
    records = [short_incident(record) for record in read_incidents(run_dir)]
    if call.out.is_json:
        call.out.json({"run_id": run.run_id, "run_dir": str(run_dir), "incidents": records})
    elif not records:
        call.out.line(f"no incidents in run {run.run_id}")
    else:
        call.out.print(incidents_view(call.out, records))
        call.out.line(f"times are UTC; guardctl show ID tells more; reports: {run_dir / 'incidents'}", "dim")
    return OK


INCIDENTS = Verb("incidents", "what happened in a run", add_run_argument, _list)


# One of them --------------------------------------------------------------------------------------------------------


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("incident", metavar="INCIDENT", help="its number (001 or 1), its folder, or last")
    add_run_option(parser)
    parser.add_argument("--full", action="store_true", help="library frames too")


def _show(call: Call) -> int:
    name: str = call.arguments.incident
    path = call.cwd / name
    folder = path.parent if path.name == "incident.json" else path
    if "/" in name or (folder / "incident.json").is_file():
        found = read_json(folder / "incident.json")
        if found is None:
            raise CtlError(f"no incident in {folder}: no incident.json that can be read")
        record = {**found, "folder": str(folder.resolve())}
    else:
        record = find_incident(named_run(call), name)
    if call.out.is_json:
        call.out.json(record)
    else:
        print_incident(call.out, record, call.arguments.full)
    return OK


def find_incident(run_dir: Path, name: str) -> dict[str, Any]:
    """A run's incident, with its `folder`. name: its number (001 or 1), its folder's name, or last. Raises CtlError."""
    records = read_incidents(run_dir)
    if name == "last" and records:
        return records[-1]
    number = name.split("-", 1)[0]
    for record in records:
        if number.isdecimal() and str(record.get("id", "")).isdecimal() and int(record["id"]) == int(number):
            return record
    known = ", ".join(str(record.get("id")) for record in records)
    there = f"there are: {known}" if records else "it has none"
    raise CtlError(f"no incident {name} in run {run_dir.name}; {there}")


def print_incident(out: Output, record: dict[str, Any], is_full: bool) -> None:
    """Print it for a person, library frames too where is_full."""
    evidence = record.get("evidence") or {}
    culprits = ev.culprit_ranks(record)
    out.line(str(record.get("summary", "")), "bold")
    out.line()
    out.table(("", ""), _facts(record))
    if record.get("advice"):
        out.line()
        out.line(str(record["advice"]))
    rows = ev.rank_rows(evidence, culprits)
    if rows:
        headings = ("Does", *(heading for heading, _ in ev.COLUMNS))
        cells = [[row.rank_words, *(row.cells.get(heading, "") for heading in headings)] for row in rows]
        out.line()
        out.table(("Rank", *headings), cells, ["red" if row.is_culprit else "" for row in rows])
    for heading, text in ev.tracebacks(evidence):
        out.line()
        out.line(heading or "Traceback", "bold")
        out.line(text)
    stacks = read_stacks(Path(record["folder"]) / STACKS) or ev.evidence_stacks(evidence)
    if stacks:
        out.line()
        print_stacks(out, stacks, culprits, is_full)
    out.line()
    out.line(f"report: {Path(record['folder']) / 'report.html'}", "dim")


def _culprit(culprit: dict[str, Any]) -> str:
    if culprit["rank"] is None:
        return str(culprit["node"])
    return f"rank {culprit['rank']} on {culprit['node']}, pid {culprit['pid']}"


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    resumed = record.get("resumed_from")
    nobody = "none named" + (f": {why}" if (why := (record.get("evidence") or {}).get("why_no_culprit")) else "")
    culprits = "; ".join(map(_culprit, record.get("culprits", [])))
    facts = [
        ("incident", f"{record.get('id')} of run {record.get('run_id')}, attempt {record.get('attempt')}"),
        ("cause", f"{record.get('kind')} {record.get('cause')}, {record.get('confidence', 0):.0%} sure"),
        ("culprits", culprits or nobody),
        ("began", str(record.get("onset", ""))),
        ("detected", str(record.get("detected", ""))),
        ("step", "" if record.get("step") is None else str(record["step"])),
        ("action", str(record.get("action", "")).replace("_", " ")),
        ("resumed from", f"step {resumed['step']}, {resumed['path']}" if resumed else ""),
        ("data", ev.data_words(record)),
        ("recovered", str(record.get("recovered") or "no")),
    ]
    return [(name, value) for name, value in facts if value]


SHOW = Verb("show", "one incident", _add_arguments, _show)
