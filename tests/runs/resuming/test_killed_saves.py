"""A run that saves in time, keeps its state in memory, forks its ranks and passes over data, killed as a whole.

Its own ranks are killed, too, one by one and all at once: the moments lie in saves, writes from memory, and starts of
forked ranks as well. `make soak` plays 200 moments from the first 50 ms of a run to its end, `make test` two.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from guardrun.supervisor.engine.model.events import AttemptStarted, CheckpointChosen, DataReplayed, RunContinued
from guardrun.supervisor.rundir.journal import read_lines
from tests.runs.runs import SCRIPTS, USAGE_ERROR, kill_all, starts
from tests.runs.samples import trained, undisturbed
from tests.support.forkserver.program import other_name
from tests.support.guardrun_run import GuardrunRun, GuardrunStarter

MOMENTS, PARTS = 200, 2
FIRST_S = 0.05
SAMPLES, EPOCHS = 80, 4
COMMAND = [
    "--guard-run-id=job",
    "--nproc-per-node=2",
    str(SCRIPTS / "once.py"),
    f"--samples={SAMPLES}",
    f"--epochs={EPOCHS}",
    "--save-every=6",
    "--everything",
    "--kills=8:0,15:-1,23:1,33:-1",
]
CONFIG = """
[checkpoint]
dir = "out"
exact_data = true
jit_s = 5
snapshot_steps = 2
[restart]
max_restarts = 40
[launcher]
warm = "auto"
warm_free_mb = 0
"""
OWN = b"what a user keeps beside checkpoints"


class KilledSaves:
    """One run of one folder, with something of the user's in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.out.mkdir(parents=True)
        (self.out / "README").write_bytes(OWN)
        self.starter = GuardrunStarter(folder)

    def start(self, executed: bool = False) -> GuardrunRun:
        """executed: ranks by an interpreter of their own, as everywhere but in tests; others are never forked warm.

        Such steps are so long that a warm process is there before the first rank is killed.
        """
        if executed:
            return self.starter.start([*COMMAND, "--step-s=0.5"], config=CONFIG, env={"PYTHON_EXEC": other_name()})
        return self.starter.start([*COMMAND, "--step-s=0.03"], config=CONFIG)

    def checkpoints(self) -> dict[str, str]:
        """What each consists of, by its name: all are put in place whole."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.out.glob("[!.]*.pt")}

    def passed_over(self) -> set[str]:
        """Saves in time that were still being looked at when all was killed: what they hold nobody knows."""
        lines = [line.event for line in read_lines(self.folder / "guardrun-runs" / "job") if line is not None]
        skipped = [one for event in lines if isinstance(event, CheckpointChosen) for one in event.skipped]
        return {Path(one.path).name for one in skipped if "just-in-time save that failed" in one.reason}

    def without_account(self) -> tuple[set[int], int]:
        """Attempts that had no account of the data which their checkpoint holds; and the first one after the kill."""
        again, unknown, is_continued = -1, set(), False
        for line in read_lines(self.folder / "guardrun-runs" / "job"):
            event = None if line is None else line.event
            is_continued |= isinstance(event, RunContinued)
            if isinstance(event, AttemptStarted) and is_continued and again < 0:
                again = event.attempt
            if isinstance(event, DataReplayed) and event.status == "unknown":
                unknown.add(event.attempt)
        return unknown, again

    def close(self) -> None:
        self.starter.close()


def step_of(name: str) -> int:
    return int(Path(name).stem.rpartition("_")[2])


@pytest.fixture(scope="module")
def is_soak(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--hypothesis-profile") == "soak")


@pytest.fixture(scope="module")
def length_s(tmp_path_factory: pytest.TempPathFactory, is_soak: bool) -> Iterator[float]:
    """How long the run takes that nobody kills."""
    runs = KilledSaves(tmp_path_factory.mktemp("whole"))
    try:
        done = runs.start(is_soak).wait(300)
        assert done.returncode == 0, done
        check_trained(runs)
        yield done.took_s
    finally:
        runs.close()


def check_trained(runs: KilledSaves, steps: int | None = None) -> None:
    """To the end, each sample once; or so far only as that many steps."""
    for rank in (0, 1):
        assert trained(runs.folder, rank)[:steps] == undisturbed(rank, SAMPLES, EPOCHS)[:steps]
    assert (runs.out / "README").read_bytes() == OWN
    assert [path.name for path in runs.out.iterdir() if path.suffix not in (".pt", ".tmp", "")] == []


def play(folder: Path, at_s: float, executed: bool) -> str:
    """Kill a run so long after its start, and start it again; what came of it, in a few words."""
    runs = KilledSaves(folder)
    try:
        run = runs.start(executed)
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(at_s)
        kill_all(run)
        kept = runs.checkpoints()
        done = runs.start(executed).wait(300)
        now = runs.checkpoints()
        assert {name: now.get(name) for name in kept} == kept, done
        if done.returncode == USAGE_ERROR:
            assert "run job has ended (finished)" in done.stderr, done
            check_trained(runs)
            return "it had ended"
        assert done.returncode == 0, done
        first, passed_over = min(starts(done)), runs.passed_over()
        # Of a save a moment before, no account may have been written yet: that is told, of that start alone.
        unknown, again = runs.without_account()
        assert unknown <= {again}, done
        check_trained(runs, first if unknown else None)
        assert passed_over <= {f"step_{step}.pt" for step in (8, 23)}, done
        assert first == max(map(step_of, kept.keys() - passed_over), default=0), done
        return f"from step {first}"
    finally:
        runs.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_killed_at_any_moment_of_saving_and_starting_loses_nothing(
    part: int, length_s: float, tmp_path: Path, is_soak: bool
) -> None:
    """Two runs, one after the other: takes half a minute."""
    moments = list(range(part * MOMENTS // PARTS, (part + 1) * MOMENTS // PARTS))
    if not is_soak:
        moments = [random.choice(moments)]
    for moment in moments:
        at_s = FIRST_S + moment * (length_s - FIRST_S) / (MOMENTS - 1)
        print(f"moment {moment}, {at_s:.3f} s: {play(tmp_path / str(moment), at_s, is_soak)}", flush=True)
