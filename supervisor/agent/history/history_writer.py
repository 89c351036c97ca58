"""The history, written on a thread of its own: a disk that is full, slow or gone costs the agent its memory alone.

Beside it, when each finding began, kept over a restart.

The loop hands points and entries over and goes on; what can't be written is kept while there is room and then dropped,
counted. A trouble is told when it begins and when it is over, not each time.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.agent.history.downsampling import Point
from guardrun.supervisor.agent.history.history import NAME, Entry, History, Query, SpoiltError, is_spoilt, set_aside
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import write_file
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.health.base.findings import Finding

MAX_WAITING = 20_000
RETRY_S = 30.0
LogLine = Callable[..., None]
"""log.info's and log.warning's shape: an event's name, and fields."""


class HistoryWriter:
    """Writes and reads the history on the background writer's thread."""

    def __init__(
        self, folder: Path, writer: BackgroundWriter, log_line: LogLine, max_bytes: int, retry_s: float = RETRY_S
    ) -> None:
        """writer: whose thread does the work; log_line: called from there."""
        self._path = folder / NAME
        self._log_line = log_line
        self._max_bytes = max_bytes
        self._retry_s = retry_s
        self._history: History | None = None
        self._next_try_s = 0.0
        self._points: deque[Point] = deque(maxlen=MAX_WAITING)
        self._entries: deque[Entry] = deque(maxlen=MAX_WAITING)
        self._lock = threading.Lock()
        self._writer = writer
        self.trouble = ""
        """Why nothing is written; empty while it is."""
        self.lost = 0

    def put(self, points: list[Point], entries: list[Entry]) -> None:
        """Have this written. Never waits."""
        with self._lock:
            over = len(self._points) + len(points) - MAX_WAITING, len(self._entries) + len(entries) - MAX_WAITING
            self.lost += sum(max(0, count) for count in over)
            self._points.extend(points)
            self._entries.extend(entries)
        self._writer.put(self._write)

    def ask(self, query: Query, answer: Callable[[dict[str, Any]], None]) -> bool:
        """Have a query answered, in that thread; False where too much waits already."""
        return self._writer.put(lambda: answer(self._read(query)))

    def status(self) -> dict[str, Any]:
        """`path`, `trouble` (empty: none) and `lost`: points, entries and writes that were dropped."""
        return {"path": str(self._path), "trouble": self.trouble, "lost": self.lost + self._writer.dropped}

    def close(self) -> None:
        """Write what is still waiting; closing waits for that as long as the disk is patient."""
        self._writer.put(self._finish)

    def _finish(self) -> None:
        self._next_try_s = 0.0
        self._write()
        if self._history is not None:
            self._history.close()

    def _write(self) -> None:
        if not self._ensure_open():
            return
        assert self._history is not None
        with self._lock:
            points, entries = list(self._points), list(self._entries)
            self._points.clear()
            self._entries.clear()
        if not points and not entries:
            return
        try:
            self._history.write(points, entries)
        except sqlite3.Error as error:
            self._keep(points, entries)
            self._failed(error)
        else:
            self._worked()

    def _read(self, query: Query) -> dict[str, Any]:
        if not self._ensure_open():
            return {"trouble": self.trouble or "the history is not open", "samples": [], "entries": []}
        assert self._history is not None
        try:
            return {"trouble": self.trouble, **self._history.read(query), "rows": self._history.count()}
        except sqlite3.Error as error:
            self._failed(error)
            return {"trouble": self.trouble, "samples": [], "entries": []}

    def _ensure_open(self) -> bool:
        now_s = time.monotonic()
        if self._history is None or self.trouble:
            if now_s < self._next_try_s:
                return False
            self._next_try_s = now_s + self._retry_s
        if self._history is None:
            self._open()
        return self._history is not None

    def _open(self) -> None:
        try:
            self._history = History(self._path, max_bytes=self._max_bytes)
        except SpoiltError as error:
            self._set_aside(str(error))
        except (sqlite3.Error, OSError) as error:
            self._failed(error)

    def _set_aside(self, why: str) -> None:
        try:
            aside = set_aside(self._path)
            self._history = History(self._path, max_bytes=self._max_bytes)
        except (SpoiltError, sqlite3.Error, OSError) as error:
            self._failed(error)
            return
        self._log_line("history_set_aside", why=why, path=str(aside))
        text = f"the history before this could not be read ({why}); it is kept as {aside.name}"
        self._entries.appendleft(Entry(time.time(), "agent", "node", "history_set_aside", text))

    def _failed(self, error: Exception) -> None:
        if self._history is not None and is_spoilt(error):
            self._history.close()
            self._history = None
            self._set_aside(str(error))
            return
        if not self.trouble:
            self._log_line("history_trouble", why=str(error), path=str(self._path))
        self.trouble = str(error)

    def _worked(self) -> None:
        if self.trouble:
            self.trouble = ""
            self._log_line("history_again", path=str(self._path))

    def _keep(self, points: list[Point], entries: list[Entry]) -> None:
        """Put back what was not written, as far as there is room beside what has come since."""
        with self._lock:
            pairs: tuple[tuple[deque[Any], list[Any]], ...] = ((self._points, points), (self._entries, entries))
            for waiting, back in pairs:
                room = MAX_WAITING - len(waiting)
                self.lost += max(0, len(back) - room)
                waiting.extendleft(reversed(back[-room:] if room else []))


# Finding start times ------------------------------------------------------------------------------------------------
# When each finding began, kept over a restart of the agent.
#
# A judge that starts anew dates what it finds from its own start. A person may have released the node since the finding
# really began; for their word to hold, the agent remembers.


START_TIMES_NAME = "findings.json"
TAKEN_UP_S = 600.0
"""A finding of the last agent that does not come back within this time is over."""
MAX_FINDINGS = 4096


class FindingStartTimes:
    """Wall times at which the findings that hold began, by id."""

    def __init__(self, folder: Path, writer: BackgroundWriter) -> None:
        self._path = folder / START_TIMES_NAME
        self._writer = writer
        self._holding: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._began_s = 0.0

    def load(self, now_s: float) -> None:
        """Take up what the last agent left; nothing where that can't be read."""
        self._began_s = now_s
        try:
            self._before = msgspec.json.decode(self._path.read_bytes(), type=known_type(dict[str, float]))
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            self._before = {}

    def note_finding(self, finding: Finding, now_s: float, wall_s: float) -> float:
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
        self._writer.put(lambda: write_file(self._path, data))
