"""One run of a script under guardrun or torchrun, the same way; its processes ended whatever happens."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

import msgspec

from benchmarks.item import CannotMeasure
from tests.support.guardrun_run import MARK, clean_environment
from tests.support.processes import Process, kill_marked, marked

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "benchmarks" / "scripts"
POLL_S = 0.05
"""How often a log is looked at. Its lines hold their own times, so this sets no figure's precision."""
TAIL_CHARS = 3000
J = TypeVar("J", bound="Job")


class Launcher(str, Enum):
    """What starts the ranks."""

    GUARDRUN = "guardrun"
    TORCHRUN = "torchrun"


def start_cat(path: Path) -> tuple[subprocess.Popen[bytes], BinaryIO]:
    """The process that writes what comes out of a pipe into a file, and the end that is to be written to."""
    reader, writer = os.pipe()
    with path.open("wb") as output:
        cat = subprocess.Popen(["cat"], stdin=reader, stdout=output, start_new_session=True)
    os.close(reader)
    return cat, os.fdopen(writer, "wb")


def end_cat(cat: subprocess.Popen[bytes]) -> None:
    """Let it write all; somebody who was left over may still have the other end."""
    try:
        cat.wait(10)
    except subprocess.TimeoutExpired:
        cat.kill()
        cat.wait()


class Moment(msgspec.Struct, frozen=True):
    """A line that a script has written: what it reached, and when."""

    what: str
    at_ns: int
    """CLOCK_MONOTONIC"""
    attempt: int
    rank: int
    pid: int


class Job:
    """A live run, in a folder of its own; for `with`.

    Both launchers get the same flags: one node, static rendezvous on a free port, which is what a plain
    `torchrun --nproc-per-node=N` does.
    """

    def __init__(
        self,
        launcher: Launcher,
        script: str,
        arguments: Sequence[str] = (),
        *,
        ranks: int = 2,
        flags: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        is_piped: bool = False,
    ) -> None:
        """is_piped: the output goes through a pipe, with a `cat` at its end."""
        self.launcher = launcher
        self._is_piped = is_piped
        self._cat: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        """Of several commands those but the one that is watched: waited for at the end."""
        self.ranks = ranks
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._moments = self.folder / "moments.jsonl"
        self._output = self.folder / "output.txt"
        self._mark = uuid.uuid4().hex
        program = Path(sys.executable).with_name(launcher.value)
        # SIGKILL at the end: sockets and temporary files go with the folder.
        extra: dict[str, str | None] = {
            "GUARDRUN_DIR": str(self.folder / "runs"),
            "TMPDIR": str(self.folder),
            "XDG_RUNTIME_DIR": None,
            "PYTHONPATH": str(ROOT),
            "BENCH_MOMENTS": str(self._moments),
            **(environment or {}),
        }
        self._environment = clean_environment(self._mark, extra)
        self.began_ns = time.monotonic_ns()
        self.process = self._start([str(program), *flags], [str(SCRIPTS / script), *arguments])

    def _start(self, launcher: list[str], script: list[str]) -> subprocess.Popen[bytes]:
        own = [f"--nproc-per-node={self.ranks}", f"--master-port={free_port()}"]
        with self._open_output() as output:
            return subprocess.Popen(
                [*launcher, *own, *script],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _open_output(self) -> BinaryIO:
        if not self._is_piped:
            return self._output.open("wb")
        self._cat, output = start_cat(self._output)
        return output

    def __enter__(self: J) -> J:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_marked(MARK, self._mark)
        for process in (self.process, *self._others):
            process.wait(10)
        if self._cat is not None:
            end_cat(self._cat)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def run_dir(self) -> Path:
        """guardrun's run directory. Raises CannotMeasure where there is none."""
        latest = self.folder / "runs" / "latest"
        if not latest.exists():
            raise self.trouble("no run directory")
        return latest.resolve()

    def moments(self, what: str, attempt: int | None = 0, since_ns: int = 0) -> list[Moment]:
        """Those written so far, in the order in which they were. attempt: None for any."""
        found = [moment for moment in self.all_moments() if moment.what == what and moment.at_ns >= since_ns]
        return [moment for moment in found if attempt is None or moment.attempt == attempt]

    def all_moments(self) -> list[Moment]:
        """All that has been written so far."""
        lines = self._moments.read_bytes().splitlines() if self._moments.exists() else []
        return [msgspec.json.decode(line, type=Moment) for line in lines]

    def wait_for(
        self,
        what: str,
        attempt: int | None = 0,
        ranks: int | None = None,
        timeout_s: float = 60.0,
        since_ns: int = 0,
    ) -> list[Moment]:
        """Wait until so many ranks (all of them) have got there. Raises CannotMeasure where they don't."""
        wanted = self.ranks if ranks is None else ranks
        deadline_s = time.monotonic() + timeout_s
        while True:
            has_ended = self.process.poll() is not None  # read first: after the end nothing is added
            found = self.moments(what, attempt, since_ns)
            if len(found) >= wanted:
                return found
            if has_ended or time.monotonic() > deadline_s:
                why = "it ended before" if has_ended else f"in {timeout_s:g} s not reached:"
                where = "any attempt" if attempt is None else f"attempt {attempt}"
                raise self.trouble(f"{why} {what!r} of {wanted} ranks in {where} ({len(found)} got there)")
            time.sleep(POLL_S)

    def wait(self, timeout_s: float = 120.0) -> None:
        """Wait until it has ended well. Raises CannotMeasure where it doesn't."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.trouble(f"it still ran after {timeout_s:g} s") from None
        if status != 0:
            raise self.trouble(f"it ended with {status}")

    def find(self, words: str) -> list[Process]:
        """Its living processes with these words in their command lines."""
        return [process for process in marked(MARK, self._mark) if words in process.command]

    def trouble(self, text: str) -> CannotMeasure:
        """What went wrong, with the end of all that was said."""
        return CannotMeasure(f"{self.launcher.value}: {text}\n{self.output[-TAIL_CHARS:]}".rstrip())


def free_port() -> int:
    """A TCP port that nobody listens on. Below the range of outgoing connections, so that none takes it meanwhile."""
    for port in random.sample(range(20000, 32000), 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise CannotMeasure("no free port between 20000 and 32000")
