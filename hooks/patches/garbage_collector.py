"""The garbage collector: on the board while it runs, said when it held up a step, kept to one step on all ranks.

`gc.callbacks` calls before a collection begins and after it ended, with the GIL held in between: the start time on
the board is what tells a collection from a hang. A script's own handling of the collector is never touched, but for
PYTHONGC_THRESHOLD, which the interpreter itself ignores.
"""

from __future__ import annotations

import gc
import os
import sys
from _thread import allocate_lock
from time import monotonic_ns

from guardrun.hooks.rank import rank as _rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guardrun.hooks.rank.rank import Rank


THRESHOLD = "PYTHONGC_THRESHOLD"
HELD_NS = 1_000_000_000
"""Collections of a step that together take this long are told (contract: `gc_pause`), and again each time that it
has grown by a quarter: nobody knows which one is the step's last."""
MIN_SHARE = 0.1
"""They count as a pause where they last at least this share of the step's time so far: a long evaluation, or the
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
        self._lasted_ns = 0
        self._collected = 0
        self._generation = 0
        self._tell_at_ns = HELD_NS

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
        took_ns = lasted_ns = now_ns - since_ns
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
        self._lasted_ns += lasted_ns
        self._collected += info["collected"]
        self._generation = max(self._generation, info["generation"])
        if self._held_ns >= self._tell_at_ns:
            self._tell_if_held(took_ns, now_ns, info["generation"])

    def _tell_if_held(self, took_ns: int, now_ns: int, generation: int) -> None:
        began_ns = self._rank.words[_STEP_NS] or self._began_ns
        if self._lasted_ns < MIN_SHARE * (now_ns - began_ns):
            return
        self._tell_at_ns = self._held_ns * 5 // 4
        rank = self._rank
        if rank is _rank.active:
            rank.send(
                "GcHeld",
                duration_s=self._held_ns / 1e9,
                lasted_s=self._lasted_ns / 1e9,
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


# GC policy ----------------------------------------------------------------------------------------------------------
# `[gc] policy = "freeze"`: collections at the same step on all ranks, instead of whenever a rank's own counters say.
#
# An automatic collection comes when a process has allocated enough, so each rank pays at a step of its own, and every
# rank that shares a collective with it pays as well. Under this policy a rank collects after its first WARMUP_STEPS
# steps, sets aside all that is alive then (gc.freeze: the model, the modules, the dataset; a collection after it looks
# only at what has come since), turns automatic collection off, and collects every `every_steps` steps: what is young,
# and each FULL_EVERY-th time all that is not frozen, so that what a script keeps is not looked at over and over.
#
# - Steps are counted as the board counts them: those of the optimizer that has done most, or the script's own step().
#   All ranks count the same where they train in step; where one skips a step alone (a scaler that found an overflow on
#   one rank only), it collects a step later than the others from then on, which costs time and nothing else.
# - The collector is the script's where it has touched it before the warm-up's end: turned off, other thresholds, frozen
#   objects, or a full collection of its own since the first step. Then nothing is done, and that is said. So it is when
#   the script turns the collector on, or changes its thresholds, later. A script that turns it off only after
#   the warm-up looks like ours: such a script is better off without the policy.
# - Garbage is never left for long: where no step comes for IDLE_NS (an evaluation) the automatic collector is lent
#   back until the next step, and where more than MAX_NEW_OBJECTS have piled up the next step collects.


FREEZE = "freeze"
WARMUP_STEPS = 5
"""By then lazy imports, compiled code and the optimizer's state are there to be frozen."""
FULL_EVERY = 10
"""Of the collections at common steps, one so often is a full one. The others look at generations 0 and 1: what has been
allocated since the last, and that is where a training step's garbage is."""
_YOUNG, _FULL = 1, 2
IDLE_NS = 10_000_000_000
IDLE_STEPS = 3
"""A step may take longer than IDLE_NS: then so many times the last one."""
MAX_NEW_OBJECTS = 1_000_000
"""Allocated and not freed since the last collection: some hundred megabytes, if all of it is garbage."""


def start_policy(rank: Rank) -> None:
    """Follow the policy that the launcher has handed on. Raises ValueError where that is malformed."""
    table = rank.settings.get("gc")
    if not isinstance(table, dict) or table.get("policy") != FREEZE:
        return
    every = int(table["every_steps"])
    if every < 1:
        raise ValueError(f"gc policy: every {every} steps")
    policy = Policy(rank, every)
    rank.gc_policy = policy
    gc.callbacks.append(policy.on_collection)


