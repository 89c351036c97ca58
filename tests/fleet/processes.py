"""Coordinators and deputies as processes, what they say, and what reached the coordinator's journal."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.netlab import Host
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = "tests.fleet.scripts."


class Said(NamedTuple):
    at_s: float
    words: list[str]


class Talker:
    """A process whose lines are read as they come."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.said: list[Said] = []
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def find(self, *words: str, after_s: float = 0.0) -> Said | None:
        """The first line that begins with these words."""
        while not self._queue.empty():
            at, *rest = self._queue.get().split()
            self.said.append(Said(float(at), rest))
        return next((s for s in self.said if s.at_s >= after_s and s.words[: len(words)] == list(words)), None)

    def wait_for(self, *words: str, after_s: float = 0.0, timeout_s: float = 15.0) -> Said:
        found = wait_until(lambda: self.find(*words, after_s=after_s), timeout_s, f"{words} among {self.said[-5:]}")
        assert found is not None
        return found

    def say(self, line: str) -> None:
        self._stdin.write(f"{line}\n")
        self._stdin.flush()

    def end(self) -> None:
        """Let it come to its end."""
        self._stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._stdout.close()
        self._stdin.close()

    def _read(self) -> None:
        for line in self._stdout:
            self._queue.put(line)


Start = Callable[..., Talker]


@contextmanager
def starting() -> Iterator[Start]:
    """Start scripts by name, here or on a host; they end with this."""
    started: list[Talker] = []

    def start(script: str, *arguments: object, host: Host | None = None) -> Talker:
        command: Sequence[str] = [sys.executable, "-m", SCRIPTS + script, *map(str, arguments)]
        if host is None:
            pipes = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipes, stdout=pipes, text=True, cwd=ROOT)
        else:
            process = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(Talker(process))
        return started[-1]

    try:
        yield start
    finally:
        for talker in started:
            talker.kill()


def journalled(folder: Path, node: str) -> list[str]:
    """What the coordinator has noted of a node, in order."""
    lines = (folder / "journal").read_text().splitlines()
    return [body for name, _, _, body in (line.split(" ", 3) for line in lines) if name == node]


def sent(link: Talker, timeout_s: float = 15.0) -> int:
    """Let a deputy end; how many it has sent."""
    link.end()
    return int(link.wait_for("sent", timeout_s=timeout_s).words[1])
