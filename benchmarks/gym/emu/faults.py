"""The faults on the emulated device, each with the verdict that it deserves. scripts/emu/suffering.py plants them."""

from __future__ import annotations

from benchmarks.gym.case import Doubt, Fault, Workload

DDP, FSDP, PIPELINE, CONTEXT = Workload.EMU_DDP, Workload.EMU_FSDP, Workload.EMU_PIPELINE, Workload.EMU_CONTEXT
UNEVEN, MIXED, GRAPH = Workload.EMU_UNEVEN, Workload.EMU_MIXED, Workload.EMU_GRAPH
BLOCKED = ("rank_blocked",)
MISMATCH = ("collective_mismatch",)
DEVICE = ("collective_timeout",)
TIMED = (("TORCH_NCCL_ENABLE_TIMING", "1"),)
COMPARED = (("EMU_COMPARE", "1"),)
"""gloo, which carries the numbers, would end the process; NCCL waits."""

HOSTS = (
    Fault("emu_sleep", DDP, "a request without a timeout", causes=BLOCKED),
    Fault("emu_spin", DDP, "a loop that waits for what never comes", causes=("rank_spinning",), doubt=Doubt.SPINNING),
    Fault("emu_spin_wait", DDP, "a request without a timeout, while the others' hosts wait at 100 %", causes=BLOCKED,
          environment=(("EMU_SPIN", "1"),)),
    Fault("emu_gil", DDP, "C code that holds the GIL, asleep", causes=("gil_held",), doubt=Doubt.GIL),
    Fault("emu_stop", DDP, "SIGSTOP", causes=("rank_stopped",), doubt=Doubt.STOPPED, has_line=False),
    Fault("emu_eval", DDP, "rank 0 hangs in its evaluation", causes=BLOCKED, planted_in=(0,)),
    Fault("emu_backward", DDP, "a request in a function of the user's backward pass, on the device's thread",
          causes=BLOCKED),
    Fault("emu_lazy_comm", DDP, "a rank never comes to a group's first call, which makes the communicator", ranks=3,
          causes=(*BLOCKED, "init")),
    Fault("emu_new_group", DDP, "new_group called, and the group used, by some ranks only", ranks=3,
          causes=("init", *MISMATCH), may_name_nobody=True, doubt=Doubt.UNMET),
    Fault("emu_fsdp_sleep", FSDP, "a request without a timeout, between layers", causes=BLOCKED),
    Fault("emu_fsdp_backward", FSDP, "a request in a function of the user's backward pass", causes=BLOCKED),
    Fault("emu_pp_first", PIPELINE, "the first stage's source is silent", causes=BLOCKED, planted_in=(0,)),
    Fault("emu_pp_last", PIPELINE, "the last stage's request without a timeout", causes=BLOCKED, planted_in=(2,)),
    Fault("emu_pp_stop", PIPELINE, "SIGSTOP of the middle stage", causes=("rank_stopped",), doubt=Doubt.STOPPED,
          has_line=False),
    Fault("emu_cp_sleep", CONTEXT, "a request without a timeout, in the ring", causes=BLOCKED),
    Fault("emu_uneven_sleep", UNEVEN, "a request without a timeout", causes=BLOCKED),
    Fault("emu_mixed_metrics", MIXED, "a request without a timeout, while the other waits over gloo", causes=BLOCKED),
    Fault("emu_mixed_upload", MIXED, "rank 0's asynchronous checkpoint is never written", causes=BLOCKED,
          planted_in=(0,)),
    Fault("emu_graph_sleep", GRAPH, "a request without a timeout, while others replay a graph", causes=BLOCKED,
          doubt=Doubt.ALONE),
)  # fmt: skip

