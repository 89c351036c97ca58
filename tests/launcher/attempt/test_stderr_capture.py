"""What ranks write to a stderr that is no file: every byte of it arrives, whatever happens to the process between."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from guardrun.launcher.attempt import stderr_capture, stderr_relay
from guardrun.launcher.attempt.stderr_relay import FULL_BYTES, KEPT_BYTES
from tests.support.processes import descendants, is_alive
from tests.support.waiting import wait_until

MUCH = 3 * FULL_BYTES + 12_345
"""Bytes: copies are cut down on the way."""
WRITES = """
import os, random, sys
stream, size, seed = int(sys.argv[1]), int(sys.argv[2]), 7
data = random.Random(seed).randbytes(size)
chunks = random.Random(seed + 1)
while data:
    data = data[os.write(stream, data[:chunks.randint(1, 40_000)]):]
"""


def expected(size: int) -> bytes:
    return random.Random(7).randbytes(size)


class Bed:
    """A launcher whose stderr is what a test holds the other end of."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "report.jsonl"
        self.report.touch()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, stderr: int, *program: str, max_starts: int = 4, **more: Any) -> subprocess.Popen[bytes]:
        """program: Python code and its arguments. stderr is closed here."""
        command = [sys.executable, "-m", "tests.launcher.attempt.stderr_bed", str(self.report), str(max_starts)]
        process = subprocess.Popen([*command, sys.executable, "-c", *program], stderr=stderr, **more)
        os.close(stderr)
        self._processes.append(process)
        return process

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What was told so far; names: of these alone."""
        found = [json.loads(line) for line in self.report.read_text().splitlines()]
        return [one for one in found if not names or one["event"] in names]

    def relay_pid(self) -> int:
        """Of the process between: the one that is alive now."""

        def find() -> int:
            found = descendants(self._processes[-1].pid)
            return next((one.pid for one in found if "relay.py" in one.command and is_alive(one.pid)), 0)

        return wait_until(find, 30, "the process between")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path)
    yield bed
    bed.close()


def make_pipe() -> tuple[int, int]:
    return os.pipe()


def make_socket() -> tuple[int, int]:
    mine, theirs = socket.socketpair()
    return mine.detach(), theirs.detach()


def make_terminal() -> tuple[int, int]:
    """A terminal that shows what comes as it comes."""
    master, slave = os.openpty()
    tty.setraw(slave)
    return master, slave


KINDS: dict[str, Callable[[], tuple[int, int]]] = {
    "pipe": make_pipe, "socket": make_socket, "terminal": make_terminal
}  # fmt: skip


class Reader:
    """Reads to the end, in a thread."""

    def __init__(self, fileno: int, pause_s: float = 0.0, most: int = 1 << 40) -> None:
        """most: bytes, after which it reads no more before it may (`allow`)."""
        self.data = bytearray()
        self._fileno, self._pause_s = fileno, pause_s
        self._most, self._change = most, threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):  # EIO: of a terminal that nobody has open any more
            while part := os.read(self._fileno, 30_000):
                self.data += part
                time.sleep(self._pause_s)
                with self._change:
                    self._change.wait_for(lambda: len(self.data) < self._most)
        os.close(self._fileno)

    def allow(self, size: int) -> None:
        with self._change:
            self._most = size
            self._change.notify_all()

    def wait_for(self, size: int) -> None:
        """So many bytes have come."""
        wait_until(lambda: len(self.data) >= size, 120, f"{size} bytes", 0.001)

    def all(self) -> bytes:
        self._thread.join()
        return bytes(self.data)


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_arrives_as_it_was_written(bed: Bed, kind: str) -> None:
    mine, theirs = KINDS[kind]()
    launcher = bed.start(theirs, WRITES, "2", str(MUCH))
    assert Reader(mine).all() == expected(MUCH)
    assert launcher.wait() == 0
    [began, ended] = bed.events()
    assert began["is_terminal"] == (kind == "terminal") and not began["has_stdout"]
    assert bytes.fromhex(ended["kept"]) == expected(MUCH)[-4096:]
    assert KEPT_BYTES <= ended["kept_bytes"] < FULL_BYTES + KEPT_BYTES
    wait_until(lambda: not is_alive(began["pids"][0]), 30, "the end of the process between")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_a_moment_ago_is_seen_to_wait(kind: str) -> None:
    """A terminal's bytes are handed on by a worker of the kernel's: FIONREAD alone misses two in three."""
    mine, theirs = KINDS[kind]()
    try:
        for _ in range(2_000):
            os.write(theirs, b"the last words")
            assert stderr_relay.waiting_bytes(mine) == len(b"the last words")
            assert os.read(mine, 100) == b"the last words"
    finally:
        os.close(mine)
        os.close(theirs)


@pytest.fixture
def still_relay() -> Iterator[stderr_capture.Relay]:
    """One whose program stands still, with nobody to replace it."""
    relay = stderr_capture.Relay([0], stderr_capture.Way(is_terminal=False, has_stdout=False))
    relay._is_closed.set()
    relay._thread.join()
    relay._program.kill()
    relay._program.wait()
    yield relay
    relay.close()


def test_what_moves_on_between_two_looks_is_seen_to_wait(
    still_relay: stderr_capture.Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program takes a terminal's bytes at the worst moment: a rank's last words were read without them."""
    real = stderr_relay.waiting_bytes
    [reader], [writer] = still_relay._readers.values(), still_relay._writers.values()
    from_, to = os.pipe()
    still_relay._between[0] = to, from_  # as of a terminal

    def look_and_move(fileno: int) -> int:
        waiting = real(fileno)
        if real(reader):
            os.write(to, os.read(reader, 100))
        return waiting

    monkeypatch.setattr(stderr_relay, "waiting_bytes", look_and_move)
    os.write(writer, b"last words")
    assert still_relay._waiting_bytes(0) > 0


