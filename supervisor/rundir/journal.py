"""The journal: events.jsonl, every event that the engine acted on with the actions that it caused.

A line is {"v": version, "n": number, "t": engine's seconds, "wall": UTC time, "event": {...}, "actions": [...]}. An
event that made the engine raise has "error" instead of actions and is set aside on replay, so that it cannot kill
twice. When the file has grown past a limit it becomes events.jsonl.1 (and .1 becomes .2, …), and the new one begins
with a line {"v", "n", "t", "snapshot": state}: each file can be replayed by itself, and disk use is bounded.

Only lines of this JOURNAL_VERSION are replayed: another version's engine would decide otherwise on them, or not know
what they mean. Whoever goes on behind such lines begins with a new engine, as where the journal was lost.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import open_own, open_to_add
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.events import Event
from guardrun.supervisor.rundir.journal_end import JOURNAL, KEPT

NAME, KEEP = JOURNAL, KEPT
ROTATE_BYTES = 32 * 1024 * 1024
JOURNAL_VERSION = 2
"""To be raised by one whenever the engine would decide otherwise on a journal of today, or could not read it."""
NO_VERSION = 0
"""Of lines that have none, from before there were any."""
DOES_NOT_ANSWER = "its file system does not answer"


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of the journal."""

    v: int = NO_VERSION
    n: int
    t: float
    wall: str = ""
    event: Event | None = None
    actions: list[Action] = []
    error: str = ""
    snapshot: dict[str, Any] | None = None


class _Envelope(msgspec.Struct, kw_only=True):
    """What lines of all versions have in common."""

    v: int = NO_VERSION
    n: int
    t: float


_DECODER = msgspec.json.Decoder(known_type(Line))
_ENVELOPE_DECODER = msgspec.json.Decoder(known_type(_Envelope))
_ENCODER = msgspec.json.Encoder()


