"""Has files judged by a process that may be lost over them (`confined`), and says what became of it.

    Inspector ── ask(kind, path) ──▶ Judge ── question, open file ──▶ confined process
                                           ◀── answer ──────────────

The file is opened here, if it is one, and handed over; the process is started when the first is asked about, serves
thousands, and is ended when it has had nothing to do for a while. What ends it could not be judged: neither whole nor
torn. It is a fresh interpreter, never a fork: there are threads here.
"""

from __future__ import annotations

import array
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from guardrun.supervisor.base.framing import LENGTH, frame
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.checkpoints.reading.confined_process import READY, Examiner
from guardrun.supervisor.checkpoints.reading.folder_contents import open_regular
from guardrun.supervisor.checkpoints.reading.torch_file import Contents
from guardrun.supervisor.checkpoints.reading.verdicts import CPU_S, Torn, Unjudged, Verdict, Whole

MAX_ANSWER_BYTES = 32 << 20
START_S = 20.0
"""For the process itself to begin, beside what a file has."""
IDLE_S = 30.0
_SHUTDOWN_S = 5.0
_SLICE_S = 0.2
"""How soon it is noticed that a choice is asked for meanwhile."""
_MAX_WAIT_S = 3600.0
_BUSY = "another file takes too long"
_TOO_SLOW = "it takes longer than there is time for"
_ROOT = Path(__file__).absolute().parents[4]
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from guardrun.supervisor.checkpoints.reading.confined_process import main; main()"
)


class Answer(msgspec.Struct, frozen=True):
    """What the process says; it has read what anybody may have written, so it is taken for no more than this."""

    torn: str = ""
    unjudged: str = ""
    is_final: bool = True
    contents: Contents | None = None
    numbers: list[int] = []
    names: list[str] | None = None
    ends: dict[str, int] = {}
    has_items: bool = False
    is_last: bool = False
    """The process ends now."""

    @property
    def verdict(self) -> Verdict:
        """Whole, where nothing speaks against it."""
        if self.torn:
            return Torn(self.torn)
        if self.unjudged:
            return Unjudged(f"could not be judged: {self.unjudged}", is_final=self.is_final)
        return Whole()


class Patience:
    """How long may be waited for a file now. Each candidate has its own time, once a round."""

    def __init__(self) -> None:
        self._now = threading.local()
        self._untils_s: dict[str, float] = {}
        self._is_hurried = False

    def begin_round(self) -> None:
        """Every candidate has its whole time again."""
        self._untils_s = {}

    def begin(self, subject: str, limit_s: float, *, is_leisurely: bool = False) -> None:
        """What this thread asks from now on is about subject; leisurely: nobody waits for the answer."""
        self._now.subject, self._now.is_leisurely = subject, is_leisurely
        self._now.until_s = self._untils_s.setdefault(subject, time.monotonic() + limit_s)

    def lengthen(self, by_s: float) -> None:
        """What this thread asks about has by_s more, or less where it is negative."""
        subject = getattr(self._now, "subject", None)
        if subject is not None:
            self._now.until_s = self._untils_s[subject] = self._now.until_s + by_s

    def hurry(self, is_hurried: bool = True) -> None:
        """Something urgent waits: what is asked leisurely has no time until it is taken up. For any thread."""
        self._is_hurried = is_hurried

    def left_s(self) -> float:
        """Negative: none. A thread that has not said what it asks about has all the time that there is."""
        if self._is_hurried and getattr(self._now, "is_leisurely", False):
            return -1.0
        until_s: float = getattr(self._now, "until_s", math.inf)
        return until_s - time.monotonic()


class Judge(Protocol):
    """Whoever answers about a file."""

    def ask(self, kind: str, path: str, patience: Patience, *, name: str = "", deep: bool = False) -> Answer:
        """Open path and ask about it. Raises OSError, ValueError where it cannot be opened."""

    def rest(self) -> None:
        """Now and then: let go of what has had nothing to do for a while. Never waits."""

    def close(self) -> None:
        """Answer nothing any more."""


class Here:
    """In this process: for files that are trusted, as tests' are, and where no other can be started."""

    def __init__(self) -> None:
        self._examiner = Examiner()

    def ask(self, kind: str, path: str, patience: Patience, *, name: str = "", deep: bool = False) -> Answer:
        """As Judge has it."""
        fd = open_regular(path)
        try:
            return self.answer({"kind": kind, "name": name, "deep": deep}, fd)
        finally:
            os.close(fd)

    def answer(self, question: dict[str, Any], fd: int) -> Answer:
        """Of an open file."""
        return msgspec.convert(self._examiner.answer(question, fd), known_type(Answer))

    def rest(self) -> None:
        """There is nothing to let go of."""

    def close(self) -> None:
        """There is nothing to end."""


