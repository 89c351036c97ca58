"""What the script on the emulated device is made to suffer, by GYM_PLAN (scripts/planted.py), and where in it.

What needs the training's own objects is in layouts.py and train.py.
"""

from __future__ import annotations

import functools
import time

from benchmarks.gym.scripts import pauses, planted
from benchmarks.gym.scripts.emu import hangs
from tests.emu import device as emu


def suffer(place: str, step: int) -> None:
    """Have happen what is due at this place of the script."""
    planted.happen(place, step, FAULTS, PAUSES)


def wait_with_gil(seconds: float) -> None:
    """What some libraries do: they wait for their device, and no other thread of Python runs."""
    emu.kernel(seconds)
    emu.synchronize(holds_gil=True)


def evaluate_on_device(seconds: float) -> None:
    """Kernel by kernel, with a look at each result."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        emu.kernel(0.5)
        emu.synchronize()


def make_group(seconds: float) -> None:
    """A group whose communicator takes long, as over thousands of ranks."""
    import torch
    import torch.distributed as dist

    emu.set_communicator_s(seconds)
    dist.all_reduce(torch.ones(8, device="emu"), group=dist.new_group())
    emu.set_communicator_s(0.0)


def _inject(fault: str) -> functools.partial[None]:
    return functools.partial(emu.inject, fault)


FAULTS: planted.Faults = {
    "emu_sleep": ("data", hangs.fetch_batch),
    "emu_spin_wait": ("data", hangs.fetch_beside_spinning_hosts),
    "emu_spin": ("data", hangs.wait_for_flag),
    "emu_gil": ("data", hangs.call_driver),
    "emu_stop": ("data", hangs.stop),
    "emu_pp_stop": ("data", hangs.stop),
    "emu_eval": ("eval", hangs.fetch_references),
    "emu_backward": ("backward", hangs.read_features),
    "emu_fsdp_backward": ("backward", hangs.read_shard_features),
    "emu_lazy_comm": ("group", hangs.load_experts),
    "emu_fsdp_sleep": ("layer", hangs.fetch_statistics),
    "emu_pp_first": ("data", hangs.read_source),
    "emu_pp_last": ("layer", hangs.fetch_labels),
    "emu_cp_sleep": ("ring", hangs.fetch_positions),
    "emu_uneven_sleep": ("data", hangs.fetch_tokens),
    "emu_mixed_metrics": ("metrics", hangs.query_tracker),
    "emu_graph_sleep": ("data", hangs.fetch_prompts),
    "emu_early_exit": ("data", hangs.leave_early),
    "emu_stuck": ("data", _inject("stuck_kernel")),
    "emu_stuck_timed": ("data", _inject("stuck_kernel")),
    "emu_fsdp_stuck": ("layer", _inject("stuck_kernel")),
    "emu_graph_stuck": ("data", _inject("stuck_kernel")),
    "emu_link": ("data", _inject("dead_link")),
    "emu_pp_link": ("data", _inject("dead_link")),
    "emu_queue": ("data", _inject("queue_full")),
    "emu_queue_gil": ("data", _inject("queue_full_with_gil")),
    "emu_sync_gil": ("data", _inject("gil_in_sync")),
    "emu_sticky": ("data", _inject("sticky_error")),
    "emu_late_error": ("data", _inject("late_error")),
    "emu_query": ("data", _inject("query_hangs")),
    "emu_exception": ("data", hangs.load_sample),
    "emu_uneven_exception": ("data", hangs.load_tokens),
    "emu_killed": ("data", hangs.kill),
    "emu_cp_exit": ("ring", hangs.leave_badly),
}
"""What happens once: where in the script, and what."""

PAUSES: planted.Pauses = {
    "emu_busy": ("data", emu.kernel),
    "emu_busy_spin": ("data", emu.kernel),
    "emu_busy_one": ("data", emu.kernel),
    "emu_busy_timed": ("data", emu.kernel),
    "emu_graph_busy": ("data", emu.kernel),
    "emu_busy_blind": ("data", emu.kernel),
    "emu_busy_blocking": ("data", emu.kernel),
    "emu_full_queue": ("data", emu.kernel),
    "emu_gil_wait": ("data", wait_with_gil),
    "emu_device_eval": ("eval", evaluate_on_device),
    "emu_long_eval": ("eval", pauses.build_index),
    "emu_long_save": ("save", pauses.write_for_long),
    "emu_compile": ("data", pauses.compile_kernels),
    "emu_slow_backward": ("backward", pauses.build_index),
    "emu_brief_stop": ("data", pauses.stop_briefly),
    "emu_pp_bubbles": ("layer", emu.kernel),
    "emu_pp_load": ("layer", pauses.build_index),
    "emu_cp_ring": ("ring", emu.kernel),
    "emu_communicator": ("data", make_group),
    "emu_lazy_groups": ("group", pauses.pause),
    "emu_gather_objects": ("metrics", pauses.build_index),
}
