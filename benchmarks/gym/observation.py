"""What one case showed under one launcher: read from the script's own log, the launcher's output and its incidents."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gym.patience import Patience


class Entry(msgspec.Struct, frozen=True):
    """A line of the training script's log."""

    what: str
    step: int
    at: float
    """Unix time."""
    attempt: int
    rank: int
    pid: int


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher said about one stop."""

    at: float
    """Unix time."""
    acted_at: float | None = None
    """When something was done about it; None: nothing was, or the launcher does not say."""
    attempt: int = 0
    kind: str = ""
    cause: str = ""
    culprits: list[int] = []
    summary: str = ""
    action: str = ""
    names_line: bool = False


class Observation(msgspec.Struct, kw_only=True):
    """A line of the results; all that scoring needs."""

    case: str
    launcher: str
    repeat: int
    seed: int
    step: int
    """At which the case was planted."""
    date: str
    planted_at: float | None = None
    ended_at: float | None = None
    """When the first rank of attempt 0 had ended, if not before the planting."""
    last_progress_at: float | None = None
    """Of any rank, in attempt 0, before anything was said."""
    steps_before: int = 0
    """The furthest that attempt 0 got."""
    restarted_at: float | None = None
    """The first line of the attempt after it."""
    resumed_step: int | None = None
    recovered_at: float | None = None
    """The first step past steps_before."""
    attempts: int = 1
    told: list[Told] = []
    returncode: int | None = None
    """None: the gym ended it, after cap_s from the planting."""
    cap_s: float = 0.0
    patience: Patience | None = None
    """guardrun's; None: another launcher."""
    stalls: list[str] = []
    """What guardrun reported, and did nothing about, since it ended by itself."""
    left: list[str] = []
    """What was alive after the launcher had ended."""
    load_1m: float = 0.0
    output_tail: str = ""
    trouble: str = ""
    """The case could not be played: why."""


def read_entries(folder: Path) -> list[Entry]:
    """All ranks' lines, in the order of their times; a line cut short by a rank's end is left out."""
    entries = []
    for path in folder.glob("rank-*.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                entries.append(msgspec.json.decode(line, type=Entry))
            except msgspec.DecodeError:
                continue
    return sorted(entries, key=lambda entry: entry.at)


def read_times(seen: Observation, entries: list[Entry]) -> None:
    """Fill in what the script's own log tells. Attempt 0 goes on to its end where it is not ended."""
    planted = next((entry for entry in entries if entry.what == "planted"), None)
    seen.planted_at = planted.at if planted else None
    seen.attempts = 1 + max((entry.attempt for entry in entries), default=0)
    steps = [entry for entry in entries if entry.what == "step"]
    noticed_at = min((told.at for told in seen.told), default=float("inf"))
    before = [entry for entry in steps if entry.attempt == 0 and (seen.attempts > 1 or entry.at <= noticed_at)]
    seen.steps_before = max((entry.step for entry in before), default=0)
    seen.last_progress_at = max((entry.at for entry in before), default=None)
    later = [entry for entry in entries if entry.attempt > 0]
    seen.restarted_at = min((entry.at for entry in later), default=None)
    resumed = [entry.step for entry in later if entry.what == "resumed"]
    seen.resumed_step = resumed[0] if resumed else None
    seen.recovered_at = next((e.at for e in steps if e.step > seen.steps_before and e.at > noticed_at), None)
    if seen.recovered_at is None and seen.attempts > 1:
        seen.recovered_at = next((e.at for e in steps if e.step > seen.steps_before and e.attempt > 0), None)


def find_line(marker: str, scripts: list[Path]) -> str:
    """FILE:LINE of the comment `# here: MARKER`. Raises ValueError unless it is there once."""
    wanted = re.compile(rf"# here: {re.escape(marker)}(?:\s|$)")
    found = [
        f"{script.name}:{number}"
        for script in scripts
        for number, line in enumerate(script.read_text().splitlines(), 1)
        if wanted.search(line)
    ]
    if len(found) != 1:
        raise ValueError(f"# here: {marker} is marked {len(found)} times")
    return found[0]


def read_incidents(runs: Path, line: str) -> list[Told]:
    """What guardrun wrote, in order."""
    found = []
    for path in sorted(runs.glob("latest/incidents/*/incident.json")):
        incident = json.loads(path.read_text())
        found.append(told_by_incident(incident, line))
    return found


def read_stalls(runs: Path) -> list[str]:
    """What it reported, and saw end by itself; empty where it wrote no summary."""
    path = runs / "latest" / "summary.json"
    return [stall["summary"] for stall in json.loads(path.read_text()).get("stalls", [])] if path.exists() else []


def told_by_stall(stall: dict[str, Any], now_s: float) -> Told:
    """What `guardctl status --json` says of a stall that is reported, in the gym's words. now_s: Unix time."""
    return Told(
        at=now_s - stall["told_s_ago"],
        kind="hang",
        cause=stall["cause"],
        culprits=[one["rank"] for one in stall["who"]],
        summary=stall["summary"],
        action="none",
    )


def told_by_incident(incident: dict[str, Any], line: str) -> Told:
    """An incident.json in the gym's words."""
    words = str([incident["summary"], incident["evidence"], incident["advice"]])
    return Told(
        at=parse_time(incident["detected"]),
        acted_at=acted_at(incident),
        attempt=incident["attempt"],
        kind=incident["kind"],
        cause=incident["cause"],
        culprits=[culprit["rank"] for culprit in incident["culprits"]],
        summary=incident["summary"],
        action=incident["action"],
        names_line=bool(line) and names_line(words, line),
    )


def acted_at(incident: dict[str, Any]) -> float | None:
    """Unix time at which something was done. A crash has no such time of its own: it is acted on as it is told."""
    if incident["action"] == "none":
        return None
    at = incident.get("acted") or (incident["detected"] if incident["kind"] != "hang" else None)
    return parse_time(at) if at else None


def parse_time(text: str) -> float:
    """Unix time of an incident's ISO time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def names_line(text: str, line: str) -> bool:
    """Say whether FILE:LINE is in there, as guardrun or a traceback writes it."""
    file, _, number = line.rpartition(":")
    return bool(re.search(rf"\b{re.escape(file)}(?::|\", line ){number}\b", text))