class _Process:
    """One confined process, and our end of its socket."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.socket, theirs = socket.socketpair()
        try:
            self.child: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT), str(CPU_S)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                start_new_session=True,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    def end(self) -> int | None:
        """Kill it; its status, None where the kernel does not let go of it yet (it waits for a disk)."""
        self.socket.close()
        self.child.kill()
        with suppress(subprocess.TimeoutExpired):
            return self.child.wait(_SLICE_S)
        return None


class Confined:
    """The judge. Threads may share one; close it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"process": None, "lost": []}
        self._used_s = 0.0
        self._here = Here()
        self._is_closed = False
        self._finalizer = weakref.finalize(self, _end_all, self._state)

    def ask(self, kind: str, path: str, patience: Patience, *, name: str = "", deep: bool = False) -> Answer:
        """As Judge has it."""
        if patience.left_s() <= 0:
            return Answer(unjudged=_TOO_SLOW, is_final=False)
        fd = open_regular(path)
        try:
            question = {"kind": kind, "name": name, "deep": deep}
            if not self._lock.acquire(timeout=min(max(patience.left_s(), 0.0), _MAX_WAIT_S)):
                return Answer(unjudged=_BUSY, is_final=False)
            try:
                return self._ask(question, fd, patience)
            finally:
                self._lock.release()
        finally:
            os.close(fd)

    def rest(self) -> None:
        """As Judge has it."""
        if self._lock.acquire(blocking=False):
            try:
                process = self._state["process"]
                if process is not None and time.monotonic() - self._used_s > IDLE_S:
                    self._drop(process)
                self._state["lost"] = [child for child in self._state["lost"] if child.poll() is None]
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the process, whatever it is doing; the question that it is at is not answered."""
        self._is_closed = True
        process = self._state["process"]
        if process is not None:
            process.child.kill()
        if self._lock.acquire(timeout=_SHUTDOWN_S):
            try:
                self._finalizer()
            finally:
                self._lock.release()

    # How -----------------------------------------------------------------------------------------------------------

    def _ask(self, question: dict[str, Any], fd: int, patience: Patience) -> Answer:
        if self._is_closed:
            return Answer(unjudged="guardrun ends", is_final=False)
        process = self._state["process"]
        if process is not None and process.child.poll() is not None:
            self._drop(process)  # Somebody has killed it while it had nothing to do: that is no file's fault.
        is_new = self._state["process"] is None
        try:
            process = self._state["process"] or _Process()
        except OSError:
            return self._ask_here(question, fd)
        self._state["process"] = process
        try:
            text = msgspec.json.encode(question)
            process.socket.sendmsg([frame(text)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
            if is_new:
                _await_start(process.socket, patience)
            answer = msgspec.json.decode(_receive(process.socket, patience), type=known_type(Answer))
        except TimeoutError:
            self._drop(process)
            return Answer(unjudged=_TOO_SLOW, is_final=False)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            explained = self._explain(process, error, patience)
            return self._ask_here(question, fd) if explained is None else explained
        self._used_s = time.monotonic()
        if answer.is_last:
            self._drop(process)
        return answer

    def _ask_here(self, question: dict[str, Any], fd: int) -> Answer:
        """Where there is no room for a process, or none is allowed.

        Not to know torn files would cost more than what a file may do here, where all walks are bounded.
        """
        try:
            return self._here.answer(question, fd)
        except Exception as error:
            return Answer(unjudged=f"{type(error).__name__} while it was read", is_final=False)

    def _explain(self, process: _Process, error: Exception, patience: Patience) -> Answer | None:
        """Why there is no answer; None: the process could not run, which is no file's fault."""
        is_ending = not isinstance(error, msgspec.DecodeError)  # It has closed its socket, so it is about to be gone.
        with suppress(subprocess.TimeoutExpired):
            process.child.wait(min(_SHUTDOWN_S, max(_SLICE_S, patience.left_s())) if is_ending else _SLICE_S)
        status = process.child.poll()
        self._drop(process)
        if self._is_closed:
            return Answer(unjudged="guardrun ends", is_final=False)
        if status is None and is_ending:  # How it ends is not known yet: most likely no file is to blame.
            return Answer(unjudged=f"no answer could be read ({type(error).__name__})", is_final=False)
        if not status:
            return Answer(unjudged=f"no answer could be read ({type(error).__name__})")
        if status > 0:
            return None
        if -status == signal.SIGXCPU:
            return Answer(unjudged=f"it takes more than {CPU_S} s of computing to be looked into")
        if -status == signal.SIGKILL:  # Most likely for the memory of others: it goes first.
            return Answer(unjudged="the process that looked into it was killed", is_final=False)
        with suppress(ValueError):
            return Answer(unjudged=f"looking into it ends in {signal.Signals(-status).name}")
        return Answer(unjudged=f"looking into it ends in signal {-status}")

    def _drop(self, process: _Process) -> None:
        self._state["process"] = None
        if process.end() is None:
            self._state["lost"].append(process.child)


def _end_all(state: dict[str, Any]) -> None:
    process, state["process"] = state["process"], None
    if process is not None:
        process.end()
    for child in state["lost"]:
        child.poll()


def _await_start(source: socket.socket, patience: Patience) -> None:
    """Wait for a new process: on a busy node that takes seconds, which are none of a file's. Raises like _receive."""
    began_s = time.monotonic()
    patience.lengthen(START_S)
    try:
        if _read(source, LENGTH.size, patience) != READY:
            raise msgspec.DecodeError
    finally:
        patience.lengthen(time.monotonic() - began_s - START_S)


def _receive(source: socket.socket, patience: Patience) -> bytes:
    """An answer. Raises TimeoutError, EOFError, OSError; msgspec.DecodeError where it would be too long."""
    size = LENGTH.unpack(_read(source, LENGTH.size, patience))[0]
    if size > MAX_ANSWER_BYTES:
        raise msgspec.DecodeError
    return _read(source, size, patience)


def _read(source: socket.socket, size: int, patience: Patience) -> bytes:
    parts: list[bytes] = []
    poller = select.poll()
    poller.register(source, select.POLLIN)
    while size:
        left_s = patience.left_s()
        if not poller.poll(max(0.0, min(left_s, _SLICE_S)) * 1000):
            if left_s <= 0:
                raise TimeoutError
            continue
        part = source.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
