"""What is on disk of a run as a whole: summary.json, and what tells of it when no supervisor answers.

summary.json: what became of the run, and where its time went. While there is none, the journal has the last word on
everything.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import MAX_READ_BYTES, open_own, read_own, write_own
from guardrun.supervisor.engine.model.actions import Summary
from guardrun.supervisor.report.elements.quantities import iso_time
from guardrun.supervisor.report.incident import encode, incident_folders
from guardrun.supervisor.rundir.run_directory import RunFile

JOURNAL = "events.jsonl"
FIND_S = 2.0
"""A checkpoint is looked for so long at most: its file system may be what the run has died of."""

SCHEMA = 1
_TIMES = ("started", "ended")


class _Rank(msgspec.Struct, kw_only=True):
    global_rank: int
    local_rank: int
    pid: int
    node: str
    step: int = 0
    phase: str = ""
    state: str = ""
    exitcode: int | None = None
    progress_s: float = 0.0


class Recorded(msgspec.Struct, kw_only=True):
    """The run as its journal leaves it."""

    last_s: float = 0.0
    world_size: int = 0
    attempt: int | None = None
    ranks: dict[int, _Rank] = {}
    is_held: bool = False
    checkpoint: dict[str, Any] | None = None
    saved: tuple[float, int] | None = None
    """Where the checkpoint is told as a rank wrote it: when, and the file's inode (0: not known)."""

    def apply_event(self, event: dict[str, Any]) -> None:
        """Learn from one event of the journal. Events whose meaning doesn't show in a status are passed over."""
        match event.get("type"):
            case "run_opened" | "run_continued":
                # Of several nodes, this is the head's share alone.
                if not (self.world_size and event.get("fleet")):
                    self.world_size = event.get("world_size", 0)
            case "attempt_started":
                self.attempt = event["attempt"]
                self.ranks = {rank["global_rank"]: msgspec.convert(rank, known_type(_Rank)) for rank in event["ranks"]}
                self.world_size = len(self.ranks)
            case "node_report":
                for report in event["ranks"]:
                    self._take_report(report)
            case "rank_exited":
                if event["global_rank"] in self.ranks:
                    self.ranks[event["global_rank"]].exitcode = event["exitcode"]
            case "attempt_stopped":
                for number, exitcode in event["exitcodes"].items():
                    if int(number) in self.ranks:
                        self.ranks[int(number)].exitcode = exitcode
            case "checkpoint_saved":
                self.checkpoint = {"path": event["path"], "step": event["step"]}
                self.saved = self.last_s, event.get("inode", 0)
            case "checkpoint_loaded":
                self.checkpoint, self.saved = {"path": event["path"], "step": event["step"]}, None
            case "checkpoint_chosen" | "checkpoint_secured":
                if found := event.get("checkpoint"):
                    self.checkpoint, self.saved = {"path": found["path"], "step": found["step"]}, None
            case "hold_set":
                self.is_held = event["is_held"]

    def _take_report(self, report: dict[str, Any]) -> None:
        rank = self.ranks.get(report["global_rank"])
        if rank is not None:
            rank.step = report.get("step", rank.step)
            rank.phase = report.get("phase", rank.phase)
            rank.state = report.get("state", "S")
            rank.progress_s = report.get("progress_s", rank.progress_s)


def read_recorded(run_dir: Path) -> Recorded:
    """Read the journal, the file before the last rotation too. Lines that are torn or strange are passed over."""
    recorded = Recorded()
    for name in (f"{JOURNAL}.1", JOURNAL):
        try:
            with open(open_own(run_dir / name, is_anybodys=True), "rb") as file:
                for line in file:
                    _take_line(recorded, line)
        except OSError:
            continue
    return recorded


def last_checkpoint(recorded: Recorded, run: RunFile) -> dict[str, Any] | None:
    """Under the name that it has by now: scripts write under another one, and rename."""
    if recorded.checkpoint is None or recorded.saved is None:
        return recorded.checkpoint
    path, (at_s, inode) = recorded.checkpoint["path"], recorded.saved
    names = [path]

    def find() -> None:
        # Here, for it takes as long to import as the rest of guardctl.
        from guardrun.supervisor.checkpoints.saved import find_saved

        names.append(find_saved(path, run.created_wall_s + at_s, inode)[0])

    thread = threading.Thread(target=find, daemon=True)
    thread.start()
    thread.join(FIND_S)
    return {**recorded.checkpoint, "path": names[-1]}


def _take_line(recorded: Recorded, line: bytes) -> None:
    try:
        entry = msgspec.json.decode(line)
        recorded.last_s = max(recorded.last_s, float(entry.get("t", 0.0)))
        recorded.apply_event(entry.get("event") or {})
    except (msgspec.DecodeError, msgspec.ValidationError, AttributeError, KeyError, TypeError, ValueError):
        return


def read_json(path: Path, limit: int = MAX_READ_BYTES) -> dict[str, Any] | None:
    """A JSON object of a run's folder, or None where there is none that can be read. limit: bytes."""
    try:
        data = json.loads(read_own(path, is_anybodys=True, limit=limit))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def read_incidents(run_dir: Path) -> list[dict[str, Any]]:
    """Every incident.json of a run, oldest first, each with its `folder`."""
    return list(iterate_incidents(run_dir))


