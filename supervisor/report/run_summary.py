"""summary.json: what became of a run, and where its time went."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.own_files import write_own
from guardrun.supervisor.engine.model.actions import Summary
from guardrun.supervisor.report.elements.quantities import iso_time
from guardrun.supervisor.report.incident import encode
from guardrun.supervisor.rundir.run_directory import RunFile

SCHEMA = 1
_TIMES = ("started", "ended")


def summary_json(
    summary: Summary,
    run: RunFile,
    wall: Callable[[float], float],
    *,
    shares: dict[str, Any] | None = None,
    opened_s: float = 0.0,
) -> dict[str, Any]:
    """summary.json. wall turns the engine's seconds into seconds since the epoch; shares: Desk.shares().

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
        **({"requeue": summary.requeue} if summary.requeue else {}),
        **({"resumes": summary.resumes} if summary.resumes else {}),
        **({"may_go_on": True} if summary.may_go_on else {}),
        "attempts": [_attempt(attempt, wall) for attempt in summary.attempts],
        "incidents": msgspec.to_builtins(summary.incidents, str_keys=True),
        "stalls": msgspec.to_builtins(summary.stalls, str_keys=True),
        **({"shares": shares} if shares else {}),
    }


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
