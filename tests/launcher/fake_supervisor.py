"""A supervisor small enough to see through: it writes down what it is told, and orders what torchrun would do.

Started like guardrund: the run directory comes as a line on stdin. How it behaves is in FAKE_SUPERVISOR, a JSON object:
dies (bool): exits as soon as it hears the launcher; deaf (bool): never answers; checkpoint: {"path", "step"} given to
every attempt but the first; first_checkpoint: likewise for the first; grace_s: of its stops.
It keeps what it was told in RUN/facts.jsonl and, started again, goes on from there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.rundir.run_directory import read_run_file
from guardrun.supervisor.wire.control_messages import (
    CONTROL_SOCKET,
    Ack,
    Exited,
    Finish,
    LauncherHello,
    Signalled,
    Start,
    Started,
    Stop,
    Stopped,
    ToSupervisor,
)


class Brain:
    def __init__(self, run_dir: Path) -> None:
        self.run = read_run_file(run_dir)
        self.facts = run_dir / "facts.jsonl"
        self.style: dict[str, Any] = json.loads(os.environ.get("FAKE_SUPERVISOR", "{}"))
        self.last_seq = -1
        self.failure = 0
        self.signum = 0
        self.attempts = 0

    def checkpoint(self, name: str) -> Checkpoint | None:
        found = self.style.get(name)
        return Checkpoint(**found) if found else None

    def replay(self) -> None:
        if self.facts.exists():
            for line in self.facts.read_bytes().splitlines():
                fact = msgspec.json.decode(line, type=ToSupervisor)
                if not isinstance(fact, LauncherHello):
                    self.think(fact)

    def hear(self, message: Any) -> list[Any]:
        with self.facts.open("ab") as file:
            file.write(msgspec.json.encode(message) + b"\n")
        if isinstance(message, LauncherHello):
            waits = (self.run.session > 0 or self.run.settings.resume_first) and message.attempt < 0
            first = [Start(attempt=self.run.session, checkpoint=self.checkpoint("first_checkpoint"))] if waits else []
            return [Ack(seq=0), *first]
        return [Ack(seq=message.seq), *self.think(message)]

    def think(self, fact: Any) -> list[Any]:
        if fact.seq <= self.last_seq:
            return []
        self.last_seq = fact.seq
        if isinstance(fact, Signalled):
            self.signum = fact.signum
        elif isinstance(fact, Started):
            self.attempts += 1
            return [Finish(exit_code=1)] if fact.error else []
        elif isinstance(fact, Exited) and fact.exitcode and not self.failure and not self.signum:
            self.failure = fact.exitcode
            return [Stop(attempt=fact.attempt, grace_s=self.style.get("grace_s", 5.0))]
        elif isinstance(fact, Stopped):
            return self.after(fact)
        return []

    def after(self, fact: Stopped) -> list[Any]:
        failure, self.failure = self.failure, 0
        if self.signum:
            return [Finish(exit_code=128 + self.signum)]
        if not failure:
            return [Finish(exit_code=0)]
        restarts = 0 if self.run.settings.is_torchrun_agent else self.run.settings.max_restarts
        if self.attempts - 1 < restarts:
            return [Start(attempt=fact.attempt + 1, checkpoint=self.checkpoint("checkpoint"))]
        return [Finish(exit_code=128 - failure if failure < 0 else failure)]


def main() -> int:
    line = sys.stdin.readline()
    if not line:
        return 0
    run_dir = Path(line.rstrip("\n"))
    brain = Brain(run_dir)
    with (run_dir / "supervisors").open("a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    brain.replay()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 1000)
        router.bind(f"ipc://{Path(brain.run.socket_dir) / CONTROL_SOCKET}")
        while True:
            if not router.poll(500):
                if not Path(f"/proc/{brain.run.launcher_pid}").exists():
                    return 1
                continue
            identity, frame = router.recv_multipart()
            if brain.style.get("dies"):
                os._exit(3)
            if brain.style.get("deaf"):
                continue
            for answer in brain.hear(msgspec.msgpack.decode(frame, type=ToSupervisor)):
                router.send_multipart([identity, msgspec.msgpack.encode(answer)])
                if isinstance(answer, Finish):
                    time.sleep(0.05)
                    return 0


if __name__ == "__main__":
    sys.exit(main())
