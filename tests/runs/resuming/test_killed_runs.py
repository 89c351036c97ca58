"""Everything that a run has started killed at one moment, as by a loss of power, and the same command again.

`make soak` plays 200 moments from the first 50 ms of a run to its end, `make test` one of every twenty.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runs.runs import RESUME, SCRIPTS, USAGE_ERROR, kill_all, starts
from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.support.waiting import wait_until

MOMENTS, PARTS = 200, 10
FIRST_S = 0.05
STEPS = 40
COMMAND = [
    "--guard-run-id=job",
    "--nproc-per-node=2",
    str(SCRIPTS / "plain.py"),
    f"--steps={STEPS}",
    "--step-s=0.01",
    "--save-every=5",
]


class KilledRuns:
    """One run of one folder, started again and again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.starter = GuardrunStarter(folder)
        self.journal = folder / "guardrun-runs" / "job" / "events.jsonl"

    def start(self, *arguments: str, env: dict[str, str | None] | None = None) -> GuardrunRun:
        return self.starter.start([*COMMAND, *arguments], config=RESUME, env=env)

    def highest(self) -> int:
        """The step of the newest checkpoint: each is put in place whole."""
        return max(
            (int(path.stem.removeprefix("ckpt_")) for path in (self.folder / "out").glob("*.safetensors")), default=0
        )

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: self.highest() >= step, 60, f"the checkpoint of step {step}")

    def close(self) -> None:
        self.starter.close()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledRuns]:
    runs = KilledRuns(tmp_path)
    try:
        yield runs
    finally:
        runs.close()


@pytest.fixture(scope="module")
def length_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the run takes that nobody kills; the first one waits for what it is forked from."""
    took_s = 0.0
    for name in ("first", "second"):
        runs = KilledRuns(tmp_path_factory.mktemp(name))
        try:
            done = runs.start().wait()
        finally:
            runs.close()
        assert done.returncode == 0, done
        took_s = done.took_s
    return took_s


def check_goes_on(runs: KilledRuns, done: Finished, highest: int) -> None:
    """From the newest checkpoint, to the end; and then never again."""
    assert done.returncode == 0 and starts(done) == {highest}, f"{highest} was there\n{done}"
    assert runs.highest() == STEPS
    check_ended(runs)


def check_ended(runs: KilledRuns) -> None:
    again = runs.start().wait()
    assert again.returncode == USAGE_ERROR and "run job has ended (finished)" in again.stderr, again
    assert not starts(again), again


def play(folder: Path, at_s: float) -> None:
    """Kill a run so long after its start, and start it again."""
    runs = KilledRuns(folder)
    try:
        run = runs.start()
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(at_s)
        was_over = run.process.poll() == 0
        kill_all(run)
        were_done = run.stdout.count(": done") == 2
        was_over = was_over or bool((summary := run.summary()) and summary["outcome"] == "finished")
        highest = runs.highest()
        if was_over:
            check_ended(runs)
            return
        done = runs.start().wait()
        if done.returncode == USAGE_ERROR and were_done:  # which the journal tells
            assert "run job has ended (finished)" in done.stderr and not starts(done), done
            return
        check_goes_on(runs, done, highest)
    finally:
        runs.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_killed_at_any_moment_goes_on_or_has_ended(
    part: int, length_s: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    moments = list(range(part * MOMENTS // PARTS, (part + 1) * MOMENTS // PARTS))
    if request.config.getoption("--hypothesis-profile") != "soak":
        moments = [random.choice(moments)]
    for moment in moments:
        at_s = FIRST_S + moment * (length_s - FIRST_S) / (MOMENTS - 1)
        began_s = time.monotonic()
        play(tmp_path / str(moment), at_s)
        print(f"moment {moment}, {at_s:.3f} s: {time.monotonic() - began_s:.1f} s")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _behead(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(b"\0" * 512 + data[512:])


@pytest.mark.parametrize(
    "lose", [Path.unlink, lambda path: os.truncate(path, 0), _cut, _behead], ids=["gone", "empty", "cut", "zeros"]
)
def test_a_run_whose_journal_is_lost_goes_on_from_its_newest_checkpoint(
    killed: KilledRuns, lose: Callable[[Path], None]
) -> None:
    run = killed.start("--plan=*:stop@22:0")
    killed.wait_for_step(20)
    kill_all(run)
    lose(killed.journal)
    highest = killed.highest()
    check_goes_on(killed, killed.start().wait(), highest)


def test_what_the_run_wrote_is_its_own_where_all_memory_of_it_is_lost(killed: KilledRuns) -> None:
    """And what lay there before is not."""
    (killed.folder / "out").mkdir()
    (killed.folder / "out" / "ckpt_99.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"{}")
    os.utime(killed.folder / "out" / "ckpt_99.safetensors", (1, 1))
    run = killed.start("--plan=*:stop@22:0")
    wait_until((killed.folder / "out" / "ckpt_20.safetensors").exists, 60, "the checkpoint of step 20")
    kill_all(run)
    for name in ("events.jsonl", "checkpoints.json"):
        (killed.journal.parent / name).unlink()
    done = killed.start().wait()
    assert done.returncode == 0 and starts(done) == {20}, done
    assert "nothing is recorded of what this run has done before" in done.stderr


def test_on_a_full_disk_it_is_not_begun_anew_elsewhere(killed: KilledRuns, small_tmpfs: Path) -> None:
    env: dict[str, str | None] = {"GUARDRUN_DIR": str(small_tmpfs)}
    run = killed.start("--plan=*:stop@22:0", env=env)
    killed.wait_for_step(20)
    kill_all(run)
    os.truncate(small_tmpfs / "job" / "events.jsonl", 0)
    with suppress(OSError), (small_tmpfs / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(512))
    refused = killed.start(env=env).wait()
    assert refused.returncode == USAGE_ERROR and not starts(refused), refused
    assert "run job is not continued: cannot write in" in refused.stderr and "No space left" in refused.stderr
    (small_tmpfs / "filler").unlink()
    done = killed.start(env=env).wait()
    assert done.returncode == 0 and starts(done) == {20}, done
