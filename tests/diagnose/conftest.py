"""guardctl diagnose in a process of its own, jobs of plain torchrun, and ranks that are only looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from guardrun.supervisor.diagnose.answer import Diagnosis
from tests.collect.conftest import is_asleep
from tests.support.guardrun_run import MARK, GuardrunRun, GuardrunStarter, clean_environment
from tests.support.processes import descendants, kill_marked, reap
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parent / "scripts" / "commanded.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


class Said(NamedTuple):
    """What guardctl diagnose said."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> Diagnosis:
        """The JSON, held against its own description: nothing missing, nothing more."""
        found = msgspec.json.decode(self.out, type=Diagnosis)
        assert set(msgspec.json.decode(self.out)) == set(Diagnosis.__struct_fields__)
        return found


def diagnose(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Said:
    """Run it as a user does; --json where not told otherwise."""
    environ = {**clean_environment("", {}), **(env or {})}
    del environ[MARK]
    command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "diagnose", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=240, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


@contextmanager
def after_first_look(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """guardctl diagnose --json, once it has looked for the first time and waits for the second."""
    command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "diagnose", *arguments, "--json"]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            seen = wait_until(lambda: faults_of_children(process.pid), 30, "the first py-spy")
            quiet_s = time.monotonic()
            while time.monotonic() - quiet_s < 0.5:  # one py-spy for each rank, at once or one after the other
                now = faults_of_children(process.pid)
                if now != seen or descendants(process.pid) or not is_asleep(process.pid):
                    seen, quiet_s = now, time.monotonic()
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


def faults_of_children(pid: int) -> int:
    """Page faults of children that have ended and been reaped (cminflt, proc(5)): grows with every py-spy."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[8])


def ended(process: subprocess.Popen[str]) -> Said:
    """What it said at its end."""
    out, err = process.communicate(timeout=240)
    return Said(process.returncode, out, err)


class Commanded:
    """A job of commanded.py."""

    def __init__(self, run: GuardrunRun) -> None:
        self.run = run
        self.folder = run.folder

    def pid_of(self, rank: int) -> int:
        """Of a rank, by its environment."""
        found = []
        for process in self.run.find("commanded.py"):
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables:
                found.append(process.pid)
        return min(found)

    def suffer(self, fault: str) -> None:
        """Have rank 1 do it; returns when it does."""
        self._flag(b"0")
        command = self.folder / "command.new"
        command.write_text(fault)
        command.rename(self.folder / "command")
        wait_until((self.folder / "begun").exists, 20, f"the beginning of {fault}")

    def release(self, fault: str) -> None:
        """Let rank 1 go on; returns when it does."""
        if fault == "spin":
            self._flag(b"1")
        else:
            (self.folder / "gate").write_text("")
        wait_until(lambda: not (self.folder / "begun").exists(), 20, f"the end of {fault}")

    def _flag(self, value: bytes) -> None:
        """In place: the file is mapped."""
        fd = os.open(self.folder / "flag", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, value, 0)
        finally:
            os.close(fd)


def start_commanded(folder: Path, program: list[str] | None, **options: Any) -> tuple[GuardrunStarter, Commanded]:
    """Start a job of two ranks; it trains when this returns. program: in guardrun's place."""
    starter = GuardrunStarter(folder, program)
    os.mkfifo(folder / "gate")
    try:
        run = starter.start(["--nproc-per-node=2", "--standalone", str(SCRIPT)], **options)
        run.wait_for_output("rank 1 trains")
    except BaseException:
        starter.close()
        raise
    return starter, Commanded(run)


class Bare:
    """Processes that bear a rank's environment and are no training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, text: str, *, name: str | bytes = "script.py", **variables: str) -> int:
        """Start a script; it has printed `ready` when this returns. Answers its pid."""
        path = os.fsencode(self.folder) + b"/" + os.fsencode(name)
        with open(path, "w") as file:
            file.write(text)
        process = subprocess.Popen(
            [sys.executable, path],
            env={**clean_environment(self.mark, {}), **variables},
            stdout=subprocess.PIPE,
        )
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
        return process.pid

    def ranks(self, text: str, count: int, **variables: str) -> list[int]:
        """As many ranks of one job, as torchrun would start them on one node."""
        common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "localhost"}
        common |= {"MASTER_PORT": self.mark[:5], "TORCHELASTIC_RUN_ID": self.mark, **variables}
        return [self.start(text, name=f"rank{n}.py", RANK=str(n), LOCAL_RANK=str(n), **common) for n in range(count)]

    def close(self) -> None:
        left = kill_marked(MARK, self.mark)
        for process in self.started:
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
        reap(left)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    started = Bare(tmp_path)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Said]:
    """diagnose with --json, in the test's folder."""

    def call(*arguments: str | int) -> Said:
        return diagnose(*map(str, arguments), "--json", cwd=tmp_path)

    return call
