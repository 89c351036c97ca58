"""A real agent in a process of its own, in a folder of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from guardrun.supervisor.client.agent_client import Unreachable, ask
from tests.support.guardrun_run import clean_environment
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).with_name("program.py")
ENVIRONMENT = {"GUARDRUN_METRICS_NODE_LISTEN": ""}
"""The usual port is one a machine."""
ROOT = PROGRAM.parents[2]


class NotifySocket:
    """What systemd is to a service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.05)
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        """Every line so far."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().splitlines()
            except TimeoutError:
                return self.heard

    def wait_for(self, line: str, timeout_s: float = 20.0) -> None:
        wait_until(lambda: any(heard.startswith(line) for heard in self.listen()), timeout_s, f"{line} of {self.heard}")

    def close(self) -> None:
        self._socket.close()


class AgentBed:
    """One node's agent: started, ended, started again over the same state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "agent.sock"
        self.state = folder / "state"
        self.readings = folder / "readings"
        self.tell("cpu temperature_c 40\n")
        self.notify = NotifySocket(folder / "notify")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = folder / "agent.log"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def tell(self, readings: str) -> None:
        """What the sensor reads from now on; never half of it."""
        new = self.readings.with_suffix(".new")
        new.write_text(readings)
        new.replace(self.readings)

    def start(self, *arguments: str, env: dict[str, str | None] | None = None) -> subprocess.Popen[bytes]:
        """Start one and wait until it answers."""
        process = self.spawn(*arguments, env=env)
        self.wait_for_answer(process)
        return process

    def spawn(self, *arguments: str, env: dict[str, str | None] | None = None) -> subprocess.Popen[bytes]:
        environment = clean_environment("agent", {**ENVIRONMENT, "NOTIFY_SOCKET": str(self.notify.path), **(env or {})})
        environment["PYTHONPATH"] = str(ROOT)
        given = ["--state", str(self.state), "--socket", str(self.socket), *arguments]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.readings), *given],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def wait_for_answer(self, process: subprocess.Popen[bytes], timeout_s: float = 20.0) -> None:
        def answers() -> bool:
            assert process.poll() is None, f"the agent ended with {process.returncode}:\n{self.log}"
            try:
                return bool(self.ask("status")["pid"] == process.pid)
            except Unreachable:
                return False

        wait_until(answers, timeout_s, "the agent's answer")

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return ask(verb, arguments, path=self.socket, timeout_s=30.0)

    def history(self, **arguments: Any) -> dict[str, Any]:
        return self.ask("history", **arguments)

    def wait_for_entry(self, name: str, what: str = "") -> dict[str, Any]:
        """The newest entry of that name, once there is one."""

        def newest() -> dict[str, Any] | None:
            found = [dict(e) for e in self.history(name=name, what=what)["entries"]]
            return found[-1] if found else None

        entry = wait_until(newest, 20.0, f"an entry {name}")
        assert entry is not None
        return entry

    def end(self, process: subprocess.Popen[bytes], signum: int = signal.SIGTERM) -> int:
        """End one, and wait; answers its exit status."""
        process.send_signal(signum)
        return process.wait(60)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait(60)
        self.notify.close()


def start_time(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])


def children_end(process: subprocess.Popen[Any]) -> None:
    """End a child of the test's own, and reap it."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
