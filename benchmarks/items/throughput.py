"""Steps a second: of a DDP loop whose step computes for about 5 ms, and of one that reduces 500 times a second."""

from __future__ import annotations

import json
import os
import select
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.item import Bench, Figure, Target
from benchmarks.items.results import read_result
from benchmarks.job import Job, Launcher
from tests.emu.build import build

STEP_MS = 5.0
ROUNDS, QUICK_ROUNDS = 4, 1
"""Each with new processes: some are quicker than others for as long as they live."""
PAIRS, QUICK_PAIRS = 15, 4
STEPS, QUICK_STEPS = 200, 50
"""A turn: 200 are about a second, so that whatever guardrun does once a second happens in each."""
EMU_STEPS = 100
EMU_CALLS = 5
"""A step's of emu_loop.py."""
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

    def __init__(
        self,
        launcher: Launcher,
        script: str,
        arguments: Sequence[str],
        stack: ExitStack,
        environment: dict[str, str] | None = None,
    ) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        # For reading and writing: neither end waits for the other to open it.
        self._go, self._done = (os.open(folder / name, os.O_RDWR) for name in ("go", "done"))
        for descriptor in (self._go, self._done):
            stack.callback(os.close, descriptor)
        job = Job(launcher, script, [*arguments, "--turns", str(folder)], environment=dict(environment or {}))
        self._job = stack.enter_context(job)

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


Sides = tuple[list[Turn], list[Turn]]
"""torchrun's turns, and guardrun's."""


def _play(bench: Bench, script: str, arguments: Sequence[str], environment: dict[str, str] | None = None) -> Sides:
    """Play all rounds of a script that takes turns."""
    theirs: list[Turn] = []
    ours: list[Turn] = []
    for _ in range(bench.choose(QUICK_ROUNDS, ROUNDS)):
        before = len(ours)
        _play_round(bench, script, arguments, environment, (theirs, ours))
        speeds = (median(turn.steps_per_s for turn in turns[before:]) for turns in (theirs, ours))
        bench.say("torchrun {:.1f}, guardrun {:.1f} steps a second".format(*speeds))
    return theirs, ours


def _play_round(
    bench: Bench, script: str, arguments: Sequence[str], environment: dict[str, str] | None, turns: Sides
) -> None:
    """Both are started anew, and their turns added."""
    with ExitStack() as stack:
        players = [
            Player(launcher, script, arguments, stack, environment)
            for launcher in (Launcher.TORCHRUN, Launcher.GUARDRUN)
        ]
        for player in players:
            player.wait()
        sides = list(zip(players, turns, strict=True))
        for number in range(bench.choose(QUICK_PAIRS, PAIRS)):
            for player, played in sides if number % 2 else sides[::-1]:
                played.append(player.play())
        for player in players:
            player.end()


def _ratios(theirs: list[Turn], ours: list[Turn]) -> tuple[float, ...]:
    return tuple(b.steps_per_s / a.steps_per_s for a, b in zip(theirs, ours, strict=True))


def _figures(title: str, theirs: list[Turn], ours: list[Turn]) -> list[Figure]:
    speeds_ours, speeds_theirs = (tuple(turn.steps_per_s for turn in turns) for turns in (ours, theirs))
    cpu_ours, cpu_theirs = (tuple(turn.cpu_ms for turn in turns) for turns in (ours, theirs))
    return [
        Figure(title, "steps/s", speeds_ours, speeds_theirs),
        Figure("… throughput ratio", "", _ratios(theirs, ours), target=Target(0.995, is_floor=True)),
        Figure("… CPU time of a rank's step", "ms", cpu_ours, cpu_theirs),
    ]


class ThroughputItem:
    """Both are started, and then take turns of a second: a machine's speed drifts. Who is first changes by pairs."""

    name = "throughput"
    title = "Throughput of a DDP loop of 5 ms steps"

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, and guardrun's over torchrun's."""
        arguments = ["--batch", str(calibrate()), "--steps", str(bench.choose(QUICK_STEPS, STEPS))]
        return _figures("DDP loop of 5 ms steps, 2 ranks over gloo", *_play(bench, "ddp_loop.py", arguments))


class EmuThroughputItem:
    """The same on the emulated device, where each reduction is one that a watchdog and a recorder follow."""

    name = "emu_throughput"
    title = "Throughput on the emulated device"

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, guardrun's over torchrun's, and how many reductions a second that is."""
        build()
        arguments = ["--steps", str(bench.choose(QUICK_STEPS, EMU_STEPS))]
        theirs, ours = _play(bench, "emu_loop.py", arguments, {"EMU_SPIN": "0"})
        calls = tuple(EMU_CALLS * turn.steps_per_s for turn in ours)
        return [
            *_figures("emulated device, a reduction a layer, 2 ranks", theirs, ours),
            Figure("… reductions of a rank", "1/s", calls),
        ]
