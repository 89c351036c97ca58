"""When a rank's flight recorder may be asked for what, and asking it: reading harms nothing.

To say which calls are pending, the recorder of a device's calls asks the device, from a thread without one. That breaks
a graph's capture, may read an event that the watchdog has just freed (pytorch 192232), and never returns where the
device does not. So its numbers come first, which ask nothing of the device, and its entries only where

- the look before found the same numbers, and the rank's hooks have counted nothing since: no event is about to go;
- no capture is under way, and none begins meanwhile (hooks/patches/graph_capture.py);
- torch itself has a watchdog (no TORCH_NCCL_BLOCKING_WAIT), and the device answered when it was asked last.

The recorder of host backends has no events: it is asked at once.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple, Protocol

import msgspec

from guardrun.hooks.wire.board import MAGIC, Field, Milestone
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.collect.collectives.calls_page import CallsPage
from guardrun.supervisor.collect.collectives.dump_pipe import dump_by_pipe
from guardrun.supervisor.collect.collectives.flight_recorder import (
    Trace,
    TraceError,
    merge_traces,
    parse_counts,
    parse_trace,
)
from guardrun.supervisor.collect.collectives.worker_server import find_obstacle, request
from guardrun.supervisor.engine.observation.device_counts import Counts, is_still

FETCH_S = 1.0
"""For all that is asked of one server."""
PIPE_S = 3.0
"""For a dump by torch's pipe: its monitor looks there once a second."""
PIPE_EVERY_S = 20.0
"""Each leaves a line on the rank's stderr: one serves for so long, while nothing moves."""
SERVER_S = 1.6
"""For a server to be started: the hooks' thread sees that it is wanted once a second."""
HEART_STALE_NS = 3_000_000_000
LEAST_GAP_S = 0.3
"""Between two observations that are compared: torch's watchdog counts every 100 ms."""
HOST, DEVICE = "fr_trace_json", "dump_nccl_trace_json"
"""What the server calls the recorders: of all backends but NCCL, and of NCCL. Separate memories."""
WITHOUT_ENTRIES = "?includecollectives=false"

FIRST = "its numbers alone are known: it had not been looked at before"
MOVED = "its numbers alone are known: they have changed since the look before"
CAPTURING = "a graph is being captured: its device is not asked"
SILENT = "its device did not answer the flight recorder: it is not asked again"
NOT_YET = "torch's worker server is not there yet"
GIL_HELD = "the GIL is held, and torch's worker server had not been started before"


class RankBoard(Protocol):
    """A rank's board, from outside."""

    def read(self) -> list[int] | None:
        """All words, indexed by Field; None where there is no board."""

    def write(self, field: Field, value: int) -> None:
        """Set one of the words that the supervisor writes."""


class Observation(NamedTuple):
    """What two looks at a rank compare."""

    at_s: float
    """Monotonic."""
    pid: int
    hooks: tuple[int, ...]
    """What its hooks have counted."""
    counts: Counts


class Reading(NamedTuple):
    """What a rank's recorders have told."""

    trace: Trace | None = None
    """None: no entries."""
    counts: dict[str, list[int]] = {}  # noqa: RUF012
    trouble: str = ""
    """Why it says less than it might."""
    is_read: bool = False
    """What a device does is known, or will be as soon as two looks agree."""


def why_no_entries(before: Observation | None, now: Observation) -> str:
    """Why nobody should ask for entries now; empty where two looks agree that nothing moves."""
    if before is None or before.pid != now.pid:
        return FIRST
    if before.hooks != now.hooks or not is_still(before.counts, now.counts):
        return MOVED
    return ""


def observe_hooks(words: list[int]) -> tuple[int, ...]:
    """What moves in a rank that trains, as its board has it; a check of its peers' health is none of it."""
    return tuple(words[field] for field in (Field.COLLECTIVES, Field.GROUP_SEQ, Field.GROUPS, Field.PULSES))