class Journal:
    """Appends to a run's journal. What cannot be written is dropped and counted: training goes on."""

    def __init__(
        self,
        run_dir: Path,
        next_number: int = 0,
        rotate_bytes: int = ROTATE_BYTES,
        writer: BackgroundWriter | None = None,
    ) -> None:
        """writer: who writes; None: whoever calls."""
        self._path = run_dir / NAME
        self._number = next_number
        self._rotate_bytes = rotate_bytes
        self._writer = writer
        self._file: io.FileIO | None = None
        self._size_bytes = 0
        self._trouble = ""
        self.dropped = 0

    @property
    def trouble(self) -> str:
        """Why the last write failed, or is not done yet; empty while all is well."""
        is_stuck = self._writer is not None and self._writer.is_stuck
        return DOES_NOT_ANSWER if is_stuck else self._trouble

    def append(self, event: Event, actions: list[Action], now_s: float) -> None:
        """Note what an event caused. Never raises."""
        self._write(self._line(now_s, event=event, actions=actions))

    def append_error(self, event: Event, error: str, now_s: float) -> None:
        """Note an event that made the engine raise."""
        self._write(self._line(now_s, event=event, error=error[-4000:]))

    def rotate_if_large(self, engine: Engine) -> None:
        """Begin a new file with a snapshot where this one has grown past the limit. Never raises."""
        if self._size_bytes < self._rotate_bytes:
            return
        line = self._line(engine.last_s, snapshot=msgspec.json.decode(engine.snapshot()))
        self._number += 1
        self._do(lambda: self._rotate(line))

    def _line(self, now_s: float, **content: Any) -> Line:
        return Line(v=JOURNAL_VERSION, n=self._number, t=round(now_s, 6), wall=_wall(), **content)

    def _rotate(self, first: Line) -> None:
        try:
            self._close()
            for index in range(KEEP - 1, 0, -1):
                older = self._path.with_name(f"{NAME}.{index}")
                if older.exists():
                    older.replace(self._path.with_name(f"{NAME}.{index + 1}"))
            self._path.replace(self._path.with_name(f"{NAME}.1"))
            self._path.with_name(f"{NAME}.{KEEP}").unlink(missing_ok=True)
        except OSError as error:
            self._trouble = str(error)
            return
        self._append(encode_json(first) + b"\n")

    def close(self) -> None:
        """Close the file, after what is still to be written. The writer may do it later, on its thread."""
        self._do(self._close)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _do(self, work: Callable[[], None]) -> None:
        if self._writer is None:
            work()
        else:
            self._writer.do(work)

    def _write(self, line: Line) -> None:
        data = encode_json(line) + b"\n"
        self._number += 1
        self._do(lambda: self._append(data))

    def _append(self, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = io.FileIO(open_to_add(self._path), "ab")
                self._end_torn_line()
            written = self._file.write(data)
            if written != len(data):
                # A full disk took a part: the next line must not be glued to it.
                self._file.write(b"\n")
                raise OSError(28, "No space left on device")
            self._size_bytes = self._file.tell()
            self._trouble = ""
        except OSError as error:
            self.dropped += 1
            self._trouble = str(error)

    def _end_torn_line(self) -> None:
        """A supervisor killed while it wrote leaves a torn line; ours must not be glued to it."""
        assert self._file is not None
        if self._file.tell() == 0:
            return
        with open(open_own(self._path, is_tended=True), "rb") as file:
            file.seek(-1, io.SEEK_END)
            if file.read(1) != b"\n":
                self._file.write(b"\n")


class ReplayResult(msgspec.Struct, kw_only=True):
    """What a replay found."""

    events: int = 0
    decisions: int = 0
    """Actions that the journal holds and the replay reached again."""
    mismatches: list[str] = []
    set_aside: int = 0
    """Events that had made the engine raise, and lines that are no JSON of ours (torn by a kill)."""
    left_out: int = 0
    """Lines of other versions."""
    other_version: int = JOURNAL_VERSION
    """Of the last of those."""
    is_other: bool = False
    """The last line is one of them: the engine knows nothing of the run."""
    last_number: int = -1
    last_s: float = 0.0


def read_lines(run_dir: Path, *, with_rotated: bool = False) -> Iterator[Line | None]:
    """The journal's lines in order; None for one that cannot be read. Raises FileNotFoundError where there is none."""
    paths = [run_dir / NAME]
    if with_rotated:
        older = [path for index in range(KEEP, 0, -1) if (path := run_dir / f"{NAME}.{index}").exists()]
        # Whoever rotates it may be killed before the new file is there.
        paths = older + [path for path in paths if path.exists() or not older]
    for path in paths:
        with open(open_own(path, is_anybodys=True), "rb") as file:
            for data in file:
                if not data.strip():
                    continue
                yield _parse_line(data)


def _parse_line(data: bytes) -> Line | None:
    """A line; of another version at least its number, time and version, whatever else it has."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        told = _ENVELOPE_DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if told.v == JOURNAL_VERSION else Line(v=told.v, n=told.n, t=told.t)


def describe_versions(other: int) -> str:
    """Half a sentence on a journal that is not replayed."""
    theirs = f"has version {other}" if other != NO_VERSION else "has no version"
    return f"the journal {theirs}, and this guardrun reads version {JOURNAL_VERSION}"


Watch = Callable[[Event, float], object]
"""Called with each event of a journal and its time, before the engine is."""


def recover(
    run_dir: Path, watch: Watch | None = None, *, with_rotated: bool = False, watch_others: bool = False
) -> tuple[Engine, ReplayResult]:
    """The engine as the journal leaves it. Raises FileNotFoundError.

    with_rotated: from the run's beginning as far as it is kept, for the sake of watch, or where its last file was lost
    or has no beginning. watch_others: watch is given the events of other versions, too, as far as they can be read.
    """
    if not with_rotated and not _has_beginning(run_dir / NAME) and (run_dir / f"{NAME}.1").exists():
        with_rotated = True
    lines = read_lines(run_dir, with_rotated=with_rotated)
    return _run(lines, check=False, watch=watch, watch_others=watch_others)


def _has_beginning(path: Path) -> bool:
    """Whether a file of the journal begins with a whole line. Raises OSError where it cannot be read."""
    try:
        with open(open_own(path, is_anybodys=True), "rb") as file:
            return _parse_line(file.readline()) is not None
    except FileNotFoundError:
        return False


def replay(run_dir: Path) -> ReplayResult:
    """Run a journal through a new engine and compare every decision. Raises FileNotFoundError."""
    return _run(read_lines(run_dir, with_rotated=True), check=True)[1]


def _run(
    lines: Iterator[Line | None], *, check: bool, watch: Watch | None = None, watch_others: bool = False
) -> tuple[Engine, ReplayResult]:
    engine = Engine()
    result = ReplayResult()
    for line in lines:
        if line is None:
            result.set_aside += 1
            continue
        result.last_number, result.last_s = line.n, line.t
        result.is_other = line.v != JOURNAL_VERSION
        if result.is_other:
            engine = Engine()  # whoever writes behind it has begun anew
            result.left_out, result.other_version = result.left_out + 1, line.v
            if watch_others and watch is not None and line.event is not None:
                watch(line.event, line.t)
        elif line.snapshot is not None:
            engine = _from_snapshot(engine, line, result, check)
        elif line.error or line.event is None:
            result.set_aside += 1
        else:
            if watch is not None:
                watch(line.event, line.t)
            _step(engine, line, result, check)
    return engine, result


def _from_snapshot(engine: Engine, line: Line, result: ReplayResult, check: bool) -> Engine:
    snapshot = _ENCODER.encode(line.snapshot)
    restored = Engine.restore(snapshot)
    if check and result.events and msgspec.json.decode(engine.snapshot()) != line.snapshot:
        result.mismatches.append(f"line {line.n}: the replayed state differs from the snapshot")
    return restored


def _step(engine: Engine, line: Line, result: ReplayResult, check: bool) -> None:
    assert line.event is not None
    result.events += 1
    name = type(line.event).__name__
    try:
        actions = engine.handle(line.event, line.t)
    except Exception as error:  # an engine newer or older than the journal's
        result.mismatches.append(f"line {line.n}: {name} raised {error!r}")
        return
    if check and _ENCODER.encode(actions) != _ENCODER.encode(line.actions):
        said = ", ".join(type(a).__name__ for a in actions) or "nothing"
        was = ", ".join(type(a).__name__ for a in line.actions) or "nothing"
        result.mismatches.append(f"line {line.n}: {name} at {line.t:.3f} s: the journal has {was}, replay {said}")
    else:
        result.decisions += len(actions)


def _wall() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
