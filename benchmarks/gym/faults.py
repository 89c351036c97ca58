"""The faults, the kind that people meet, each with the verdict that it deserves. scripts/planted.py plants them."""

from __future__ import annotations

from benchmarks.gym.case import Doubt, Fault, Workload

DDP, FSDP, GROUPS, LOADER = Workload.DDP, Workload.FSDP, Workload.GROUPS, Workload.LOADER
BLOCKED = ("rank_blocked",)
MISMATCH = ("collective_mismatch",)
UNMET = Doubt.MISMATCH

HANGS = (
    Fault("sleep", DDP, "a request without a timeout", causes=BLOCKED),
    Fault("lock", DDP, "a lock taken twice", causes=BLOCKED, doubt=Doubt.STANDSTILL),
    Fault("socket", DDP, "a server that accepts and never answers", causes=BLOCKED),
    Fault("fifo", DDP, "a read from a pipe that nobody writes", causes=("rank_blocked", "io_blocked")),
    Fault("thread_pool", DDP, "the main thread waits for a thread that waits for ever", causes=BLOCKED),
    Fault("child", DDP, "a subprocess that never ends", causes=BLOCKED),
    Fault("eval", DDP, "rank 0 hangs in its evaluation", causes=BLOCKED, planted_in=(0,)),
    Fault("upload", DDP, "rank 0 hangs after its save, in an upload", causes=BLOCKED, planted_in=(0,)),
    Fault("init", DDP, "a rank that never gets to init_process_group", causes=("init",)),
    Fault("stop", DDP, "SIGSTOP", causes=("rank_stopped",), doubt=Doubt.STOPPED, has_line=False),
    Fault("gil", DDP, "C code that holds the GIL, asleep", causes=("gil_held",), doubt=Doubt.GIL),
    Fault("gil_loop", DDP, "C code that holds the GIL, running", causes=("gil_held",), doubt=Doubt.COMPUTING),
    Fault("spin", DDP, "a loop that waits for what never comes", causes=("rank_spinning",), doubt=Doubt.SPINNING),
    Fault("spin_asyncio", DDP, "the same in an event loop", causes=("rank_spinning",), doubt=Doubt.SPINNING),
    Fault("spin_copy", DDP, "a copy from a source that never ends", causes=("rank_spinning",), doubt=Doubt.SPINNING),
    Fault("gc", DDP, "collections of some seconds", causes=("gc_pause",), doubt=Doubt.PASSING, has_line=False,
          ends_by_itself=True),
    Fault("all_hang", DDP, "all ranks wait for the same server", causes=BLOCKED, planted_in=(0, 1), doubt=Doubt.ALONE),
    Fault("early_exit", DDP, "a rank ends early, with 0", kind="", causes=("exception", *MISMATCH),
          may_name_nobody=True, doubt=UNMET, has_line=False),
    Fault("poison", DDP, "the same step blocks in every attempt", causes=("poison_step",), every_attempt=True,
          recovers=False),
    Fault("skipped_all_reduce", DDP, "an all_reduce skipped", ranks=3, kind="", causes=MISMATCH, doubt=UNMET),
    Fault("extra_barrier", DDP, "a barrier too many", ranks=3, causes=MISMATCH, doubt=UNMET),
    Fault("other_shape", DDP, "an all_gather of another shape", ranks=3, kind="", causes=MISMATCH, doubt=UNMET),
    Fault("broadcast", DDP, "broadcast in place of all_reduce", ranks=3, kind="", causes=MISMATCH, doubt=UNMET),
    Fault("new_group", DDP, "new_group called by some ranks only", ranks=3, causes=("init", *MISMATCH),
          may_name_nobody=True, doubt=UNMET),
    Fault("fsdp_sleep", FSDP, "a request without a timeout, between layers", causes=BLOCKED),
    Fault("fsdp_uneven", FSDP, "a rank with a batch less", causes=MISMATCH, doubt=UNMET, may_name_nobody=True),
    Fault("fsdp_state", FSDP, "the state dict gathered by rank 0 only", causes=MISMATCH, planted_in=(0,),
          doubt=UNMET, may_name_nobody=True),
    Fault("groups_sleep", GROUPS, "a request without a timeout; two groups wait in turn", causes=BLOCKED,
          planted_in=(3,)),
    Fault("groups_order", GROUPS, "two ranks take their groups in the other order: a ring of waits", causes=MISMATCH,
          planted_in=(1, 2), may_name_nobody=True, doubt=UNMET),
    Fault("groups_skip", GROUPS, "a tensor-parallel all_reduce skipped", kind="", causes=MISMATCH, planted_in=(3,),
          doubt=UNMET),
    Fault("groups_recv", GROUPS, "recv from a rank that never sends", causes=("collective_timeout", *MISMATCH),
          planted_in=(2,), may_name_nobody=True, doubt=UNMET),
    Fault("groups_stop", GROUPS, "SIGSTOP", causes=("rank_stopped",), planted_in=(2,), doubt=Doubt.STOPPED,
          has_line=False),
    Fault("worker_sleep", LOADER, "a worker's source is silent", causes=("dataloader_stall",), doubt=Doubt.DATA),
    Fault("worker_lock", LOADER, "a worker forked while a lock was held", causes=("dataloader_stall",),
          doubt=Doubt.DATA),
    Fault("worker_stop", LOADER, "SIGSTOP of a worker", causes=("dataloader_stall", "rank_stopped"),
          doubt=Doubt.STOPPED, has_line=False),
)  # fmt: skip

