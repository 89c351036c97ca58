"""A bed for ranks: boards, a socket that hears what they say, and the environment that the launcher would give them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from guardrun.hooks.wire import messages
from guardrun.hooks.wire.board import Board, Field, Milestone, board_name, create_board
from tests.support.real import find_program

INJECT = Path(messages.__file__).parents[1] / "inject"
DEADLINE_S = 60.0

MessageT = TypeVar("MessageT", bound=messages.RankMessage)


class Bed:
    """Stands where launcher and supervisor do. Use as a context manager: nothing outlives it."""

    def __init__(self, world_size: int = 1) -> None:
        self.world_size = world_size
        # Not pytest's folder: a Unix socket's path has room for 107 bytes.
        self.sockets = Path(tempfile.mkdtemp(prefix="guardrun-test-"))
        self.processes: list[subprocess.Popen[str]] = []
        self.gc: dict[str, object] = {}
        """The table [gc] of the configuration."""
        self.times_devices = False
        """[slowdown] device_timing."""
        self.numeric = "watch"
        """[guards] numeric."""
        self.skip_sigmas = 0.0
        self.detect = "metrics"
        self.held: list[str] = []
        """Checkpoints that are not to be written over before one has been opened."""
        self.heard: list[messages.RankMessage] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(f"ipc://{self.sockets}/beats")
        self._decoder = msgspec.msgpack.Decoder(messages.RankMessage)
        self._boards: dict[tuple[int, int], Board] = {}

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for board in self._boards.values():
            board.close()
        self.stop_listening()
        self._context.term()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def stop_listening(self) -> None:
        """As if the supervisor had died."""
        self._socket.close(0)

    def settings(self, attempt: int | None = 0, pythonpath: str | None = None) -> dict[str, object]:
        """What GUARDRUN_HOOKS holds."""
        return {
            "sockets": str(self.sockets),
            "attempt": attempt,
            "launcher_pid": os.getpid(),
            "token": "t",
            "pythonpath": pythonpath,
            "gc": self.gc,
            "device_timing": self.times_devices,
            "numeric": self.numeric,
            "skip_sigmas": self.skip_sigmas,
            "detect": self.detect,
            **({"held": self.held} if self.held else {}),
        }

    def environment(
        self,
        rank: int = 0,
        attempt: int | None = 0,
        *,
        base: dict[str, str] | None = None,
        more: dict[str, str] | None = None,
    ) -> dict[str, str]:
        """A rank's environment, with hooks; base: what it would be without them."""
        env = dict(os.environ if base is None else base)
        env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.world_size), **(more or {}))
        before = env.get("PYTHONPATH")
        env["GUARDRUN_HOOKS"] = json.dumps(self.settings(attempt, before))
        env["PYTHONPATH"] = f"{INJECT}{os.pathsep}{before}" if before else str(INJECT)
        return env

    def make_board(self, rank: int = 0, attempt: int = 0) -> None:
        """Make a board as the launcher does."""
        create_board(str(self.sockets / board_name(attempt, rank)))

    def board(self, rank: int = 0, attempt: int = 0) -> Board:
        """The board of a rank."""
        key = (attempt, rank)
        if key not in self._boards:
            self._boards[key] = Board(str(self.sockets / board_name(attempt, rank)))
        return self._boards[key]

    def start(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        rank: int = 0,
        attempt: int | None = 0,
        cwd: Path | None = None,
        program: str = sys.executable,
        more: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a rank: program (Python) with the arguments `command`; `more` is added to its environment."""
        if attempt is not None and not (self.sockets / board_name(attempt, rank)).exists() and self.sockets.exists():
            self.make_board(rank, attempt)
        process = subprocess.Popen(
            [program, *command],
            env=self.environment(rank, attempt, more=more) if env is None else env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def run(self, code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run code in a rank to its end."""
        return finish(self.start(["-c", code, *arguments], more=more))

    def run_until(
        self, kind: type[MessageT], code: str, **more: str
    ) -> tuple[MessageT, subprocess.CompletedProcess[str]]:
        """Run code in a rank that ends once a message of this kind has come: else it might end before it is sent."""
        path = self.sockets / "heard"
        path.unlink(missing_ok=True)
        waits = "import os, time\nwhile not os.path.exists(os.environ['HEARD']): time.sleep(0.01)"
        process = self.start(["-c", f"{code}\n{waits}"], more={**more, "HEARD": str(path)})
        message = self.wait_for(kind)
        path.touch()
        return message, finish(process)

    def wait_for(self, kind: type[MessageT], rank: int | None = None, deadline_s: float = DEADLINE_S) -> MessageT:
        """The first message of a kind, when it comes."""
        until = time.monotonic() + deadline_s
        position = 0
        while True:
            while position < len(self.heard):
                message = self.heard[position]
                position += 1
                if isinstance(message, kind) and rank in (None, message.global_rank):
                    return message
            if not self._hear(until - time.monotonic()):
                raise AssertionError(f"no {kind.__name__} came; heard: {self.heard}")

    def hear_all(self, kind: type[MessageT]) -> list[MessageT]:
        """All messages of a kind that have come so far: those of a rank that has ended, too, once the last is read."""
        while self._hear(0.5):
            pass
        return [message for message in self.heard if isinstance(message, kind)]

    def _hear(self, timeout_s: float) -> bool:
        if not self._socket.poll(max(0, int(timeout_s * 1000))):
            return False
        self.heard.append(self._decoder.decode(self._socket.recv()))
        return True

    def wait_until(self, field: Field, test: object = None, rank: int = 0, deadline_s: float = DEADLINE_S) -> int:
        """Wait until a board's field is what test says (default: not 0); answer it."""
        board = self.board(rank)
        until = time.monotonic() + deadline_s
        while True:
            value = board[field]
            if test(value) if callable(test) else value:
                return value
            if time.monotonic() > until:
                raise AssertionError(f"{field.name} stayed {value}: {dict(zip(Field, board.read(), strict=True))}")
            time.sleep(0.005)

    def milestones(self, rank: int = 0) -> set[Milestone]:
        """The milestones that a rank's board shows."""
        bits = self.board(rank)[Field.MILESTONES]
        return {milestone for milestone in Milestone if bits & milestone}


def finish(process: subprocess.Popen[str], timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    """Wait for a process's end; of one that does not end, say where it stands."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        dump = [find_program("py-spy") or "py-spy", "dump", "--native", "--pid", str(process.pid)]
        where = subprocess.run(dump, capture_output=True, text=True, timeout=60, check=False)
        raise AssertionError(f"it had not ended after {timeout_s:g} s: {where.stdout}{where.stderr}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_plain(command: Sequence[str], env: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python without guardrun."""
    return subprocess.run(
        [sys.executable, *command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240.0,
        start_new_session=True,
        check=False,
    )
