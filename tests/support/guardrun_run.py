"""The real `guardrun` in a process of its own, and everything it starts ended afterwards, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import Process, kill_marked, marked
from tests.support.real import find_program
from tests.support.waiting import LEAST_S, wait_until

MARK = "TEST_RUN_MARK"
"""Environment variable that every process of a run inherits. Not GUARDRUN_…: guardrun warns of unknown ones."""

NOT_INHERITED = ("GUARDRUN_", "PET_", "TORCHELASTIC_", "TORCH_NCCL_", "NCCL_", "SLURM_")
ALSO_NOT_INHERITED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYTHONPATH",
)


def clean_environment(mark: str, extra: dict[str, str | None]) -> dict[str, str]:
    """This process's environment without what would steer a run; None in extra takes a variable out."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(NOT_INHERITED) and name not in ALSO_NOT_INHERITED
    }
    environment |= {MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # What the pre-flight says depends on the machine: tests of it turn it on.
    environment |= {"GUARDRUN_PREFLIGHT_LEVEL": "off"}
    for name, value in extra.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    returncode: int
    """As subprocess has it: negative where a signal ended guardrun itself."""
    stdout: str
    stderr: str
    run_dir: Path | None
    incidents: list[dict[str, Any]]
    summary: dict[str, Any] | None
    took_s: float

    def __str__(self) -> str:
        return f"guardrun ended with {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class GuardrunRun:
    """A live run: guardrun in a session of its own, its output in files under `folder`."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        mark: str,
        program: list[str] | None = None,
    ) -> None:
        """program: what is run in guardrun's place, where a test needs parts of it replaced."""
        self.folder = folder
        self.mark = mark
        self.guard_dir = Path(environment.get("GUARDRUN_DIR", folder / "guardrun-runs"))
        self._stdout = folder / f"stdout-{mark[:8]}.txt"
        self._stderr = folder / f"stderr-{mark[:8]}.txt"
        script = Path(sys.executable).with_name("guardrun")
        command = program or ([str(script)] if script.exists() else [sys.executable, "-m", "guardrun"])
        self._began_s = time.monotonic()
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        """Everything written so far."""
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    @property
    def run_dir(self) -> Path | None:
        """Where `latest` leads, once the run directory is there."""
        latest = self.guard_dir / "latest"
        return latest.resolve() if latest.exists() else None

    def incidents(self) -> list[dict[str, Any]]:
        """The incident.json files so far, in order."""
        if self.run_dir is None:
            return []
        return [json.loads(path.read_text()) for path in sorted(self.run_dir.glob("incidents/*/incident.json"))]

    def summary(self) -> dict[str, Any] | None:
        """summary.json, once it is there."""
        path = self.run_dir / "summary.json" if self.run_dir else None
        return json.loads(path.read_text()) if path is not None and path.exists() else None

    def alive(self) -> list[Process]:
        """Every living process of this run, guardrun included, whatever became of their parents."""
        return marked(MARK, self.mark)

    def find(self, words: str) -> list[Process]:
        """Those whose command line contains `words`: `guardrund`, the script's name."""
        return [process for process in self.alive() if words in process.command]

    def supervisors(self) -> list[Process]:
        """Every living guardrund; without what one is just starting, which has its name until it executes another."""
        found = self.find("guardrund")
        pids = {one.pid for one in found}
        return [one for one in found if one.ppid not in pids]

    def wait_for_output(self, words: str, timeout_s: float = 120.0) -> None:
        """Wait until `words` appear on stdout or stderr. Raises TimeoutError, or AssertionError where the run ended."""

        def seen() -> bool:
            ended = self.process.poll() is not None  # read first: the output is whole only after the end
            if words in self.stdout or words in self.stderr:
                return True
            assert not ended, f"guardrun ended before {words!r}: {self.result()}"
            return False

        wait_until(seen, timeout_s, f"{words!r} in the output of {self.process.args!r}")

    def send(self, signum: signal.Signals) -> None:
        """Signal guardrun itself, as a terminal or a scheduler would."""
        self.process.send_signal(signum)

    def guardctl(self, *arguments: str) -> str:
        """Run the real command in the run's folder; its standard output. Raises AssertionError where it fails."""
        program = find_program("guardctl")
        assert program is not None
        environment = {**os.environ, "GUARDRUN_DIR": str(self.guard_dir)}
        done = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait(self, timeout_s: float = 240.0) -> Finished:
        """Wait for the end. Raises AssertionError with all output where it does not come in timeout_s, or LEAST_S."""
        timeout_s = max(timeout_s, LEAST_S)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            parts = [f"guardrun still ran after {timeout_s:g} s", *map(str, self.alive())]
            parts += ["--- stdout", self.stdout, "--- stderr", self.stderr]
            raise AssertionError("\n".join(parts)) from None
        return self.result()

    def result(self) -> Finished:
        return Finished(
            returncode=self.process.wait(0),
            stdout=self.stdout,
            stderr=self.stderr,
            run_dir=self.run_dir,
            incidents=self.incidents(),
            summary=self.summary(),
            took_s=time.monotonic() - self._began_s,
        )

    def close(self) -> list[Process]:
        """End what is left of the run; what had to be ended, guardrun first."""
        left = kill_marked(MARK, self.mark)
        self.process.wait(60)
        return left


class GuardrunStarter:
    """Starts runs for one test (fixtures `start_guardrun`, `run_guardrun`) and ends them all at its teardown."""

    def __init__(self, folder: Path, program: list[str] | None = None) -> None:
        self.folder = folder
        self._program = program
        self._runs: list[GuardrunRun] = []

    def start(
        self,
        arguments: list[str],
        *,
        script: str | None = None,
        script_args: list[str] | None = None,
        config: str | None = None,
        env: dict[str, str | None] | None = None,
    ) -> GuardrunRun:
        """Start guardrun in the test's folder.

        arguments: flags, and script or module where `script` is not given; script: source, written to train.py;
        config: TOML, written to guardrun.toml; env: added to a cleaned environment, None takes out.
        """
        if config is not None:
            (self.folder / "guardrun.toml").write_text(config)
        if script is not None:
            (self.folder / "train.py").write_text(script)
            arguments = [*arguments, "train.py"]
        mark = uuid.uuid4().hex
        environment = clean_environment(mark, {"GUARDRUN_DIR": str(self.folder / "guardrun-runs"), **(env or {})})
        run = GuardrunRun([*arguments, *(script_args or [])], self.folder, environment, mark, self._program)
        self._runs.append(run)
        return run

    def run(self, arguments: list[str], *, timeout_s: float = 240.0, **options: Any) -> Finished:
        """Start and wait for the end; options as for start."""
        return self.start(arguments, **options).wait(timeout_s)

    def close(self) -> None:
        for run in self._runs:
            run.close()
