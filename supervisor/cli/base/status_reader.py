"""How a run is doing: from its supervisor, else from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guardrun.supervisor.cli.base.verb import is_alive, read_run
from guardrun.supervisor.client.supervisor_client import Unreachable, ask
from guardrun.supervisor.report.run_record import read_incidents, recorded_status, short_incident
from guardrun.supervisor.rundir.run_directory import RunFile

OVER = ("ended", "unfinished")
"""States of a run that goes on no more."""


def read_status(run_dir: Path, node: str) -> dict[str, Any]:
    """The status, with `run_dir`, `source` (supervisor or directory) and `why` (no supervisor answered).

    Raises CtlError where there is no run.
    """
    run = read_run(run_dir)
    alive = is_alive(run, node)
    why = "the run is over"
    if alive is not False:
        try:
            data = ask_status(run, run_dir)
            # Short on the wire; their folders and times are here anyway.
            known = [short_incident(record) for record in read_incidents(run_dir)]
            extra = {"run_dir": str(run_dir), "source": "supervisor", "why": "", "summary": None}
            return {**data, "incidents": known or data.get("incidents", []), **extra}
        except Unreachable as error:
            why = str(error)
    return read_recorded_status(run_dir, run, alive, why)


def ask_status(run: RunFile, run_dir: Path) -> dict[str, Any]:
    """What the supervisor says. Raises Unreachable, also where it says no."""
    answer = ask(run, run_dir, "status")
    if not answer.is_ok:
        raise Unreachable(answer.error)
    return answer.data


def read_recorded_status(run_dir: Path, run: RunFile, alive: bool | None, why: str) -> dict[str, Any]:
    """What the folder says, with the same keys. alive: as is_alive has it; why: nobody could be asked."""
    if (run_dir / "summary.json").is_file():
        state = "ended"
    else:
        state = "unfinished" if alive is False else "unreachable"
    if state == "ended":
        why = "the run is over"
    elif state == "unfinished":
        why = "its guardrun is gone, and no summary was written; the same --guard-run-id continues it"
    elif alive is None:
        why = f"{run.node} leads it, which is another node: ask there ({why})"
    return {**recorded_status(run_dir, run, state), "run_dir": str(run_dir), "source": "directory", "why": why}