class RecorderReader:
    """Of one rank's process, over all looks; any thread may read, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Observation | None = None
        self._before: Observation | None = None
        self._has_waited = False
        self._silent = ""
        self._dump: tuple[float, Reading] | None = None
        self._pid = 0

    def ask_for_server(self, words: list[int], board: RankBoard) -> None:
        """Have the hooks start torch's worker server, if it is not there; nothing is waited for."""
        if words[Field.MAGIC] == MAGIC and not words[Field.SERVER_ASKED]:
            board.write(Field.SERVER_ASKED, 1)

    def wait_for_server(self, board: RankBoard, limit_s: float) -> None:
        """Wait until the hooks have answered: once, and not where they can't."""
        deadline = time.monotonic() + min(SERVER_S, limit_s)
        while (words := board.read()) is not None and self._may_answer(words) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._has_waited = True

    def _may_answer(self, words: list[int]) -> bool:
        is_open = words[Field.SERVER_ASKED] != words[Field.SERVER_GIVEN] and words[Field.GROUPS] > 0
        is_alive = words[Field.HEART_NS] > 0 and not words[Field.MILESTONES] & Milestone.ENDED
        return is_open and is_alive and not is_heart_stale(words) and not self._has_waited

    def read(self, pid: int, board: RankBoard, page: CallsPage, socket: str, limit_s: float) -> Reading:
        """Ask the recorders of process pid for what may be asked. Takes limit_s at most. Raises TraceError."""
        deadline = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=max(0.0, limit_s)):
            raise TraceError("another look is reading the flight recorder")
        try:
            if pid != self._pid:
                self._pid, self._last, self._before, self._silent, self._dump = pid, None, None, "", None
            words = board.read()
            if words is None:
                raise TraceError("no hooks in this rank")
            if page.recorder_fd >= 0:
                return self._by_server(words, board, page, socket, min(deadline, time.monotonic() + FETCH_S))
            if page.pipe:
                return self._by_pipe(words, board, page, min(deadline, time.monotonic() + PIPE_S))
            is_awaited = words[Field.SERVER_ASKED] != words[Field.SERVER_GIVEN] and words[Field.GROUPS] > 0
            reason = (GIL_HELD if is_heart_stale(words) else NOT_YET) if is_awaited else ""
            return Reading(trouble=page.recorder_trouble or reason)
        finally:
            self._lock.release()

    def _observe(self, words: list[int], counts: Counts) -> str:
        """Note what there is to see now, and answer why_no_entries."""
        now = Observation(time.monotonic(), self._pid, observe_hooks(words), counts)
        if self._last is not None and now.at_s - self._last.at_s >= LEAST_GAP_S:
            self._before = self._last
        if self._last is None or now.at_s - self._last.at_s >= LEAST_GAP_S or why_no_entries(self._last, now):
            self._last = now
        return why_no_entries(self._before, now)

    def _by_server(self, words: list[int], board: RankBoard, page: CallsPage, socket: str, deadline: float) -> Reading:
        obstacle = find_obstacle(self._pid, page.recorder_fd, page.recorder_inode)
        if obstacle:
            raise TraceError(obstacle)
        try:
            known = msgspec.json.decode(request(socket, "GET", "/handler/", deadline), type=known_type(list[str]))
            if HOST not in known and DEVICE not in known:
                raise TraceError("this torch's worker server has no flight recorder")
            traces, counts, trouble = [], {}, ""
            if HOST in known:
                traces.append(parse_trace(request(socket, "POST", f"/handler/{HOST}", deadline)))
            if DEVICE in known:
                counts = parse_counts(request(socket, "POST", f"/handler/{DEVICE}{WITHOUT_ENTRIES}", deadline))
                trouble = self._observe(words, counts) if counts else ""
                if counts and not (trouble := trouble or page.entries_trouble or self._silent):
                    traces.append(self._entries(board, socket, deadline))
        except (OSError, ValueError) as error:
            raise TraceError(_reason(error)) from error
        whole = merge_traces(traces)
        is_read = DEVICE in known and not page.entries_trouble and not self._silent
        return Reading(whole, counts, "; ".join(filter(None, (whole.trouble, trouble))), is_read)

    def _entries(self, board: RankBoard, socket: str, deadline: float) -> Trace:
        """The entries of a device's recorder. Raises OSError, ValueError; TraceError where a capture is under way."""
        with _Announced(board):
            try:
                return parse_trace(request(socket, "POST", f"/handler/{DEVICE}", deadline))
            except TimeoutError:
                self._silent = SILENT
                return Trace(trouble=SILENT)

    def _by_pipe(self, words: list[int], board: RankBoard, page: CallsPage, deadline: float) -> Reading:
        """Where there is no server. Nothing but what the hooks count tells whether the rank moves."""
        if is_heart_stale(words):
            raise TraceError(f"{page.recorder_trouble or 'no worker server'}; torch's own dump waits for the GIL")
        trouble = self._observe(words, {}) or page.entries_trouble or self._silent
        if trouble:
            self._dump = None
            raise TraceError(trouble)
        if self._dump is None or time.monotonic() - self._dump[0] > PIPE_EVERY_S:
            with _Announced(board):
                data = dump_by_pipe(self._pid, page.pipe, page.dump, deadline)
            if data is None:
                self._silent = "torch's monitor did not dump the flight recorder: it is not asked again"
                raise TraceError(self._silent)
            self._dump = time.monotonic(), Reading(parse_trace(data), parse_counts(data), is_read=True)
        return self._dump[1]


class RecorderReaders:
    """Those of a node's ranks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempt = -1
        self._readers: dict[int, RecorderReader] = {}

    def of(self, attempt: int, global_rank: int) -> RecorderReader:
        """The rank's; those of other attempts are forgotten."""
        with self._lock:
            if attempt != self._attempt:
                self._attempt, self._readers = attempt, {}
            return self._readers.setdefault(global_rank, RecorderReader())


class _Announced:
    """While a device is asked: a capture that begins waits. Raises TraceError where one is under way."""

    def __init__(self, board: RankBoard) -> None:
        self._board = board

    def __enter__(self) -> None:
        self._board.write(Field.READING_NS, time.monotonic_ns())
        words = self._board.read()
        if words is None or words[Field.CAPTURES] > 0:
            self._board.write(Field.READING_NS, 0)
            raise TraceError(CAPTURING)

    def __exit__(self, *_: object) -> None:
        self._board.write(Field.READING_NS, 0)


def is_heart_stale(words: list[int]) -> bool:
    """Whether the hooks' thread has not run for long: the GIL is held."""
    return bool(words[Field.HEART_NS]) and time.monotonic_ns() - words[Field.HEART_NS] > HEART_STALE_NS


def _reason(error: Exception) -> str:
    reason = "it did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return f"the flight recorder could not be read: {reason}"
