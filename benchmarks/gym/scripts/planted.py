"""What the script is made to suffer, by GYM_PLAN: `NAME@STEP:RANKS:SECONDS:ATTEMPTS`, several separated by commas; in
these ranks (`0+1`), once an attempt, at the first chance from that step on; ATTEMPTS is `first` or `every`; SECONDS is
how long what ends takes.

What it is, is in hangs.py, crashes.py and pauses.py; what needs the training's own objects, in train.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gym.scripts import crashes, hangs, pauses
from benchmarks.gym.scripts.diary import ATTEMPT, RANK, note


@dataclass
class Planting:
    """One item of the plan."""

    name: str
    step: int
    ranks: frozenset[int]
    seconds: float
    every_attempt: bool
    is_done: bool = False

    @property
    def is_meant(self) -> bool:
        """Say whether it is for this rank and attempt."""
        return RANK in self.ranks and (self.every_attempt or ATTEMPT == 0)


def parse_plan(text: str) -> list[Planting]:
    """Raises ValueError where it is no plan."""
    plan = []
    for item in filter(None, text.split(",")):
        what, ranks, seconds, attempts = item.split(":")
        name, step = what.split("@")
        numbers = frozenset(int(number) for number in ranks.split("+"))
        plan.append(Planting(name, int(step), numbers, float(seconds), attempts == "every"))
    return plan


PLAN = parse_plan(os.environ.get("GYM_PLAN", ""))


def find(name: str) -> Planting | None:
    """The first of that name that is still to come in this attempt, whatever the rank."""
    return next((p for p in PLAN if p.name == name and not p.is_done and (p.every_attempt or ATTEMPT == 0)), None)


def take(name: str, step: int) -> Planting | None:
    """What is to happen here and now; each planting once."""
    due = next((p for p in PLAN if p.name == name and p.is_meant and not p.is_done and step >= p.step), None)
    if due is not None:
        due.is_done = True
        note("planted", step)
    return due


def is_due(name: str, step: int) -> bool:
    """Say whether it is to happen here and now; true once for each planting."""
    return take(name, step) is not None


def going_on(name: str, step: int) -> Planting | None:
    """The same for what happens in every step from its own on."""
    due = next((p for p in PLAN if p.name == name and p.is_meant and step >= p.step), None)
    if due is not None and not due.is_done:
        due.is_done = True
        note("planted", step)
    return due


Faults = dict[str, tuple[str, Callable[[], object]]]
Pauses = dict[str, tuple[str, Callable[[float], object]]]


def suffer(place: str, step: int) -> None:
    """Have happen what is due at this place of the script."""
    happen(place, step, FAULTS, PAUSES)
    for name in {planting.name for planting in PLAN}:
        if name in EACH_STEP and EACH_STEP[name][0] == place and (due := going_on(name, step)):
            EACH_STEP[name][1](due.seconds)


def happen(place: str, step: int, faults: Faults, pauses: Pauses) -> None:
    """The same, of these tables: of what happens once."""
    for name in {planting.name for planting in PLAN}:
        if name in faults and faults[name][0] == place and is_due(name, step):
            faults[name][1]()
        if name in pauses and pauses[name][0] == place and (due := take(name, step)):
            pauses[name][1](due.seconds)


FAULTS: Faults = {
    "sleep": ("data", hangs.fetch_vocabulary_update),
    "lock": ("data", hangs.update_statistics),
    "socket": ("data", hangs.ask_feature_store),
    "fifo": ("data", hangs.read_commands),
    "thread_pool": ("data", hangs.augment_in_threads),
    "child": ("data", hangs.run_converter),
    "eval": ("eval", hangs.fetch_references),
    "upload": ("saved", hangs.upload_checkpoint),
    "init": ("start", hangs.wait_for_licence),
    "all_hang": ("data", hangs.wait_for_scheduler),
    "poison": ("data", hangs.parse_sample),
    "stop": ("data", hangs.stop),
    "groups_stop": ("data", hangs.stop),
    "gil": ("data", hangs.call_driver),
    "gil_loop": ("data", hangs.drain_stream),
    "spin": ("data", hangs.wait_for_flag),
    "spin_copy": ("data", hangs.copy_shard),
    "spin_asyncio": ("data", hangs.poll_flag),
    "gc": ("data", hangs.collect_garbage),
    "early_exit": ("data", hangs.leave_early),
    "extra_barrier": ("data", hangs.extra_barrier),
    "fsdp_sleep": ("layer", hangs.fsdp_fetch),
    "groups_sleep": ("data", hangs.groups_fetch),
    "groups_recv": ("data", hangs.receive_activations),
    "worker_sleep": ("item", hangs.read_shard),
    "worker_stop": ("item", hangs.stop),
    "exception": ("data", crashes.load_sample),
    "sigterm_deaf": ("data", crashes.load_sample_beside_the_deaf),
    "import_error": ("start", crashes.import_tokenizer),
    "exit_code": ("data", crashes.leave),
    "killed": ("data", crashes.kill),
    "groups_killed": ("data", crashes.kill),
    "worker_killed": ("item", crashes.kill),
    "segfault": ("data", crashes.follow_pointer),
    "abort": ("data", crashes.give_up),
    "bus_error": ("data", crashes.touch_past_end),
    "memory": ("data", crashes.fill_cache),
    "torn": ("saved", crashes.tear_newest),
    "leftover": ("data", crashes.leave_daemon_and_die),
    "fsdp_exception": ("layer", crashes.fsdp_raise),
    "worker_exception": ("item", crashes.worker_raise),
    "worker_lock": ("item", hangs.log_sample),
}
"""What happens once: where in train.py, and what."""

PAUSES: Pauses = {
    "long_save": ("save", pauses.write_for_long),
    "compile": ("data", pauses.compile_kernels),
    "prepare": ("data", pauses.build_index),
    "data_pause": ("data", pauses.pause),
    "idle_pause": ("data", pauses.pause),
    "short_gc": ("data", pauses.collect_briefly),
    "brief_stop": ("data", pauses.stop_briefly),
    "tokenizer": ("data", pauses.run_tokenizer),
    "download": ("data", pauses.download),
    "worker_pause": ("item", pauses.pause),
}

EACH_STEP: Pauses = {
    "slower_steps": ("data", pauses.slow_down),
    "uneven": ("data", pauses.pause),
    "slow_workers": ("item", pauses.pause),
}
