"""Steps a second of a DDP loop whose step computes for about 5 ms."""

from __future__ import annotations

import json
import os
import select
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.item import Bench, Figure, Target
from benchmarks.items.results import read_result
from benchmarks.job import Job, Launcher

STEP_MS = 5.0
ROUNDS, QUICK_ROUNDS = 4, 1
"""Each with new processes: some are quicker than others for as long as they live."""
PAIRS, QUICK_PAIRS = 15, 4
STEPS, QUICK_STEPS = 200, 50
"""A turn: 200 are about a second, so that whatever guardrun does once a second happens in each."""
PATIENCE_S = 120.0


def calibrate() -> int:
    """The batch size that makes a step take STEP_MS on this machine; the work is then the same in every turn."""
    with Job(Launcher.TORCHRUN, "ddp_loop.py", ["--calibrate", str(STEP_MS)]) as job:
        job.wait()
        return int(read_result(job)["batch"])


@dataclass(frozen=True)
class Turn:
    """What one turn showed."""

    steps_per_s: float
    cpu_ms: float
    """CPU time of rank 0, all its threads, a step: steadier than the speed where the machine has other work, too."""


class Player:
    """The loop under one launcher, which waits, without work, while it is not its turn."""

    def __init__(self, launcher: Launcher, batch: int, steps: int, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        # For reading and writing: neither end waits for the other to open it.
        self._go, self._done = (os.open(folder / name, os.O_RDWR) for name in ("go", "done"))
        for descriptor in (self._go, self._done):
            stack.callback(os.close, descriptor)
        arguments = ["--batch", str(batch), "--steps", str(steps), "--turns", str(folder)]
        self._job = stack.enter_context(Job(launcher, "ddp_loop.py", arguments))

    def wait(self) -> dict[str, float]:
        """Wait until it is ready, or its turn is over. Raises CannotMeasure."""
        if not select.select([self._done], [], [], PATIENCE_S)[0]:
            raise self._job.trouble(f"no turn was over within {PATIENCE_S:g} s")
        found: dict[str, float] = json.loads(os.read(self._done, 4096))
        return found

    def play(self) -> Turn:
        """Take a turn. Raises CannotMeasure."""
        os.write(self._go, b"c")
        took = self.wait()
        return Turn(1 / took["step_s"], took["cpu_s"] * 1000)

    def end(self) -> None:
        """Raises CannotMeasure where it does not end well."""
        os.write(self._go, b"e")
        self._job.wait()


def _play(bench: Bench, batch: int, theirs: list[Turn], ours: list[Turn]) -> None:
    """A round: torchrun's turns and guardrun's are added."""
    with ExitStack() as stack:
        players = [
            Player(launcher, batch, bench.choose(QUICK_STEPS, STEPS), stack)
            for launcher in (Launcher.TORCHRUN, Launcher.GUARDRUN)
        ]
        for player in players:
            player.wait()
        sides = list(zip(players, (theirs, ours), strict=True))
        for number in range(bench.choose(QUICK_PAIRS, PAIRS)):
            for player, turns in sides if number % 2 else sides[::-1]:
                turns.append(player.play())
        for player in players:
            player.end()


class ThroughputItem:
    """Both are started, and then take turns of a second: a machine's speed drifts. Who is first changes by pairs."""

    name = "throughput"
    title = "Throughput of a DDP loop of 5 ms steps"

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, and guardrun's over torchrun's."""
        batch = calibrate()
        ours: list[Turn] = []
        theirs: list[Turn] = []
        for _ in range(bench.choose(QUICK_ROUNDS, ROUNDS)):
            before = len(ours)
            _play(bench, batch, theirs, ours)
            speeds = (median(turn.steps_per_s for turn in turns[before:]) for turns in (theirs, ours))
            bench.say("torchrun {:.1f}, guardrun {:.1f} steps a second".format(*speeds))
        speeds_ours, speeds_theirs = (tuple(turn.steps_per_s for turn in turns) for turns in (ours, theirs))
        cpu_ours, cpu_theirs = (tuple(turn.cpu_ms for turn in turns) for turns in (ours, theirs))
        ratios = tuple(a / b for a, b in zip(speeds_ours, speeds_theirs, strict=True))
        return [
            Figure("DDP loop of 5 ms steps, 2 ranks over gloo", "steps/s", speeds_ours, speeds_theirs),
            Figure("… throughput ratio", "", ratios, target=Target(0.995, is_floor=True)),
            Figure("… CPU time of a rank's step", "ms", cpu_ours, cpu_theirs),
        ]
