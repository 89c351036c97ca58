"""The garbage collector: shown on the board while it runs, and said when it held up a step.

`gc.callbacks` calls before a collection begins and after it ended, with the GIL held in between: the start time on
the board is what tells a collection from a hang. A script's own handling of the collector is never touched, but for
PYTHONGC_THRESHOLD, which the interpreter itself ignores.
"""

from __future__ import annotations

import gc
import os
from time import monotonic_ns

from guardrun.hooks.rank import rank as _rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guardrun.hooks.rank.rank import Rank

THRESHOLD = "PYTHONGC_THRESHOLD"
HELD_NS = 1_000_000_000
"""Collections of a step that together take this long are told (contract: `gc_pause`)."""
MIN_SHARE = 0.1
"""They count as a pause where they take at least this share of the step's time so far: a long evaluation, or the
imports at the start, come to a second as well."""
SCHEDSTAT = "/proc/thread-self/schedstat"
"""Its second number: nanoseconds for which the thread was ready to run and had no core (Documentation/scheduler)."""
COUNT_EVERY_NS = 60_000_000_000

_SINCE, _GENERATION = int(Field.GC_SINCE_NS), int(Field.GC_GENERATION)
_COUNT, _TOTAL = int(Field.GC_COUNT), int(Field.GC_TOTAL_NS)
_STEP, _STEP_NS = int(Field.STEP), int(Field.STEP_NS)


def start(rank: Rank) -> None:
    """Watch collections and apply PYTHONGC_THRESHOLD. Raises ValueError where that is malformed."""
    gc.callbacks.append(StepSum(rank).on_collection)
    text = os.environ.get(THRESHOLD, "")
    if text:
        gc.set_threshold(*parse_threshold(text))


def parse_threshold(text: str) -> tuple[int, ...]:
    """Parse `700,10,10`: one to three numbers as gc.set_threshold takes them. Raises ValueError."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not 1 <= len(values) <= 3 or any(not 0 <= value < 2**31 for value in values):
        raise ValueError(f'{THRESHOLD}="{text}" is not one to three numbers, as in 700,10,10')
    return values


def read_run_delay_ns() -> int:
    """How long this thread has waited for a core so far; 0 where the kernel doesn't tell. Some microseconds."""
    try:
        fd = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 64).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    finally:
        os.close(fd)


class StepSum:
    """What collections cost the step under way."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._counted_ns = self._delayed_ns = 0
        self._begin(-1, 0)

    def _begin(self, step: int, now_ns: int) -> None:
        self._step = step
        self._began_ns = now_ns
        self._held_ns = 0
        self._collected = 0
        self._generation = 0
        self._is_told = False

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """gc's callback. The pair costs little more than a microsecond."""
        words = self._rank.words
        if phase == "start":
            words[_GENERATION] = info["generation"]
            if info["generation"] == 2:
                self._delayed_ns = read_run_delay_ns()
            words[_SINCE] = monotonic_ns()
            return
        since_ns = words[_SINCE]
        if since_ns == 0:
            return
        now_ns = monotonic_ns()
        took_ns = now_ns - since_ns
        words[_SINCE] = 0
        words[_COUNT] += 1
        words[_TOTAL] += took_ns
        if info["generation"] == 2:
            # On a busy node a full collection waits for a core as all else does: that is not its own time.
            took_ns -= max(0, read_run_delay_ns() - self._delayed_ns)
        step = words[_STEP]
        if step != self._step:
            self._begin(step, since_ns)
        self._held_ns += took_ns
        self._collected += info["collected"]
        self._generation = max(self._generation, info["generation"])
        if self._held_ns >= HELD_NS and not self._is_told:
            self._tell_if_held(took_ns, now_ns, info["generation"])

    def _tell_if_held(self, took_ns: int, now_ns: int, generation: int) -> None:
        began_ns = self._rank.words[_STEP_NS] or self._began_ns
        if self._held_ns < MIN_SHARE * (now_ns - began_ns):
            return
        self._is_told = True
        rank = self._rank
        if rank is _rank.active:
            rank.send(
                "GcHeld",
                duration_s=self._held_ns / 1e9,
                generation=self._generation,
                collected=self._collected,
                tracked=self._count_tracked(took_ns, now_ns, generation),
                step=rank.step_now(),
            )

    def _count_tracked(self, took_ns: int, now_ns: int, generation: int) -> int:
        """How many objects the collector tracks; -1 where that is not to be had cheaply.

        Nothing in `gc` tells the number without building a list of all of them, but the frozen ones can be counted.
        Right after a full collection all objects are in the oldest generation, so that freezing and unfreezing them
        changes nothing. It takes a tenth of what that collection took (measured: 5 ms for 400,000 objects, 51 ms for
        4 million); so only after a full one that was long, and once in COUNT_EVERY_NS. What the script has frozen
        itself must stay frozen: then there is no number.
        """
        if generation < 2 or took_ns < HELD_NS or now_ns - self._counted_ns < COUNT_EVERY_NS:
            return -1
        if gc.get_freeze_count():
            return -1
        self._counted_ns = now_ns
        gc.freeze()
        try:
            return gc.get_freeze_count()
        finally:
            gc.unfreeze()
