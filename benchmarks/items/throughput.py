"""Steps a second: of a DDP loop whose step computes for about 5 ms, and of one that reduces 500 times a second."""

from __future__ import annotations

import json
import os
import random
import select
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.item import Bench, Figure, Target
from benchmarks.items.results import read_result
from benchmarks.job import Job, Launcher
from tests.emu.build import build

STEP_MS = 5.0
ROUNDS, QUICK_ROUNDS = 20, 1
"""Each with new processes, at most: some are quicker than others for as long as they live."""
LEAST_ROUNDS = 6
PAIRS, QUICK_PAIRS = 4, 2
STEPS, QUICK_STEPS = 100, 20
"""A turn: 100 are about a second, so that whatever guardrun does once a second happens in each."""
WIDTH = 0.003
"""Of the interval: a target of half a per cent needs no more turns then."""
RESAMPLES = 2000
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
    """CPU time of all threads of all ranks, a step: steadier than the speed where the machine has other work, too."""


Pair = tuple[Turn, Turn]
"""torchrun's turn, and guardrun's, one right after the other."""


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

    def set_apart(self, core: int) -> None:
        """Keep what is not a rank off the ranks' core: what launcher and supervisor cost has an item of its own.

        Where the kernel happens to put them would else decide the turn, and differ from round to round.
        """
        others = os.sched_getaffinity(0) - {core}
        if core < 0 or not others:
            return
        for process in self._job.find(""):
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                with suppress(OSError):  # it has ended since
                    if os.sched_getaffinity(int(thread.name)) != {core}:
                        os.sched_setaffinity(int(thread.name), others)

    def play(self) -> Turn:
        """Take a turn. Raises CannotMeasure."""
        os.write(self._go, b"c")
        took = self.wait()
        return Turn(1 / took["step_s"], took["cpu_s"] * 1000)

    def end(self) -> None:
        """Raises CannotMeasure where it does not end well."""
        os.write(self._go, b"e")
        self._job.wait()


def _play(
    bench: Bench, script: str, arguments: Sequence[str], environment: dict[str, str] | None = None
) -> list[list[Pair]]:
    """Play rounds of a script that takes turns, until the ratio is known well enough."""
    core = max(os.sched_getaffinity(0)) if len(os.sched_getaffinity(0)) > 1 else -1
    rounds: list[list[Pair]] = []
    while len(rounds) < bench.choose(QUICK_ROUNDS, ROUNDS):
        rounds.append(_play_round(bench, script, [*arguments, "--core", str(core)], environment, core))
        low, high = interval([speed_ratios(pairs) for pairs in rounds])
        bench.say(f"round {len(rounds)}: throughput ratio {low:.4f} to {high:.4f}")
        if len(rounds) >= LEAST_ROUNDS and high - low <= WIDTH:
            break
    return rounds


def _play_round(
    bench: Bench, script: str, arguments: Sequence[str], environment: dict[str, str] | None, core: int
) -> list[Pair]:
    """Both are started anew, and take turns."""
    with ExitStack() as stack:
        players = [
            Player(launcher, script, arguments, stack, environment)
            for launcher in (Launcher.TORCHRUN, Launcher.GUARDRUN)
        ]
        for player in players:
            player.wait()
            player.set_apart(core)
        pairs: list[Pair] = []
        for number in range(bench.choose(QUICK_PAIRS, PAIRS)):
            turns = [player.play() for player in (players if number % 2 else players[::-1])]
            pairs.append((turns[0], turns[1]) if number % 2 else (turns[1], turns[0]))
        for player in players:
            player.end()
    return pairs


def speed_ratios(pairs: Sequence[Pair]) -> list[float]:
    """guardrun's speed over torchrun's, of each pair."""
    return [ours.steps_per_s / theirs.steps_per_s for theirs, ours in pairs]


def cpu_ratios(pairs: Sequence[Pair]) -> list[float]:
    """guardrun's CPU time over torchrun's, of each pair."""
    return [ours.cpu_ms / theirs.cpu_ms for theirs, ours in pairs]


def interval(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Where the mean of the rounds' medians lies, with 95 % confidence.

    Bootstrapped over rounds: the turns of one round share their processes, and are no independent samples.
    """
    medians = [median(each) for each in rounds]
    chance = random.Random(0)
    means = sorted(fmean(chance.choices(medians, k=len(medians))) for _ in range(RESAMPLES))
    return means[RESAMPLES * 25 // 1000], means[RESAMPLES * 975 // 1000]


def _ratio(name: str, rounds: Sequence[Sequence[float]], target: Target | None = None) -> Figure:
    low, high = interval(rounds)
    note = f"95 %: {low:.4f} to {high:.4f}, {len(rounds)} rounds"
    return Figure(name, "", tuple(median(each) for each in rounds), target=target, note=note)


def _figures(title: str, rounds: Sequence[Sequence[Pair]]) -> list[Figure]:
    theirs, ours = ([pair[side] for pairs in rounds for pair in pairs] for side in (0, 1))
    speeds_theirs, speeds_ours = (tuple(turn.steps_per_s for turn in turns) for turns in (theirs, ours))
    cpu_theirs, cpu_ours = (tuple(turn.cpu_ms for turn in turns) for turns in (theirs, ours))
    return [
        Figure(title, "steps/s", speeds_ours, speeds_theirs),
        _ratio("… throughput ratio", [speed_ratios(pairs) for pairs in rounds], Target(0.995, is_floor=True)),
        Figure("… CPU time of all ranks, a step", "ms", cpu_ours, cpu_theirs),
        _ratio("… ratio of these", [cpu_ratios(pairs) for pairs in rounds]),
    ]


class ThroughputItem:
    """Both are started, and then take turns of a second: a machine's speed drifts. Who is first changes by pairs.

    Ranks of both share one core, so that the speed is what a step costs, and no matter of which core is free.
    """

    name = "throughput"
    title = "Throughput of a DDP loop of 5 ms steps"

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, and guardrun's over torchrun's."""
        arguments = ["--batch", str(calibrate()), "--steps", str(bench.choose(QUICK_STEPS, STEPS))]
        return _figures("DDP loop of 5 ms steps, 2 ranks over gloo", _play(bench, "ddp_loop.py", arguments))


class EmuThroughputItem:
    """The same on the emulated device, where each reduction is one that a watchdog and a recorder follow."""

    name = "emu_throughput"
    title = "Throughput on the emulated device"

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, guardrun's over torchrun's, and how many reductions a second that is."""
        build()
        arguments = ["--steps", str(bench.choose(QUICK_STEPS, STEPS))]
        rounds = _play(bench, "emu_loop.py", arguments, {"EMU_SPIN": "0"})
        calls = tuple(EMU_CALLS * ours.steps_per_s for pairs in rounds for _, ours in pairs)
        return [
            *_figures("emulated device, a reduction a layer, 2 ranks", rounds),
            Figure("… reductions of a rank", "1/s", calls),
        ]
