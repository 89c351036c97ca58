"""Jobs of several nodes: a real guardrun on each host of a lab, and what can be asked of it from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from guardrun.supervisor.engine.model.events import NodeReport
from guardrun.supervisor.engine.state.state import SAVES_IN_TIME
from guardrun.supervisor.rundir.journal import read_lines
from tests.fleet_runs.training import SCRIPT, Training
from tests.support.forkserver.alone import make_programs
from tests.support.guardrun_run import clean_environment
from tests.support.netlab import Host, Lab
from tests.support.processes import Process, is_alive
from tests.support.waiting import wait_until

PORT = 29650
CONFIG = """
[checkpoint]
dir = "out"
resume_args = ["--resume", "{path}"]
[hang]
floor_s = 4
sensitivity = "eager"
scale = 0.2
[restart]
stop_grace_s = 3
"""
QUICK = CONFIG + "[fleet]\nlost_s = 8\nterm_s = 5\nisolate_lost_s = 8\nlast_call_s = 40\n"
"""Patience for tests: what matters is the order of things, not how long they take."""
LASTING = QUICK.replace("lost_s = 8\nterm_s = 5", "lost_s = 40\nterm_s = 30")
"""Until a supervisor that was killed has a successor, nobody is heard: on a busy machine that takes a while."""


class Node:
    """One guardrun."""

    def __init__(self, host: Host, process: subprocess.Popen[Any], output: Path) -> None:
        self.host, self.process, self._output = host, process, output

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def processes(self) -> list[Process]:
        """Everything alive on its host."""
        return [one for one in self.host.namespaces.processes() if one.state not in "ZX"]

    def is_empty(self) -> bool:
        return not self.processes()

    def ranks(self) -> list[Process]:
        return [one for one in self.processes() if SCRIPT.name in one.command and "guardrun" not in one.command]

    def supervisor(self) -> Process:
        return next(one for one in self.processes() if "guardrund" in one.command)

    def launcher(self) -> Process:
        """guardrun itself."""
        return next(
            one for one in self.processes() if "guardrun --nnodes" in one.command and "guardrund" not in one.command
        )

    def wait(self, timeout_s: float = 90.0) -> int:
        """guardrun's exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            left = "\n".join(map(str, self.processes()))
            raise AssertionError(f"{self.host.name} still runs:\n{left}\n{self.output}") from None

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)


class Job(Training):
    """Nodes by host name; the folder of the run is shared unless a host hides it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        super().__init__(folder)
        self.lab = lab
        self.nodes: dict[str, Node] = {}
        self.script = SCRIPT
        self._started = 0

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    # Starting ------------------------------------------------------------------------------------------------

    def start(
        self,
        nodes: str | int,
        hosts: Sequence[str],
        *more: str,
        spares: int = 0,
        config: str = QUICK,
        script_args: Sequence[str] = (),
    ) -> None:
        """The same command line on all hosts but for --node-rank; the first leads."""
        (self.folder / "guardrun.toml").write_text(config)
        for number, name in enumerate(hosts):
            self.start_one(name, *flags(number, nodes, spares), *more, script_args=script_args)

    def start_one(
        self,
        name: str,
        *flags: str,
        script_args: Sequence[str] = (),
        env: dict[str, str | None] | None = None,
        under: Sequence[str] = (),
        known_as: str = "",
    ) -> Node:
        """A guardrun on a host, with these flags. under: a command that runs it. known_as: its key in `nodes`."""
        host = self.lab.host(name)
        self._started += 1
        output = self.marks / f"output-{self._started}-{name}.txt"
        own = {"GUARDRUN_NODE_STATE_DIR": str(self.state_of(name)), "GUARDRUN_DIR": None}
        environment = clean_environment(uuid.uuid4().hex, {**own, **(env or {})})
        programs = Path(sys.executable).parent
        if under:  # Nothing stands in for that, but for what it starts.
            programs = make_programs(self.marks / f"venv-{self._started}")
        guardrun = programs / "guardrun"
        command = [*under, str(guardrun), *flags, str(self.script), "--marks", str(self.marks), *script_args]
        with output.open("wb") as out:
            process = host.popen(command, environment, cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
        node = self.nodes[known_as or name] = Node(host, process, output)
        return node

    def state_of(self, name: str) -> Path:
        """Where a host keeps what it knows of itself."""
        return self.marks / f"state-{name}"

    # What it says ---------------------------------------------------------------------------------------------

    def says(self, name: str, words: str, timeout_s: float = 60.0) -> None:
        """Wait until a node's guardrun has said this."""
        self.wait_for(lambda: words in self[name].output, timeout_s, f"{name} to say {words!r}")

    def outputs(self) -> str:
        return "\n".join(f"--- {name}\n{node.output}" for name, node in self.nodes.items())

    # Faults ----------------------------------------------------------------------------------------------------

    def hang(self, rank: int) -> float:
        """Have a rank block in its own code; returns when that was asked for."""
        (self.marks / f"hang-{rank}").touch()
        return time.monotonic()

    def gone(self, pids: Sequence[int], timeout_s: float, what: str) -> float:
        """Wait until none of these processes lives; returns when that was seen."""
        self.wait_for(lambda: not any(map(is_alive, pids)), timeout_s, f"{what} to be gone")
        return time.monotonic()

    def died(self, death: Future[float], what: str) -> float:
        """Wait for a death that `note_death` notes; returns when that was."""
        self.wait_for(death.done, 60.0, f"{what} to be gone")
        return death.result()

    # The end -----------------------------------------------------------------------------------------------------

    def finish(self, timeout_s: float = 90.0) -> dict[str, int]:
        """Have the script end well; every guardrun's exit status."""
        (self.marks / "end").touch()
        return self.ended(timeout_s)

    def ended(self, timeout_s: float = 90.0) -> dict[str, int]:
        """Wait for the end of all guardruns; nothing may be left on their hosts."""
        codes = {name: node.wait(timeout_s) for name, node in self.nodes.items()}
        for name, node in self.nodes.items():
            self.wait_for(node.is_empty, 5.0, f"{name} to be empty")
        return codes

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return found

    def close(self) -> None:
        """End what is left; links are whole again."""
        for node in self.nodes.values():
            node.host.crash()
            node.process.wait()
            self.lab.restore(node.host)


