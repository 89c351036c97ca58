"""Faults of the node's agent, as a run sees them: a real one, and what only looks like one."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from guardrun.supervisor.wire.agent_messages import PROTOCOL, Refused, Welcome, pack
from tests.agent.bed import AgentBed
from tests.faults.bed import Bed
from tests.faults.row import Row
from tests.faults.stories import Unfelt

AGENT = "agent"
"""The folder of a real one's files, in the bed's."""


def connections(bed: Bed) -> int:
    """How often a supervisor has found an agent."""
    path = bed.run_dir / "guardrun.log"
    return path.read_text().count('"node_agent"') if path.exists() else 0


def open_agent(bed: Bed) -> AgentBed:
    """Lay out an agent's folder, in which the run looks for one."""
    folder = bed.folder / AGENT
    folder.mkdir()
    agent = AgentBed(folder)
    bed.stack.callback(agent.close)
    bed.env["GUARDRUN_AGENT_SOCKET"] = str(agent.socket)
    return agent


@dataclass(frozen=True)
class WithAgent:
    """A training beside a real agent, which suffers something."""

    suffers: Callable[[Bed, AgentBed, Popen[bytes]], str]
    holds = Unfelt.holds

    def __call__(self, bed: Bed) -> str:
        agent = open_agent(bed)
        process = agent.start()

        def fault(bed: Bed) -> str:
            bed.wait_for(lambda: connections(bed), "the supervisor to find the agent")
            return self.suffers(bed, agent, process)

        return Unfelt(fault)(bed)


def killed(bed: Bed, agent: AgentBed, process: Popen[bytes]) -> str:
    agent.end(process, signal.SIGKILL)
    bed.wait_for(lambda: bed.said("senses_of_its_own"), "the supervisor to sense for itself")
    return "the supervisor senses for itself"


def stopped(bed: Bed, agent: AgentBed, process: Popen[bytes]) -> str:
    process.send_signal(signal.SIGSTOP)
    bed.stack.callback(process.send_signal, signal.SIGCONT)
    bed.trains(100)
    return ""


def restarted(bed: Bed, agent: AgentBed, process: Popen[bytes]) -> str:
    agent.end(process, signal.SIGKILL)
    agent.start()
    bed.wait_for(lambda: connections(bed) == 2, "the supervisor to find the next one")
    return "the next one was found"


def upgraded(bed: Bed, agent: AgentBed, process: Popen[bytes]) -> str:
    assert agent.end(process, signal.SIGTERM) == 0
    agent.start()
    bed.wait_for(lambda: connections(bed) == 2, "the supervisor to find the next one")
    return "the next one was found"


def without_its_socket(bed: Bed, agent: AgentBed, process: Popen[bytes]) -> str:
    agent.socket.unlink()
    os.kill(bed.supervisor().pid, signal.SIGKILL)  # The next one finds none.
    bed.wait_for(lambda: bed.said("senses_of_its_own"), "the supervisor to sense for itself")
    return "the next supervisor senses for itself"


@dataclass(frozen=True)
class Late:
    """None is there at first."""

    holds = Unfelt.holds

    def __call__(self, bed: Bed) -> str:
        agent = open_agent(bed)

        def fault(bed: Bed) -> str:
            bed.wait_for(lambda: bed.said("senses_of_its_own"), "the supervisor to sense for itself")
            agent.start()
            bed.wait_for(lambda: connections(bed), "the supervisor to find the agent")
            return "it was found"

        return Unfelt(fault)(bed)


class FalseAgent:
    """Somebody at the agent's socket who answers each connection in one way."""

    def __init__(self, path: Path, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self.answered = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(5.0)
            self._open.append(connection)
            with suppress(OSError):
                self._answer(connection)
            self.answered += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()


@dataclass(frozen=True)
class WithFalseAgent:
    """A training beside somebody who is no agent."""

    answer: Callable[[socket.socket], None]
    again: bool
    """It is asked a second time, as it has been let go of, or has gone."""
    holds = Unfelt.holds

    def __call__(self, bed: Bed) -> str:
        path = bed.folder / "agent.sock"
        agent = FalseAgent(path, self.answer)
        bed.stack.callback(agent.close)
        bed.env["GUARDRUN_AGENT_SOCKET"] = str(path)

        def fault(bed: Bed) -> str:
            wanted = 2 if self.again else 1
            bed.wait_for(lambda: agent.answered >= wanted, "it to be asked")
            bed.messages += agent.answered
            bed.trains(100)
            return ""

        return Unfelt(fault)(bed)


def noise(connection: socket.socket) -> None:
    """Frames whose content is nothing."""
    for _ in range(200):
        connection.sendall((64).to_bytes(4, "big") + os.urandom(64))


def endless(connection: socket.socket) -> None:
    """A frame that says it is 4 GB long."""
    connection.sendall(b"\xff\xff\xff\xff" + bytes(4096))


def silence(connection: socket.socket) -> None:
    pass


def half(connection: socket.socket) -> None:
    frame = pack(Refused(why="x" * 100))
    connection.sendall(frame[: len(frame) // 2])
    connection.shutdown(socket.SHUT_RDWR)


def goodbye(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def refusal(connection: socket.socket) -> None:
    connection.sendall(pack(Refused(why="no room")))


def stranger(connection: socket.socket) -> None:
    """Of a version that nobody knows."""
    connection.sendall(pack(Welcome(protocol=PROTOCOL + 98, version="99", node="n", pid=1)))


ROWS = (
    Row("agent", "SIGKILL", "in training", WithAgent(killed)),
    Row("agent", "SIGSTOP", "in training", WithAgent(stopped)),
    Row("agent", "SIGKILL, and started again", "in training", WithAgent(restarted)),
    Row("agent", "SIGTERM, and started again", "in training", WithAgent(upgraded)),
    Row("agent", "its socket is removed, and the supervisor killed", "in training", WithAgent(without_its_socket)),
    Row("agent", "it comes late", "in training", Late()),
    Row("agent", "garbage in place of answers", "from the beginning", WithFalseAgent(noise, again=False)),
    Row("agent", "a frame of 4 GB is announced", "from the beginning", WithFalseAgent(endless, again=True)),
    Row("agent", "no answer, ever", "from the beginning", WithFalseAgent(silence, again=False), is_sample=True),
    Row("agent", "half an answer, then its end", "from the beginning", WithFalseAgent(half, again=True)),
    Row("agent", "it hangs up", "from the beginning", WithFalseAgent(goodbye, again=True)),
    Row("agent", "it refuses", "from the beginning", WithFalseAgent(refusal, again=True)),
    Row("agent", "it speaks a protocol of tomorrow", "from the beginning", WithFalseAgent(stranger, again=False)),
)
