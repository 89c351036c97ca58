"""A run's incidents in short, each file read again only when it has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guardrun.supervisor.cli.base.watching import stamp_of
from guardrun.supervisor.report.incident import incident_folders
from guardrun.supervisor.report.run_record import read_json, short_incident

MAX_INCIDENTS = 200
"""The newest."""
MAX_BYTES = 16 << 20
"""Of incident.json."""
MAX_TEXT = 4000


class IncidentShelf:
    """Those of one run; one thread at a time."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[str, tuple[object, dict[str, Any]]] = {}

    def read(self) -> list[dict[str, Any]]:
        """The newest first."""
        found: dict[str, tuple[object, dict[str, Any]]] = {}
        for folder in incident_folders(self._run_dir)[-MAX_INCIDENTS:]:
            stamp = stamp_of(folder / "incident.json")
            known = self._known.get(folder.name)
            if known is not None and known[0] == stamp:
                found[folder.name] = known
            elif (record := read_json(folder / "incident.json", MAX_BYTES)) is not None:
                found[folder.name] = stamp, _shown(folder, record)
        self._known = found
        return [shown for _, shown in reversed(found.values())]


def _shown(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    short = short_incident(record)
    del short["folder"]
    culprits = short["culprits"] if isinstance(short["culprits"], list) else []
    return {
        **{key: _bounded(value) for key, value in short.items()},
        "culprits": [
            {key: _bounded(one.get(key)) for key in ("rank", "node", "pid", "gpu")}
            for one in culprits[:64]
            if isinstance(one, dict)
        ],
        "advice": _bounded(record.get("advice")),
        "name": folder.name,
        "has_page": (folder / "report.html").is_file(),
    }


def _bounded(value: object) -> object:
    """Of what a record may hold, what a page shows: numbers, and text of some length."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, dict):
        return {"step": _bounded(value.get("step")), "path": _bounded(value.get("path"))}
    return value if isinstance(value, (int, float)) else None