CALLS = (
    Fault("emu_skip", DDP, "an all_reduce skipped", ranks=3, kind="", causes=MISMATCH, doubt=Doubt.MISMATCH,
          environment=COMPARED),
    Fault("emu_shape", DDP, "an all_reduce of another size", ranks=3, causes=MISMATCH, doubt=Doubt.MISMATCH,
          environment=COMPARED),
    Fault("emu_broadcast", DDP, "broadcast in place of all_reduce", ranks=3, causes=MISMATCH, doubt=Doubt.MISMATCH,
          environment=COMPARED),
    Fault("emu_early_exit", DDP, "a rank ends early, with 0", kind="",
          causes=("exception", "nccl_error", *MISMATCH), may_name_nobody=True, doubt=Doubt.MISMATCH, has_line=False),
    Fault("emu_fsdp_uneven", FSDP, "a rank with a batch less", causes=MISMATCH, doubt=Doubt.MISMATCH,
          may_name_nobody=True),
    # The hosts run on and issue all of it: what cannot meet is the order in which the devices come to it.
    Fault("emu_pp_skip", PIPELINE, "the first stage does not send once", causes=(*MISMATCH, *DEVICE), planted_in=(0,),
          may_name_nobody=True, doubt=Doubt.DEVICE),
    Fault("emu_pp_order", PIPELINE, "a stage receives its gradient before it sends its activation",
          causes=(*MISMATCH, *DEVICE), may_name_nobody=True, doubt=Doubt.DEVICE),
    Fault("emu_cp_order", CONTEXT, "a rank hands on the other way round", causes=(*MISMATCH, *DEVICE),
          may_name_nobody=True, doubt=Doubt.DEVICE),
    Fault("emu_mixed_skip", MIXED, "an all_reduce over gloo skipped", causes=MISMATCH, may_name_nobody=True,
          doubt=Doubt.UNMET),
)  # fmt: skip

DEVICES = (
    Fault("emu_stuck", DDP, "a device is stuck in an earlier kernel", causes=DEVICE, may_name_nobody=True,
          doubt=Doubt.DEVICE, has_line=False),
    Fault("emu_stuck_timed", DDP, "the same where torch times collectives", ranks=3, causes=DEVICE,
          doubt=Doubt.DEVICE, has_line=False, environment=TIMED),
    Fault("emu_link", DDP, "a dead link", causes=DEVICE, may_name_nobody=True, doubt=Doubt.DEVICE, has_line=False),
    Fault("emu_queue", DDP, "a stuck device's queue is full, and a launch blocks", causes=(*BLOCKED, *DEVICE),
          may_name_nobody=True, doubt=Doubt.DEVICE, has_line=False, environment=(("EMU_QUEUE", "256"),)),
    Fault("emu_queue_gil", DDP, "the same, and the launch keeps the GIL", causes=("gil_held", *DEVICE),
          may_name_nobody=True, doubt=Doubt.DEVICE, has_line=False, environment=(("EMU_QUEUE", "256"),)),
    Fault("emu_sync_gil", DDP, "the host waits for a stuck device, and keeps the GIL", causes=("gil_held", *DEVICE),
          may_name_nobody=True, doubt=Doubt.DEVICE, has_line=False),
    Fault("emu_fsdp_stuck", FSDP, "a device is stuck in an earlier kernel", causes=DEVICE, may_name_nobody=True,
          doubt=Doubt.DEVICE, has_line=False),
    Fault("emu_pp_link", PIPELINE, "a dead link at the middle stage", causes=DEVICE, may_name_nobody=True,
          doubt=Doubt.DEVICE, has_line=False),
    # Nothing tells the ranks apart, and nothing is recorded: all that stand in that line, or none.
    Fault("emu_graph_stuck", GRAPH, "a device is stuck while graphs are replayed", causes=(*BLOCKED, *DEVICE),
          culprits=(0, 1, 2), may_name_nobody=True, doubt=Doubt.ALONE, has_line=False, is_only_told=True),
)  # fmt: skip

CRASH = Doubt.CRASH
CRASHES = (
    Fault("emu_exception", DDP, "an exception", kind="crash", causes=("exception",), doubt=CRASH),
    Fault("emu_killed", DDP, "SIGKILL", kind="crash", causes=("killed",), doubt=CRASH, has_line=False),
    Fault("emu_sticky", DDP, "an illegal access breaks the device", kind="crash",
          causes=("exception", "nccl_error", "abort"), doubt=CRASH, has_line=False),
    Fault("emu_late_error", DDP, "the same in a kernel, told steps later", kind="crash",
          causes=("exception", "nccl_error", "abort"), doubt=CRASH, has_line=False),
    Fault("emu_query", DDP, "asking for an event's state hangs, and the watchdog with it", kind="crash",
          causes=("nccl_error", "abort"), doubt=CRASH, has_line=False, steps_after=1200,
          environment=(("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "5"),)),
    Fault("emu_cp_exit", CONTEXT, "sys.exit(3), in the ring", kind="crash", causes=("exit_code",), doubt=CRASH,
          has_line=False),
    Fault("emu_uneven_exception", UNEVEN, "an exception", kind="crash", causes=("exception",), doubt=CRASH),
)  # fmt: skip

EMU_FAULTS = (*HOSTS, *CALLS, *DEVICES, *CRASHES)
