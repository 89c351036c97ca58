"""The decoys on the emulated device: what takes long and is well. A tenth of real times, as the patience is."""

from __future__ import annotations

from benchmarks.gym.case import Decoy, Workload

DDP, FSDP, PIPELINE, CONTEXT = Workload.EMU_DDP, Workload.EMU_FSDP, Workload.EMU_PIPELINE, Workload.EMU_CONTEXT
UNEVEN, MIXED, GRAPH = Workload.EMU_UNEVEN, Workload.EMU_MIXED, Workload.EMU_GRAPH
ALL, ALL_THREE = (0, 1), (0, 1, 2)
MINUTES = 24.0
"""Four of them, scaled."""
AHEAD_STEPS = 500

EMU_DECOYS = (
    Decoy("emu_run_ahead", DDP, f"hosts run {AHEAD_STEPS} steps ahead of busy devices", seconds=MINUTES,
          planted_in=ALL, environment=(("EMU_QUEUE", "100000"),), steps_after=AHEAD_STEPS + 60),
    Decoy("emu_first_call", DDP, "the first collective takes 100 s, scaled", seconds=10, planted_in=ALL,
          environment=(("EMU_COMM_S", "10"),)),
    Decoy("emu_fsdp_first", FSDP, "the first collective takes 100 s, scaled", seconds=10, planted_in=ALL,
          environment=(("EMU_COMM_S", "10"),)),
    Decoy("emu_communicator", DDP, "a group's communicator is made in mid-training", seconds=MINUTES,
          planted_in=ALL),
    Decoy("emu_lazy_groups", DDP, "groups are made, and first used much later, one member long after the other",
          ranks=3, seconds=MINUTES, planted_in=(1,)),
    Decoy("emu_busy", DDP, "all devices are busy with one kernel", seconds=MINUTES, planted_in=ALL),
    Decoy("emu_busy_spin", DDP, "the same while the hosts wait at 100 %", seconds=15, planted_in=ALL,
          environment=(("EMU_SPIN", "1"),)),
    Decoy("emu_busy_one", DDP, "one device is busy, the others wait for it", seconds=MINUTES, planted_in=(1,)),
    Decoy("emu_busy_timed", DDP, "the same where torch times collectives", ranks=3, seconds=MINUTES, planted_in=(1,),
          environment=(("TORCH_NCCL_ENABLE_TIMING", "1"),)),
    Decoy("emu_busy_blind", DDP, "the same without a flight recorder", seconds=MINUTES, planted_in=(1,),
          environment=(("TORCH_FR_BUFFER_SIZE", "0"), ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"))),
    Decoy("emu_busy_blocking", DDP, "the same with TORCH_NCCL_BLOCKING_WAIT", seconds=MINUTES, planted_in=(1,),
          environment=(("TORCH_NCCL_BLOCKING_WAIT", "1"),)),
    Decoy("emu_full_queue", DDP, "a busy device's queue is full, and a launch keeps the GIL", seconds=MINUTES,
          planted_in=(1,), environment=(("EMU_QUEUE", "256"), ("EMU_LAUNCH_GIL", "1"))),
    Decoy("emu_gil_wait", DDP, "the host waits for a busy device, and keeps the GIL", seconds=MINUTES,
          planted_in=(1,)),
    Decoy("emu_long_eval", DDP, "rank 0 evaluates on its host, the rest wait at a barrier", seconds=MINUTES),
    Decoy("emu_device_eval", UNEVEN, "rank 0 evaluates on its device, kernel by kernel, the rest wait",
          seconds=MINUTES),
    Decoy("emu_long_save", DDP, "rank 0 writes a large checkpoint", seconds=MINUTES),
    Decoy("emu_compile", FSDP, "compilers work in subprocesses, one after another", seconds=MINUTES),
    Decoy("emu_slow_backward", DDP, "a function of the user's backward pass works long", seconds=MINUTES,
          planted_in=(1,)),
    Decoy("emu_brief_stop", DDP, "SIGSTOP, and SIGCONT a second later", seconds=1.0, planted_in=(1,)),
    Decoy("emu_pp_bubbles", PIPELINE, "stages whose devices take long, one after the other", seconds=12.0,
          planted_in=ALL_THREE),
    Decoy("emu_pp_load", PIPELINE, "the last stage prepares on its host, the others wait", seconds=MINUTES,
          planted_in=(2,)),
    Decoy("emu_cp_ring", CONTEXT, "a device in the ring is busy", seconds=MINUTES, planted_in=(1,)),
    Decoy("emu_graph_replays", GRAPH, "a graph is replayed again and again: nothing is recorded", seconds=MINUTES,
          planted_in=ALL_THREE),
    Decoy("emu_graph_busy", GRAPH, "one replay takes long", seconds=MINUTES, planted_in=ALL_THREE),
    Decoy("emu_async_save", MIXED, "an asynchronous checkpoint is written while training goes on", seconds=MINUTES),
    Decoy("emu_async_wait", MIXED, "the next save waits for the checkpoint that is still being written",
          seconds=MINUTES),
    Decoy("emu_async_peer", MIXED, "rank 0 waits for its checkpoint, whose thread waits over gloo for rank 1's upload",
          seconds=MINUTES, planted_in=ALL),
    Decoy("emu_gather_objects", MIXED, "rank 1 prepares what is gathered over gloo", seconds=MINUTES,
          planted_in=(1,)),
)  # fmt: skip