def test_a_copy_that_is_about_to_be_cut_or_is_being_cut_is_waited_for(still_relay: stderr_capture.Relay) -> None:
    """Read in between, a rank's last words would be none."""
    [copy] = still_relay._copies.values()
    seen = []
    for size, passed_on in ((FULL_BYTES - 1, 0), (FULL_BYTES, 0), (0, KEPT_BYTES), (KEPT_BYTES, KEPT_BYTES)):
        os.ftruncate(copy, size)
        os.lseek(copy, passed_on, os.SEEK_SET)
        seen.append(still_relay._is_being_cut(0))
    assert seen == [False, True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_moment_nothing_is_lost_and_nothing_comes_twice(bed: Bed, kind: str) -> None:
    mine, theirs = KINDS[kind]()
    kills, size = 8, 20 * FULL_BYTES
    launcher = bed.start(theirs, WRITES, "2", str(size))
    wait_until(lambda: bed.events("began"), 60, "the start")
    reader, chance = Reader(mine, pause_s=0.002, most=FULL_BYTES), random.Random(3)
    for _ in range(kills):
        at = len(reader.data) + chance.randint(1, FULL_BYTES)
        reader.allow(at + FULL_BYTES)  # not to the end, however long it takes to kill
        reader.wait_for(at)
        os.kill(bed.relay_pid(), signal.SIGKILL)
    reader.allow(2 * size)
    assert reader.all() == expected(size)
    assert launcher.wait() == 0
    assert len(bed.events("relay_replaced")) >= 4


@pytest.mark.parametrize(
    ("size", "offset"),
    [(0, FULL_BYTES), (0, KEPT_BYTES), (4096, KEPT_BYTES), (KEPT_BYTES, KEPT_BYTES)],
    ids=["after the truncation", "before the end is back", "within that", "after it"],
)
def test_ended_while_it_cuts_a_copy_nothing_that_comes_is_lost(
    size: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state that `cut` goes through, as its successor finds it."""
    reader, rank = os.pipe()
    copy = os.memfd_create("copy")
    try:
        os.write(copy, b"old" * (size // 3 + 1))
        os.ftruncate(copy, size)
        os.lseek(copy, offset, os.SEEK_SET)
        os.write(rank, b"what comes then")
        os.close(rank)
        assert serve_to_its_end(stderr_relay.Source(reader, copy), monkeypatch) == b"what comes then"
    finally:
        os.close(reader)
        os.close(copy)


def serve_to_its_end(source: stderr_relay.Source, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What the process between passes on of a rank's output."""
    mine, theirs = os.pipe()
    monkeypatch.setattr(stderr_relay, "OUT", theirs)
    try:
        stderr_relay.serve([source])
        os.close(theirs)
        return os.read(mine, 1 << 16)
    finally:
        os.close(mine)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
@pytest.mark.parametrize("has_splice", [True, False])
def test_what_is_between_comes_first(kind: str, has_splice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a terminal, ended between the two steps; and where the kernel has no such steps."""
    if not has_splice:

        def refuse(*_: object, **__: object) -> int:
            raise OSError(errno.EINVAL, "no such way")

        monkeypatch.setattr(os, "splice", refuse)
    reader, rank = make_terminal() if kind == "terminal" else os.pipe()
    from_, to = os.pipe()
    copy = os.memfd_create("copy")
    try:
        os.write(copy, b"taken, ")
        os.lseek(copy, 0, os.SEEK_SET)
        os.write(to, b"between, " * (kind == "terminal"))
        os.write(rank, b"new")
        os.close(rank)
        source = (
            stderr_relay.Source(reader, copy, to, from_) if kind == "terminal" else stderr_relay.Source(reader, copy)
        )
        expected = b"taken, between, new" if kind == "terminal" else b"taken, new"
        assert serve_to_its_end(source, monkeypatch) == expected
    finally:
        for end in (reader, from_, to, copy):
            os.close(end)


def test_stopped_another_one_takes_its_place(bed: Bed) -> None:
    mine, theirs = make_pipe()
    launcher = bed.start(theirs, WRITES, "2", str(MUCH))
    wait_until(lambda: bed.events("began"), 60, "the start")
    stopped = bed.relay_pid()
    os.kill(stopped, signal.SIGSTOP)
    assert Reader(mine).all() == expected(MUCH)
    assert launcher.wait() == 0
    assert [one["pid"] for one in bed.events("relay_replaced")] == [stopped]
    assert not is_alive(stopped)


def test_that_cannot_be_started_again_the_launcher_does_it_itself(bed: Bed) -> None:
    mine, theirs = make_pipe()
    launcher = bed.start(theirs, WRITES, "2", str(MUCH), max_starts=1)
    wait_until(lambda: bed.events("began"), 60, "the start")
    os.kill(bed.relay_pid(), signal.SIGKILL)
    assert Reader(mine).all() == expected(MUCH)
    assert launcher.wait() == 0
    assert [one["event"] for one in bed.events()] == ["began", "relay_replaced", "relay_stands_in", "ended"]


def test_a_reader_that_stands_still_is_waited_for_as_without_us(bed: Bed) -> None:
    """Long: it is looked at for longer than it takes to be taken for stuck."""
    mine, theirs = make_pipe()
    launcher = bed.start(theirs, WRITES, "2", str(MUCH))
    wait_until(lambda: bed.events("began"), 60, "the start")
    pid = bed.relay_pid()
    time.sleep(2.0)  # nothing is to happen in it
    assert bed.relay_pid() == pid and launcher.poll() is None
    assert Reader(mine).all() == expected(MUCH)
    assert bed.events("relay_replaced") == []


def test_once_nobody_reads_a_rank_is_told_so_as_without_us(bed: Bed) -> None:
    mine, theirs = make_pipe()
    code = "import os\nwhile True: os.write(2, bytes(1000))"
    launcher = bed.start(theirs, f"try:\n exec({code!r})\nexcept BrokenPipeError: os._exit(9)", stdout=-3)
    os.read(mine, 1000)
    os.close(mine)
    assert launcher.wait() == 9
    assert bed.events("relay_replaced") == []


def test_an_end_that_does_not_block_loses_nothing(bed: Bed) -> None:
    mine, theirs = make_pipe()
    os.set_blocking(theirs, False)  # as ssh's and node's may be
    launcher = bed.start(theirs, WRITES, "2", str(MUCH))
    assert Reader(mine, pause_s=0.002).all() == expected(MUCH)
    assert launcher.wait() == 0


BOTH = """
import sys
for number in range(20_000):
    print(number, file=(sys.stdout, sys.stderr)[number % 3 > 0], flush=True)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_to_the_same_place_keeps_its_order(bed: Bed, kind: str) -> None:
    mine, theirs = KINDS[kind]()
    launcher = bed.start(theirs, BOTH, stdout=theirs)
    assert Reader(mine).all().split() == [b"%d" % number for number in range(20_000)]
    assert launcher.wait() == 0
    assert bed.events()[0]["has_stdout"]


def test_a_stdout_of_its_own_is_left_alone(bed: Bed, tmp_path: Path) -> None:
    mine, theirs = make_pipe()
    code = "import os, sys; print(os.readlink('/proc/self/fd/1')); print('err', file=sys.stderr)"
    with (tmp_path / "out").open("w") as out:
        assert bed.start(theirs, code, stdout=out).wait() == 0
    assert (tmp_path / "out").read_text() == f"{tmp_path}/out\n"
    assert Reader(mine).all() == b"err\n"


def test_a_terminal_stays_one_of_the_same_size(bed: Bed) -> None:
    mine, theirs = make_terminal()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    code = """
import os, sys, time
print(sys.stderr.isatty(), sys.stdout.isatty(), *os.get_terminal_size(2), file=sys.stderr)
while tuple(os.get_terminal_size(2)) != (61, 17): time.sleep(0.01)
print("resized", file=sys.stderr)
"""
    kept = os.dup(theirs)
    launcher = bed.start(theirs, code, stdout=theirs)
    reader = Reader(mine)
    reader.wait_for(len(b"True True 100 40\n"))
    fcntl.ioctl(kept, termios.TIOCSWINSZ, struct.pack("HHHH", 17, 61, 0, 0))
    assert launcher.wait() == 0
    os.close(kept)
    assert reader.all() == b"True True 100 40\nresized\n"


WHAT = """
import json
from guardrun.launcher.attempt.stderr_capture import find_way
way = find_way()
print(json.dumps(None if way is None else [way.is_terminal, way.has_stdout]), end="")
"""


def find(stderr: int | None, **more: Any) -> Any:
    done = subprocess.run([sys.executable, "-c", WHAT], stdout=subprocess.PIPE, stderr=stderr, check=True, **more)
    return json.loads(done.stdout)


def test_what_is_passed_on_and_what_is_not(tmp_path: Path) -> None:
    mine, theirs = make_pipe()
    assert find(theirs) == [False, False]
    assert find(subprocess.STDOUT) == [False, True]
    assert find(subprocess.DEVNULL) == [False, False]
    with (tmp_path / "log").open("w") as log:
        assert find(log.fileno()) is None, "that is read back as it is"
    assert find(None, preexec_fn=lambda: os.close(2)) is None
    kept_closed = "import os\nos.set_inheritable(2, False)\n"
    done = subprocess.run([sys.executable, "-c", kept_closed + WHAT], capture_output=True, check=True)
    assert done.stdout == b"null"
    os.close(mine)
    os.close(theirs)
    mine, theirs = make_terminal()
    assert find(theirs) == [True, False]
    assert find(theirs, start_new_session=True) is None, "it would become the session's own"
    os.close(mine)
    os.close(theirs)
