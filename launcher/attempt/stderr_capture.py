"""What ranks write to a stderr that is no file: passed on by a process between, its end kept for verdicts.

Ranks get a pipe each where this process's stderr is a pipe, a socket or a device, and a pty each where it is a
terminal, so that `isatty` says what it said. Where stdout is the very same, it goes the same way, so that a rank's
lines keep their order. A regular file is read back as it is (`collect/ranks/exits.py`).

The ends that are read stay open here: where the process between is killed, stopped or stuck, another one takes its
place, at the very byte, and no rank has noticed more than a moment's wait.
"""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from guardrun.launcher.attempt import stderr_relay
from guardrun.launcher.base.processes import TOKEN_VARIABLE, read_stat

PROGRAM = Path(__file__).with_name("stderr_relay.py")
WATCH_S = 0.2
STUCK_LOOKS = 2
"""So many looks in a row at which something waits, nothing moves and there is room where it should go."""
MAX_STARTS = 4
"""In a row with nothing passed on: after that a thread of this process does it (no memory, no process, …)."""
IDLE_S = 0.3
"""At the end: nothing has come for so long, and the program lives, as something else has the ranks' stderr."""
JOIN_S = 2.0
SETTLE_S = 0.2
"""What a rank wrote before it ended is taken within milliseconds; where the user's reader stands still, it is not."""
STARVED_S = 5.0


@dataclass(frozen=True)
class Way:
    """How ranks' output is to go."""

    is_terminal: bool
    has_stdout: bool
    """Stdout is the very same as stderr."""


class Outlets(NamedTuple):
    """Where ranks' output is to go, by local rank: paths, for this process or the ranks themselves to open."""

    stderr: dict[int, str]
    stdout: dict[int, str]


def find_way() -> Way | None:
    """For this process's stderr; None: ranks are to inherit it."""
    try:
        err = os.fstat(2)
    except OSError:  # nohup and services may have closed it
        return None
    if not os.get_inheritable(2):  # in the place of a closed one, which it is to be for ranks
        return None
    if os.isatty(2):
        return Way(True, _is_same(err)) if not _would_be_taken_for_its_terminal() else None
    if stat.S_ISFIFO(err.st_mode) or stat.S_ISSOCK(err.st_mode):
        return Way(False, _is_same(err))
    return Way(False, False) if stat.S_ISCHR(err.st_mode) else None


def _is_same(err: os.stat_result) -> bool:
    try:
        out = os.fstat(1)
    except OSError:
        return False
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


def _would_be_taken_for_its_terminal() -> bool:
    """A session's leader without a terminal gets the first one that it opens: it would be hung up with it."""
    if os.getsid(0) != os.getpid():
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return True
    return False