CRASH = Doubt.CRASH
CRASHES = (
    Fault("exception", DDP, "an exception", kind="crash", causes=("exception",), doubt=CRASH),
    Fault("sigterm_deaf", DDP, "an exception, while the other rank ignores SIGTERM", kind="crash",
          causes=("exception",), doubt=CRASH),
    Fault("import_error", DDP, "a module that is not installed", kind="crash", causes=("import_error",), doubt=CRASH,
          recovers=False, every_attempt=True),
    Fault("exit_code", DDP, "sys.exit(3)", kind="crash", causes=("exit_code",), doubt=CRASH, has_line=False),
    Fault("killed", DDP, "SIGKILL", kind="crash", causes=("killed",), doubt=CRASH, has_line=False),
    Fault("segfault", DDP, "SIGSEGV", kind="crash", causes=("segfault",), doubt=CRASH),
    Fault("abort", DDP, "SIGABRT", kind="crash", causes=("abort",), doubt=CRASH),
    Fault("bus_error", DDP, "SIGBUS", kind="crash", causes=("bus_error",), doubt=CRASH),
    Fault("memory", DDP, "MemoryError", kind="crash", causes=("host_oom",), doubt=CRASH),
    Fault("torn", DDP, "SIGKILL, and the newest checkpoint is cut short", kind="crash", causes=("killed",),
          planted_in=(0,), doubt=CRASH, has_line=False),
    Fault("leftover", DDP, "SIGKILL; a daemon that it had started stays", kind="crash", causes=("killed",),
          doubt=CRASH, has_line=False),
    Fault("fsdp_exception", FSDP, "an exception between layers", kind="crash", causes=("exception",), doubt=CRASH),
    Fault("groups_killed", GROUPS, "SIGKILL", kind="crash", causes=("killed",), planted_in=(3,), doubt=CRASH,
          has_line=False),
    Fault("worker_killed", LOADER, "SIGKILL of a worker", kind="crash", causes=("exception", "killed"), doubt=CRASH,
          has_line=False),
    Fault("worker_exception", LOADER, "an exception in a worker", kind="crash", causes=("exception",), doubt=CRASH),
)  # fmt: skip

FAULTS = (*HANGS, *CRASHES)
