"""When each finding began, kept over a restart of the agent.

A judge that starts anew dates what it finds from its own start. A person may have released the node since the finding
really began; for their word to hold, the agent remembers.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from guardrun.supervisor.base.background_writer import BackgroundWriter
from guardrun.supervisor.base.own_files import write_file
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.health.base.findings import Finding

NAME = "findings.json"
TAKEN_UP_S = 600.0
"""A finding of the last agent that does not come back within this time is over."""
MAX_FINDINGS = 4096


class FindingStartTimes:
    """Wall times at which the findings that hold began, by id."""

    def __init__(self, folder: Path, scribe: BackgroundWriter) -> None:
        self._path = folder / NAME
        self._scribe = scribe
        self._holding: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._began_s = 0.0

    def load(self, now_s: float) -> None:
        """Take up what the last agent left; nothing where that can't be read."""
        self._began_s = now_s
        try:
            self._before = msgspec.json.decode(self._path.read_bytes(), type=dict[str, float])
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            self._before = {}

    def take(self, finding: Finding, now_s: float, wall_s: float) -> float:
        """Note a finding as it begins, changes or ends; answers the wall time at which it began."""
        since_wall_s = wall_s - max(0.0, now_s - finding.since_s)
        if now_s - self._began_s <= TAKEN_UP_S:
            since_wall_s = min(since_wall_s, self._before.get(finding.id, since_wall_s))
        if finding.is_over:
            self._before.pop(finding.id, None)
            began = self._holding.pop(finding.id, since_wall_s)
            self._save()
            return began
        if finding.id not in self._holding and len(self._holding) < MAX_FINDINGS:
            self._holding[finding.id] = since_wall_s
            self._save()
        return self._holding.get(finding.id, since_wall_s)

    def _save(self) -> None:
        data = encode_json(self._holding)
        self._scribe.put(lambda: write_file(self._path, data))