class Policy:
    """One rank's collector, while the script leaves it to us."""

    def __init__(self, rank: Rank, every_steps: int) -> None:
        self._rank = rank
        self._every = every_steps
        self._threshold = gc.get_threshold()
        self._steps = 0
        self._due = WARMUP_STEPS
        self._first = 0
        """The step at which it began."""
        self._last_ns = 0
        self._gap_ns = 0
        self._explicit = 0
        """Full collections that the script has asked for since its first step."""
        self._is_ours = False
        """Automatic collection is off, and it was us."""
        self._is_lent = False
        """… and on again until the next step."""
        self._is_collecting = False
        self._lock = allocate_lock()
        """Held while the two above change: steps and beats are of different threads."""

    def on_step(self, now_ns: int) -> None:
        """A step is done. Well below a microsecond but for the steps that collect. Never raises."""
        self._steps += 1
        self._gap_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        if self._steps >= self._due or self._is_lent:
            try:
                with self._lock:
                    self._act()
            except Exception as error:
                self._rank.gc_policy = None
                self._rank.fail("gc policy", error)

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """gc's callback: tell the script's own full collections from automatic ones, which come above a threshold."""
        if phase != "start" or info["generation"] < 2 or not self._steps or self._is_ours or self._is_collecting:
            return
        if gc.get_count()[0] <= gc.get_threshold()[0]:
            self._explicit += 1

    def on_beat(self, now_ns: int) -> None:
        """Once a second, from the hooks' thread: see to it that garbage does not pile up between steps."""
        if not self._is_ours or self._is_lent:
            return
        if now_ns - self._last_ns > max(IDLE_NS, IDLE_STEPS * self._gap_ns):
            with self._lock:
                if self._is_ours:
                    gc.enable()
                    self._is_lent = True
        elif gc.get_count()[0] > MAX_NEW_OBJECTS:
            self._due = self._steps + 1

    def _act(self) -> None:
        if not self._is_ours:
            self._take_over()
            return
        why = self._why_not_ours()
        if why:
            self._stand_aside(why)
            return
        if self._is_lent:
            gc.disable()
            self._is_lent = False
        if self._steps >= self._due:
            if is_capturing():
                self._due = self._steps + 1
                return
            # Multiples of the interval: a collection that came early changes nothing about when all ranks collect.
            intervals, early = divmod(self._steps - self._first, self._every)
            self._collect(_FULL if not early and intervals % FULL_EVERY == 0 else _YOUNG)
            self._due = self._steps - early + self._every

    def _take_over(self) -> None:
        why = self._whose()
        if why:
            self._stand_aside(why)
            return
        if is_capturing():
            self._due = self._steps + 1
            return
        self._collect(_FULL)
        gc.freeze()
        gc.disable()
        self._is_ours = True
        self._first = self._steps
        self._due = self._steps + self._every
        self._rank.note("gc policy", f"followed from step {self._steps} on: {gc.get_freeze_count()} objects are frozen")

    def _collect(self, generation: int) -> None:
        self._is_collecting = True
        try:
            gc.collect(generation)
        finally:
            self._is_collecting = False

    def _whose(self) -> str:
        """Why the collector is the script's own, in words; empty where it is not."""
        if not gc.isenabled():
            return "the script has turned the collector off"
        if gc.get_threshold() != self._threshold:
            return "the script has set thresholds of its own"
        if gc.get_freeze_count():
            return "the script has frozen objects itself"
        if self._explicit:
            return "the script collects by itself"
        return ""

    def _why_not_ours(self) -> str:
        if gc.isenabled() and not self._is_lent:
            return "the script has turned the collector on again"
        if gc.get_threshold() != self._threshold:
            return "the script has set thresholds of its own"
        return ""

    def _stand_aside(self, why: str) -> None:
        self._forget()
        self._rank.note("gc policy", f"not followed: {why}")

    def give_back(self) -> None:
        """The script's end, or a forked child: the collector is as if there had been no policy.

        A child keeps what is frozen: its pages are shared with the rank for as long as no collection writes to them.
        """
        is_ours = self._is_ours
        self._forget()
        if is_ours:
            gc.enable()
            if self._rank is _rank.active:
                gc.unfreeze()

    def _forget(self) -> None:
        self._is_ours = self._is_lent = False
        self._rank.gc_policy = None
        try:
            gc.callbacks.remove(self.on_collection)
        except ValueError:  # The script has emptied the list.
            pass


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: what a collection frees would be freed inside of it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    return bool(cuda.is_current_stream_capturing())