def flags(number: int, nodes: str | int = 2, spares: int = 0) -> tuple[str, ...]:
    """torchrun's static flags for the host of that number; `head` leads."""
    job = (f"--nnodes={nodes}", "--nproc-per-node=1", f"--guard-spares={spares}")
    return (*job, f"--node-rank={number}", "--master-addr=head", f"--master-port={PORT}")


def guardctl(job: Job, name: str, *arguments: str) -> str:
    """guardctl node …, said on a host; returns what it prints."""
    program = Path(sys.executable).with_name("guardctl")
    state = f"GUARDRUN_NODE_STATE_DIR={job.state_of(name)}"
    return job.lab.host(name).run("env", state, str(program), "node", *arguments)


def kill(process: Process, signum: signal.Signals = signal.SIGKILL) -> float:
    os.kill(process.pid, signum)
    return time.monotonic()


def note_death(pid: int) -> Future[float]:
    """When this process dies: noted from now on, whatever the test waits for meanwhile."""
    noted: Future[float] = Future()
    descriptor = os.pidfd_open(pid)

    def wait() -> None:
        select.select([descriptor], [], [])
        noted.set_result(time.monotonic())
        os.close(descriptor)

    threading.Thread(target=wait, name=f"death of {pid}", daemon=True).start()
    return noted


def replaced(job: Job, name: str, old: int) -> None:
    """Wait for another supervisor than that one."""

    def seen() -> bool:
        found = [one for one in job[name].processes() if "guardrund" in one.command]
        return bool(found) and all(one.pid != old for one in found) and not is_alive(old)

    wait_until(seen, 20.0, f"another supervisor on {name}")


def go(job: Job, attempt: int, ranks: int = 2) -> None:
    """Let the attempt's fault happen, once the head knows that all its ranks may be asked."""

    def may_be_asked() -> bool:
        lines = read_lines(job.run_dir) if (job.run_dir / "events.jsonl").exists() else ()
        reports = [line.event for line in lines if line is not None and isinstance(line.event, NodeReport)]
        told = [rank for report in reports if report.attempt == attempt for rank in report.ranks]
        may = {rank.global_rank for rank in told if rank.milestones & SAVES_IN_TIME and rank.step}
        return may == {*range(ranks)}

    job.wait_for(may_be_asked, 60.0, f"ranks of attempt {attempt} that may be asked")
    (job.folder / f"go-{attempt}").touch()
