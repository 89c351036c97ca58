"""A training of two ranks on one node that goes on until it is told to end, and its ledger: what must hold of it.

The ledger is the script's own: where rank 0 began, and each step that it saved, in order. No step is saved twice, and
each attempt begins with the newest that was saved before: that is what "nothing is lost" means here.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from guardrun.supervisor.rundir.run_directory import read_run_file
from tests.runs.runs import RESUME, SCRIPTS, check_record, check_replay
from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.support.leaks import RESOURCE_TRACKER
from tests.support.processes import Process
from tests.support.waiting import wait_until

SAVE_EVERY = 5
LONG_S = 150.0


class Entry(NamedTuple):
    """A line of the ledger."""

    what: str
    """begins, saved"""
    step: int


class Bed:
    """One training, started once or several times under the same run id."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """stack: what the fault has laid out is taken away with it."""
        self.folder = folder
        self.stack = stack
        self.env: dict[str, str | None] = {}
        self.config = RESUME
        self.program: list[str] | None = None
        self.script = SCRIPTS / "plain.py"
        self.flags: list[str] = []
        self.messages = 0
        """Hostile ones that were sent."""
        self.is_recorded = True
        """The run directory is to be whole in the end; not where the fault is that it cannot be."""
        self.run_id = f"job-{uuid.uuid4().hex[:8]}"
        """No other's: where a run cannot be kept in its folder, it is kept beside those of other folders."""
        self._ledger = folder / "ledger"
        self._starters: list[GuardrunStarter] = []
        self._runs: list[GuardrunRun] = []

    # Starting ----------------------------------------------------------------------------------------------------

    def start(self, *arguments: str, when: str = "kill") -> GuardrunRun:
        """Start it, or go on with it. when: what rank 1 suffers once it is `hurt`."""
        starter = GuardrunStarter(self.folder, self.program)
        self._starters.append(starter)
        own = ["--steps=1000000", "--step-s=0.01", f"--save-every={SAVE_EVERY}", f"--when=now:{when}"]
        files = [f"--out={self.folder}/out", f"--end={self.folder}/end", f"--ledger={self._ledger}"]
        guardrun = [f"--guard-run-id={self.run_id}", "--nproc-per-node=2", *self.flags, str(self.script)]
        run = starter.start([*guardrun, *own, *files, *arguments], config=self.config, env=self.env)
        self._runs.append(run)
        return run

    def close(self) -> None:
        """End what is left; where the record is to be whole, its decisions are reached again."""
        for starter in self._starters:
            starter.close()
        for path in re.findall(r"this run is kept in (.*)", self.run.stderr if self._runs else ""):
            shutil.rmtree(path, ignore_errors=True)
        if self.is_recorded and self._runs and self.run_dir.is_dir():
            check_replay(self.run_dir)

    # Looking -----------------------------------------------------------------------------------------------------

    @property
    def run(self) -> GuardrunRun:
        """The newest start."""
        return self._runs[-1]

    @property
    def run_dir(self) -> Path:
        return self.run.guard_dir / self.run_id

    @property
    def journal(self) -> Path:
        return self.run_dir / "events.jsonl"

    @property
    def sockets(self) -> Path:
        """The folder of them."""
        return Path(read_run_file(self.run_dir).socket_dir)

    def entries(self) -> list[Entry]:
        """The ledger so far."""
        text = self._ledger.read_text() if self._ledger.exists() else ""
        return [Entry(what, int(step)) for what, step in re.findall(r"^(\w+) (\d+)\n", text, re.MULTILINE)]

    @property
    def saved(self) -> int:
        """The newest step that was saved."""
        return max((entry.step for entry in self.entries() if entry.what == "saved"), default=0)

    @property
    def begun(self) -> list[int]:
        """The step at which each attempt has begun."""
        return [entry.step for entry in self.entries() if entry.what == "begins"]

    def said(self, words: str) -> bool:
        """Whether guardrun.log has them."""
        path = self.run_dir / "guardrun.log"
        return path.exists() and words in path.read_text()

    # Waiting -----------------------------------------------------------------------------------------------------

    def wait_for(self, read: Any, what: str) -> Any:
        """What is read, once it is anything. Raises AssertionError with all that was said where that does not come."""
        try:
            return wait_until(read, LONG_S, what, every_s=0.01)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.run.stdout}\n{self.run.stderr}") from None

    def trains(self, steps: int = 4 * SAVE_EVERY) -> None:
        """Wait until so many more steps are saved, by the same guardrun."""
        goal = self.saved + steps
        self.wait_for(lambda: self.saved >= goal or self.run.process.poll() is not None, f"step {goal} to be saved")
        assert self.run.process.poll() is None, f"it has ended before step {goal}: {self.run.result()}"

    def supervisor(self) -> Process:
        """The one that lives."""
        found: list[Process] = self.wait_for(lambda: self.run.find("guardrund"), "a supervisor")
        return found[0]

    def ranks(self) -> list[Process]:
        """Those that live."""
        return [one for one in self.run.find(self.script.name) if "--nproc-per-node" not in one.command]

    def another(self, old: Process) -> Process:
        """Wait until there is a supervisor that is not `old`."""
        others = lambda: [one for one in self.run.find("guardrund") if one.pid != old.pid]  # noqa: E731
        found: list[Process] = self.wait_for(others, "another supervisor")
        return found[0]

    def is_gone(self) -> Finished:
        """Wait until guardrun and all that it has started have ended."""
        finished = self.run.wait()
        self.wait_for(lambda: not self.run.find(RESOURCE_TRACKER), "Python's own helper to end")
        self.wait_for(lambda: not self.run.alive(), "everything to be gone")
        return finished

    # Hurting -----------------------------------------------------------------------------------------------------

    def hurt(self) -> None:
        """Have rank 1 suffer what the start has named."""
        (self.folder / "now").touch()

    def mended(self, cause: str = "killed") -> None:
        """Wait until the run's first incident is recovered from: it was this, of rank 1, and ended by a restart."""
        self.wait_for(lambda: any(one["recovered"] for one in self.run.incidents()), f"{cause} to be mended")
        told = [(one["cause"], [c["rank"] for c in one["culprits"]], one["action"]) for one in self.run.incidents()]
        assert told == [(cause, [1], "restart")], told

    def restarted(self) -> None:
        """Wait for the next attempt: for where no record can tell."""
        before = len(self.begun)
        self.hurt()
        self.wait_for(lambda: len(self.begun) > before, "the next attempt")

    # The end -----------------------------------------------------------------------------------------------------

    def ends(self, attempts: int, code: int = 0) -> Finished:
        """Have it end well; then all that must hold."""
        (self.folder / "end").touch()
        finished = self.is_gone()
        assert finished.returncode == code, finished
        if self.is_recorded:
            check_record(finished)
            assert finished.summary is not None and finished.summary["outcome"] == "finished", finished
        self.check_ledger(attempts)
        return finished

    def check_ledger(self, attempts: int) -> None:
        """So many attempts; none has begun before what was saved, and nothing was saved twice."""
        assert len(self.begun) == attempts, self.entries()
        saved = 0
        for entry in self.entries():
            if entry.what == "saved":
                assert entry.step > saved, f"{entry.step} was saved after {saved}"
                saved = entry.step
            else:  # A save that ended with its rank may be missing here.
                assert entry.step in (saved, saved + SAVE_EVERY), f"begun at {entry.step}, where {saved} was saved"


def send(process: Process, signum: signal.Signals) -> None:
    os.kill(process.pid, signum)


def stop(processes: list[Process], seconds: float) -> None:
    """Have none of them run for so long; one or the other may have ended meanwhile."""
    for process in processes:
        with suppress(ProcessLookupError):
            send(process, signal.SIGSTOP)
    time.sleep(seconds)
    for process in reversed(processes):
        with suppress(ProcessLookupError):
            send(process, signal.SIGCONT)