class Relay:
    """One attempt's."""

    def __init__(self, ranks: Iterable[int], way: Way, log: Callable[..., None] = lambda *_, **__: None) -> None:
        """ranks: local ones. Raises OSError, with nothing left open."""
        self._has_stdout = way.has_stdout
        self._log, self._is_closed = log, threading.Event()
        self._readers: dict[int, int] = {}
        self._writers: dict[int, int] = {}
        self._between: dict[int, tuple[int, int]] = {}
        """Of pipes that stand between a terminal and its copy: the end that is written, and the one that is read."""
        self._copies: dict[int, int] = {}
        self._lock = threading.Lock()
        try:
            for rank in ranks:
                self._readers[rank], self._writers[rank] = _open_pty() if way.is_terminal else os.pipe()
                if way.is_terminal:
                    self._between[rank] = os.pipe()[::-1]
                self._copies[rank] = os.memfd_create(f"guardrun-stderr-{rank}", os.MFD_CLOEXEC)
            self._program = self._start()
        except OSError:
            self._close_all()
            raise
        self._thread = threading.Thread(target=self._watch, name="guardrun-relay", daemon=True)
        self._thread.start()

    @property
    def ranks(self) -> list[int]:
        """Local ones."""
        return list(self._copies)

    @property
    def pids(self) -> set[int]:
        """The program's, while it lives."""
        return {self._program.pid} if self._program.poll() is None else set()

    def outlets(self) -> Outlets:
        """To be opened before `begin`."""
        paths = {rank: f"/proc/{os.getpid()}/fd/{writer}" for rank, writer in self._writers.items()}
        return Outlets(paths, paths if self._has_stdout else {})

    def copy(self, rank: int) -> str:
        """A file whose end is the end of what the rank wrote; for others on this node, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._copies[rank]}"

    def begin(self) -> None:
        """The ranks have their ends."""
        for writer in self._writers.values():
            os.close(writer)
        self._writers.clear()

    def settle(self, rank: int, limit_s: float = SETTLE_S) -> None:
        """Wait until what the rank has written is in its copy, and that is not about to be cut.

        For limit_s, and on a busy machine for as long as the program waits for a CPU, up to STARVED_S.
        """
        began_s = time.monotonic()
        while self._waiting_bytes(rank) or self._is_being_cut(rank):
            waited_s = time.monotonic() - began_s
            if waited_s >= (STARVED_S if self._is_starved() else limit_s):
                break
            time.sleep(0.002)

    def _is_starved(self) -> bool:
        """Whether the program would go on if it were let: it waits neither for what is to come nor for a reader."""
        return self._program.returncode is None and getattr(read_stat(self._program.pid), "state", "") == "R"

    def end(self, still_s: float = 2.0, limit_s: float = 10.0) -> None:
        """The ranks are dead: wait until all has been passed on, as long as something moves, and for limit_s at most.

        What the user's reader has not taken by then it may take later. Copies can be read on until `close`.
        """
        self.begin()
        now_s = busy_s = moved_s = time.monotonic()
        end_s, before = now_s + limit_s, self._moved()
        while now_s < min(end_s, moved_s + still_s, busy_s + IDLE_S) and self._program.poll() is None:
            busy_s = now_s if self._has_waiting() else busy_s
            if (moved := self._moved()) != before:
                moved_s, before = now_s, moved
            time.sleep(0.002)
            now_s = time.monotonic()

    def close(self) -> None:
        """The program goes on until nobody is left who could write."""
        self._is_closed.set()
        self._thread.join(JOIN_S)
        if not self._thread.is_alive():  # else the user's reader stands still, and it does the program's work
            self._close_all()

    # The program ------------------------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        # Libraries may be found by the environment alone. The run's mark is for what is to be ended with an attempt.
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        sources = self._sources()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), *(":".join(map(str, source.numbers)) for source in sources)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[number for source in sources for number in source.numbers],
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    def _sources(self) -> list[stderr_relay.Source]:
        return [
            stderr_relay.Source(reader, self._copies[rank], *self._between.get(rank, ()))
            for rank, reader in self._readers.items()
        ]

    def _watch(self) -> None:
        """In a thread of its own, for as long as the attempt lives."""
        starts, looks, before = 1, 0, None
        while not self._is_closed.wait(WATCH_S):
            status = self._program.poll()
            if status == 0:
                return
            if status == stderr_relay.BROKEN:
                self._close_readers()
                return
            moved = self._moved()
            starts = starts if moved == before else 1
            looks = looks + 1 if moved == before and self._is_stuck() else 0
            before = moved
            if status is None and looks < STUCK_LOOKS:
                continue
            self._log("relay_replaced", pid=self._program.pid, status=status, starts=starts)
            self._program.kill()
            self._program.wait()
            try:
                if starts >= MAX_STARTS:
                    raise OSError(f"it had to be started {starts} times")
                self._program = self._start()
            except OSError as error:
                self._log("relay_stands_in", why=str(error))
                self._stand_in()
                return
            starts, looks = starts + 1, 0

    def _stand_in(self) -> None:
        """Do the program's work here."""
        try:
            stderr_relay.serve(self._sources(), self._is_closed.is_set)
        except OSError as error:
            self._log("relay_ended", error=str(error))
            self._close_readers()

    def _moved(self) -> list[tuple[int, int]]:
        """Per rank: how many bytes were taken, and passed on; begun anew now and then."""
        return [(os.fstat(copy).st_size, os.lseek(copy, 0, os.SEEK_CUR)) for copy in self._copies.values()]

    def _is_stuck(self) -> bool:
        """Something waits, there is room where it should go, and it is not for want of a CPU."""
        if not self._has_waiting():
            return False
        program = read_stat(self._program.pid)
        if program is not None and program.state == "R":
            return False
        poller = select.poll()
        poller.register(2, select.POLLOUT)
        return bool(poller.poll(0))

    def _close_readers(self) -> None:
        """Ranks get what a stderr gives that nobody reads, as if nothing had stood between."""
        with self._lock:
            for reader in self._readers.values():
                os.close(reader)
            self._readers.clear()

    def _waiting_bytes(self, rank: int) -> int:
        """In the order in which bytes move: what moves on between two looks is seen by the second."""
        with self._lock:
            if rank not in self._readers:
                return 0
            try:
                waiting = stderr_relay.waiting_bytes(self._readers[rank])
            except OSError:  # of a pty that nobody has open
                waiting = 0
            return waiting + (stderr_relay.waiting_bytes(self._between[rank][1]) if rank in self._between else 0)

    def _is_being_cut(self, rank: int) -> bool:
        """It is full, or its end is not back yet (`stderr_relay.cut`)."""
        size = os.fstat(self._copies[rank]).st_size
        return size >= stderr_relay.FULL_BYTES or os.lseek(self._copies[rank], 0, os.SEEK_CUR) > size

    def _has_waiting(self) -> bool:
        """Somebody has written what is not passed on yet."""
        return any(self._waiting_bytes(rank) for rank in self._copies) or any(
            passed < taken for taken, passed in self._moved()
        )

    def _close_all(self) -> None:
        between = {number: number for pair in self._between.values() for number in pair}
        self._between.clear()
        for ends in (self._readers, self._writers, between, self._copies):
            for number in ends.values():
                with suppress(OSError):
                    os.close(number)
            ends.clear()


def _open_pty() -> tuple[int, int]:
    """Its two ends: what is written comes out as it is, to be treated by the terminal alone."""
    master, slave = os.openpty()
    attributes = termios.tcgetattr(2)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    stderr_relay.copy_window_size([master])
    return master, slave