def iterate_incidents(run_dir: Path, limit: int = MAX_READ_BYTES) -> Iterator[dict[str, Any]]:
    """The same, each read when it is asked for. limit: bytes of each."""
    for folder in incident_folders(run_dir):
        record = read_json(folder / "incident.json", limit)
        if record is not None:
            yield {**record, "folder": str(folder)}


def short_incident(record: dict[str, Any]) -> dict[str, Any]:
    """An incident as lists show it: without evidence and advice."""
    keys = ("id", "attempt", "kind", "cause", "confidence", "summary", "culprits", "onset", "detected")
    return {key: record.get(key) for key in (*keys, "acted", "step", "action", "resumed_from", "recovered", "folder")}


def recorded_status(run_dir: Path, run: RunFile, state: str) -> dict[str, Any]:
    """The same keys as the supervisor's own answer; what only a living run has is null."""
    recorded = read_recorded(run_dir)
    summary = read_json(run_dir / "summary.json")
    incidents = [short_incident(record) for record in read_incidents(run_dir)]
    ended = summary or {}
    return {
        "run_id": run.run_id,
        "state": state,
        "attempt": recorded.attempt,
        "world_size": recorded.world_size or len(recorded.ranks),
        "node": run.node,
        "uptime_s": ended.get("wall_s", round(recorded.last_s, 3)),
        "held": recorded.is_held,
        "stall": None,
        "ranks": [_rank(rank) for _, rank in sorted(recorded.ranks.items())],
        "incidents": incidents,
        "restarts": ended.get("restarts", recorded.attempt or 0),
        "goodput": ended.get("goodput"),
        "checkpoint": last_checkpoint(recorded, run),
        "summary": summary,
    }


def _rank(rank: _Rank) -> dict[str, Any]:
    return {
        "global_rank": rank.global_rank,
        "local_rank": rank.local_rank,
        "pid": rank.pid,
        "node": rank.node,
        "state": rank.state or "?",
        "exitcode": rank.exitcode,
        "step": rank.step,
        "step_time_s": None,
        "loss": None,
        "grad_norm": None,
        "learning_rate": None,
        "left_out": None,
        "phase": rank.phase,
        "last_beat_s": None,
        "last_progress_s": None,
        "hooks": None,
    }


def summary_json(
    summary: Summary,
    run: RunFile,
    wall: Callable[[float], float],
    *,
    shares: dict[str, Any] | None = None,
    opened_s: float = 0.0,
) -> dict[str, Any]:
    """summary.json. wall turns the engine's seconds into seconds since the epoch; shares: RankMessageIngest.shares().

    opened_s: from when on wall_s counts, which the pre-flight comes before.
    """
    return {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "node": run.node,
        "outcome": summary.outcome,
        "exit_code": summary.exit_code,
        "reason": summary.reason,
        "started": iso_time(wall(opened_s)),
        "ended": iso_time(wall(opened_s + summary.wall_s)),
        "wall_s": round(summary.wall_s, 3),
        "goodput": round(summary.goodput, 4),
        "lost_s": {use: round(seconds, 3) for use, seconds in summary.lost_s.items()},
        "restarts": summary.restarts,
        "last_step": summary.last_step,
        **({"spike_score": summary.spike_score} if summary.spike_score else {}),
        **({"requeue": summary.requeue} if summary.requeue else {}),
        **({"resumes": summary.resumes} if summary.resumes else {}),
        **({"may_go_on": True} if summary.may_go_on else {}),
        **({"left_out": msgspec.to_builtins(summary.left_out, str_keys=True)} if summary.left_out else {}),
        "attempts": [_attempt(attempt, wall) for attempt in summary.attempts],
        "incidents": msgspec.to_builtins(summary.incidents, str_keys=True),
        "stalls": msgspec.to_builtins(summary.stalls, str_keys=True),
        **({"notes": [_note(note, wall) for note in summary.notes]} if summary.notes else {}),
        **({"shares": shares} if shares else {}),
    }


def _note(note: dict[str, Any], wall: Callable[[float], float]) -> dict[str, Any]:
    """The engine's, its time as a time."""
    plain: dict[str, Any] = msgspec.to_builtins(note, str_keys=True)
    plain["told"] = iso_time(wall(plain.pop("at_s")))
    return plain


def _attempt(attempt: dict[str, Any], wall: Callable[[float], float]) -> dict[str, Any]:
    """The engine's record, its times as times."""
    plain: dict[str, Any] = msgspec.to_builtins(attempt, str_keys=True)
    for name in _TIMES:
        seconds = plain.get(f"{name}_s")
        if isinstance(seconds, (int, float)):
            plain[name] = iso_time(wall(seconds))
    return plain


def write_summary(
    run_dir: Path,
    summary: Summary,
    run: RunFile,
    wall: Callable[[float], float],
    *,
    shares: dict[str, Any] | None = None,
    opened_s: float = 0.0,
) -> Path:
    """Write summary.json and answer where it is. Raises OSError."""
    path = run_dir / "summary.json"
    write_own(path, encode(summary_json(summary, run, wall, shares=shares, opened_s=opened_s)))
    return path
