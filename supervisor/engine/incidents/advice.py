"""What to do about it: advice by what was seen, and none that is a myth.

Environment variables are named only where something reads them: tests/engine/incidents/test_advice.py has the list,
each with its reader. (`NCCL_TIMEOUT` and `PYTHONGC_THRESHOLD` are read by nothing but guardrun; `NCCL_DEBUG` is read as
a communicator is made, so setting it in a live rank changes nothing.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from guardrun.supervisor.engine.failures.cuda_memory import (
    is_capped,
    is_fragmented,
    is_hopeless,
    size,
    strangers_bytes,
)
from guardrun.supervisor.engine.incidents import data_advice, memory_advice, numeric_advice
from guardrun.supervisor.engine.observation.frames import rank_list

Evidence = Mapping[str, Any]

MAX_INDICES_CHARS = 80

_MORE_FILES = "A higher `ulimit -n` before guardrun buys time."

ADVICE: dict[str, str] = {
    "init": "See what that rank does before init_process_group: its stack is in stacks/. Every rank must get there.",
    "rank_blocked": "See the call in the culprit's stack: give it a timeout, or find out what it waits for.",
    "rank_spinning": "See the loop in the culprit's stack: its condition never becomes true on this rank.",
    "rank_stopped": "Somebody or something sent SIGSTOP, or attached a debugger. Use `guardctl hold` before debugging.",
    "gil_held": "C code called from there keeps the GIL; it should release it around blocking calls.",
    "gc_pause": 'Set [gc] policy = "freeze": all ranks then collect at the same step, and what was alive after the '
    "warm-up is not looked at again.",
    "dataloader_stall": "Look at the workers' stacks in stacks/: their source does not answer.",
    "io_blocked": "The kernel does not answer a read or write: look at the file system or device that it uses.",
    "collective_mismatch": "All ranks must call the same collectives in the same order with the same shapes: "
    "compare the stacks.",
    "collective_timeout": "Look at the network and the devices. For NCCL's own words set NCCL_DEBUG=INFO before the "
    "next start: it is read when a communicator is made.",
    "poison_step": "The same step stops the run every time: skip or repair its data.",
    "exception": "See the traceback.",
    "import_error": "Install the missing module, or mend the import, in the environment that the ranks run in.",
    "cuda_oom": "Lower the batch size or the sequence length, recompute activations (torch.utils.checkpoint), or shard "
    "more (FSDP).",
    "host_oom": "Give the job more memory, or lower the number of DataLoader workers, their prefetching or caches.",
    "segfault": "A native extension crashed: see the stacks that faulthandler printed to the rank's stderr, if any.",
    "killed": "It was not guardrun that sent the signal: ask the scheduler, or the node's administrator.",
    "nccl_error": "Look at the node's devices and network. For NCCL's own words set NCCL_DEBUG=WARN before the next "
    "start: it is read when a communicator is made.",
    "gpu_lost": "The device is gone: drain the node and have it reset or repaired.",
    "disk_full": "Free space, or let checkpoints and logs go elsewhere.",
    "checkpoint_corrupt": "The file can't be read: resume from an older one.",
    "abort": "Native code called abort(): the rank's stderr says why.",
    "bus_error": "Often a full /dev/shm: make it larger, or use fewer DataLoader workers.",
    "exit_code": "The script ended itself with this code: see its output.",
    "signal": "The same command with the same run id goes on from the checkpoint.",
    "time_limit": "The same command with the same run id goes on from the checkpoint.",
    "straggler": "See what else runs on that node, and what its sensors show (`guardctl node`). Where work is divided "
    "unevenly (experts, sequence lengths, a rank that does more than the others), it may be the work.",
    "dataloader_bound": "Let more workers load (num_workers), further ahead (prefetch_factor), and keep them between "
    "epochs (persistent_workers); do in advance what they do to every sample; look at where they read from.",
    "throughput_drop": "See what changed at that time: in the script, on the nodes, in the network.",
    "descriptor_leak": "Find what is opened again and again and never closed: `ls -l /proc/PID/fd` on the node shows "
    f"it. {_MORE_FILES}",
    "nan_loss": numeric_advice.NAN,
    "loss_spike": numeric_advice.SPIKE,
    "grad_explosion": numeric_advice.EXPLOSION,
    "replica_divergence": numeric_advice.DIVERGENCE,
    "same_samples": data_advice.SAME_SAMPLES,
    "same_order": data_advice.SAME_ORDER,
    "uneven_loaders": data_advice.UNEVEN_LOADERS,
    "chance_loss": data_advice.CHANCE_LOSS,
    "dead_modules": data_advice.DEAD_MODULES,
    "constant_batches": data_advice.CONSTANT_BATCHES,
    "empty_batches": data_advice.EMPTY_BATCHES,
    "host_leak": memory_advice.host_advice({}),
    "gpu_leak": memory_advice.device_advice({}),
    "gpu_fragmentation": f"{memory_advice.EXPANDABLE} {memory_advice.VARIANTS}",
    "unknown": "See what was collected in stacks/, and the ranks' output.",
}
"""Per cause, where nothing more is known."""

_LATE = "CUDA reports it late: a run with CUDA_LAUNCH_BLOCKING=1 stops at the line that made it."
_HINTS: dict[str, str] = {
    "device_assert": "An assertion in a kernel failed: nearly always an index out of range (a label, a token id, a row "
    f"of an embedding) in the script's data. It is no fault of the device. {_LATE}",
    "illegal_access": "A kernel went outside its memory: look at custom kernels and extensions first. "
    f"{_LATE} If it comes at another place each time, and on one device only, have that device checked.",
    "launch_failure": "A kernel, or its device, failed: an Xid in the kernel's log (dmesg) tells which. " + _LATE,
    "weights_only": "The file is whole. Since 2.6 torch.load refuses classes that it does not know: name them to "
    "torch.serialization.add_safe_globals, or pass weights_only=False for files that you trust.",
    "worker_gone": "A DataLoader worker ended without a word: num_workers=0 shows an exception of its own, the "
    "kernel's log (dmesg) whether memory ran out.",
    "worker_bus": "Workers hand their batches over in /dev/shm, and it is too small: make it larger (in a container: "
    "--shm-size, or --ipc=host), or use fewer workers or a smaller prefetch_factor.",
    "ecc": "The device's memory has failed: drain the node, reset the device, and have it replaced if it fails again.",
    "nvlink": "The link between devices has failed: drain the node, and have the device and its NVLink checked.",
    "busy": "Another process holds the device for itself (nvidia-smi shows it, and the compute mode), or the device "
    "needs a reset.",
    "none_visible": "No device is seen: the driver has lost it (nvidia-smi, dmesg), or CUDA_VISIBLE_DEVICES or the "
    "container hides it.",
    "fabric": "The devices' fabric is not up: see that nvidia-fabricmanager runs on the node, in the driver's version.",
    "quota": "The quota is used up: free space, have it raised, or let checkpoints and logs go elsewhere.",
    "watchdog": "Ranks that report this timeout waited for one that did not come: look at the ranks that don't report "
    "it. Without a timeout of the script's own, guardrun looks into the hang before NCCL's watchdog ends it.",
    "watchdog_stuck": "NCCL's watchdog waited for a call of NCCL or CUDA that did not return: see dmesg on that node "
    "for an Xid, and the devices' links (`guardctl node`).",
    "store_wait": "Every rank must get to init_process_group, and to the first collective of its group, within the "
    "group's timeout: see what the rank that is named does before it (its device's context, a download, a slow file "
    "system).",
    "memlock": "The host has memory, but may not pin more: `ulimit -l unlimited` where the job starts (in Slurm: "
    "PropagateResourceLimitsExcept=MEMLOCK; in a container: --ulimit memlock=-1).",
    "device_wait": "Its device has not come to the end of what it was given: see which kernels are launched before "
    "that line, what nvidia-smi shows of that device, and dmesg on the node for an Xid.",
    "launch_timeout": "A kernel ran longer than its device allows, as one that also drives a display does: use "
    "another device, or see dmesg for an Xid 8.",
    "library_start": "A library of CUDA could not start on the device: nearly always its memory is full (lower the "
    f"batch size), or an error before it is only told here. {_LATE}",
    "driver": "The node's NVIDIA driver is older than this build of torch needs: update it, or install a build of "
    "torch for an older CUDA.",
    "kernel_image": "This build of torch, or an extension, has no code for the node's GPU: install one that was built "
    "for its compute capability (torch.cuda.get_arch_list() shows what it has).",
    "ordinal": "The rank asks for a device that it does not see: compare LOCAL_RANK and --nproc_per_node with "
    "CUDA_VISIBLE_DEVICES and the job's GPUs.",
    "cuda_setup": "CUDA could not be initialised there: compare nvidia-smi on the node with what the container shows, "
    "and see whether CUDA_VISIBLE_DEVICES is changed after the start.",
    "remote": "The other end of a connection went: look for the rank that ended first, and at the network.",
    "usage": "NCCL refused the call. Often two ranks use one device: each must take the one that LOCAL_RANK names.",
}
_BY_HINT_AND_CAUSE: dict[tuple[str, str], str] = {
    ("segfault", "worker"): "A native extension crashed in a DataLoader worker: num_workers=0 brings it into the rank, "
    "where faulthandler shows its stack.",
    ("abort", "worker"): "Native code called abort() in a DataLoader worker: the rank's stderr says why.",
    ("killed", "worker"): "A DataLoader worker was killed, and not by guardrun: often for want of memory, else by the "
    "scheduler or a person.",
    ("host_oom", "worker"): "A DataLoader worker was killed because memory ran out: use fewer workers, a smaller "
    "prefetch_factor, and keep what each worker holds in arrays rather than in lists of objects.",
}


LEFT_EARLY = (
    "All ranks must do as many collectives: look why the one that left had fewer batches, or returned early. "
    "DistributedSampler(drop_last=True) evens batches out, and torch.distributed.algorithms.Join bridges what is left."
)
"""torch's documentation of both."""


def advice_for(cause: str, evidence: Evidence | None = None) -> str:
    """What a person may do about it, by what the evidence shows; a general word where it shows nothing."""
    known = evidence or {}
    if known.get("left_early"):
        return LEFT_EARLY
    special = _SPECIAL.get(cause)
    hint = str(known.get("hint", ""))
    return (
        (special(known) if special else "")
        or _BY_HINT_AND_CAUSE.get((cause, hint), "")
        or _HINTS.get(hint, "")
        or ADVICE.get(cause, "")
    )


def _device_memory(known: Evidence) -> str:
    memory = known.get("memory")
    if not isinstance(memory, dict):
        return ""
    tried = size(memory["tried_bytes"])
    if is_hopeless(memory):
        total = size(memory["total_bytes"])
        return f"One tensor of {tried} was asked of a device with {total}: look for a wrong shape, or split it."
    if is_capped(memory):
        return (
            f"The device had room for {tried}: a limit of the script's own refused it "
            "(torch.cuda.set_per_process_memory_fraction)."
        )
    if strangers := strangers_bytes(memory):
        pids = ", ".join(str(other["pid"]) for other in memory["other_processes"][:4])
        who = f" (pids {pids}, as nvidia-smi on the host shows them)" if pids else ""
        return (
            f"Others hold {size(strangers)} of this device{who}: ranks that share it, or processes left over. "
            "Each rank needs a device to itself."
        )
    if is_fragmented(memory):
        unused = size(memory["reserved_unallocated_bytes"])
        return (
            f"{unused} are reserved by PyTorch and not in use, more than the {tried} that were asked for: memory is "
            "fragmented. Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start."
        )
    used = memory.get("allocated_bytes", 0)
    held = f"{size(used)} are really in use, and {tried} more were asked for. " if used else ""
    graphs = memory.get("graph_pools_bytes", 0)
    if graphs and used and graphs >= used / 5:
        return f"{held}CUDA graphs' private pools hold {size(graphs)} of it: capture fewer, or smaller, graphs."
    return held + ADVICE["cuda_oom"]


def _disk(known: Evidence) -> str:
    disk = known.get("disk")
    folder = str(disk.get("folder", "")) if isinstance(disk, dict) else ""
    if folder.startswith("/dev/shm"):
        return (
            "/dev/shm is full: make it larger (in a container: --shm-size, or --ipc=host), or use fewer DataLoader "
            "workers."
        )
    if not folder or known.get("hint") == "quota":
        return ""
    if folder.startswith("/tmp"):
        return f"Free space in {folder}, or let temporary files go elsewhere: TMPDIR."
    return f"Free space in {folder}, or let checkpoints and logs go elsewhere."


def _checkpoint(known: Evidence) -> str:
    file = str(known.get("checkpoint", "") or known.get("file", ""))
    if not file:
        return ""
    again = known.get("loaded_again")
    if again:
        return (
            f"The script loads {file} whatever guardrun chooses: move it away, or have the script resume from "
            "GUARDRUN_RESUME_FROM ([checkpoint] resume_args, resume_env)."
        )
    return (
        f"{file} can't be read, though its size and its directory look whole: guardrun resumes from another from now "
        "on. Look at the disk that it lies on, and delete it."
    )


def _bus(known: Evidence) -> str:
    free = known.get("disk_free_bytes")
    room = free.get("/dev/shm", -1) if isinstance(free, dict) else -1
    if known.get("hint") or not 0 <= room < 1 << 20:
        return ""
    return (
        "/dev/shm is full: make it larger (in a container: --shm-size, or --ipc=host), or use fewer DataLoader workers."
    )


def _poison(known: Evidence) -> str:
    stops = known.get("stops")
    if not isinstance(stops, list) or not stops:
        return ""
    told = [data_words(stop) for stop in stops]
    if not all(told):
        return ""
    if len({indices for stop in stops if (indices := str(stop.get("indices", "")))}) > 1:
        return (
            f"The same step stops the run every time, but with other data each time (the last: {told[-1]}): look at "
            "what the script does at that step rather than at its data."
        )
    return f"The same step stops the run every time: skip {told[-1]}, or repair what is in it."


def data_words(data: Evidence) -> str:
    """`batch 61 of epoch 0 (samples 120-123,200)`; empty where the batch is unknown. data: as the hooks tell it."""
    if not data.get("batch"):
        return ""
    epoch = data.get("epoch")
    of_epoch = f" in epoch {epoch}" if epoch is not None else ""
    since = " since the attempt's start"
    indices = data.get("indices") or []
    if not indices:
        return f"batch {data['batch']}{since}{of_epoch}"
    numbers = [index for index in indices if isinstance(index, int)]
    shown = rank_list(sorted(set(numbers))) if len(numbers) == len(indices) else ", ".join(map(str, indices))
    if len(shown) > MAX_INDICES_CHARS:
        shown = shown[:MAX_INDICES_CHARS].rsplit(",", 1)[0] + ",…"
    return f"batch {data['batch']}{since}{of_epoch} (samples {shown} of the data set)"


def _collector(known: Evidence) -> str:
    if known.get("policy", "off") != "off":
        return (
            "The ranks follow [gc] policy already: raise gc.every_steps, or find what allocates so much in every step."
        )
    return ADVICE["gc_pause"]


def _workers(known: Evidence) -> str:
    workers = known.get("workers") or [{}]
    first = workers[0]
    if first.get("dead_mount"):
        return f"The file system at {first['dead_mount']} does not answer: look at its server and the way there."
    return {
        "dead": "See why the worker died: the kernel's log (dmesg) tells whether memory ran out. A handler of the "
        "script's own for SIGCHLD keeps torch from noticing.",
        "stopped": "Somebody or something sent SIGSTOP to the worker.",
        "idle": "No worker has work, and the rank waits: a batch was lost on its way, or a worker that was replaced.",
        "inside": "See the worker's stack: what it reads there does not answer. Give it a timeout.",
    }.get(str(first.get("standing")), "")


def _descriptors(known: Evidence) -> str:
    newest = known.get("newest")
    kind = next(iter(newest), "") if isinstance(newest, dict) else ""
    if kind == "sockets":
        return (
            "Connections are opened and not closed: keep one session or client a process, or close each (`with`); "
            f"`ss -tnp` on the node shows to whom. {_MORE_FILES}"
        )
    if kind == "pipes":
        return (
            "Pipes of child processes are not closed: use subprocess.run or `with Popen(…)`, close() pools and queues, "
            f"and keep DataLoader workers between epochs (persistent_workers). {_MORE_FILES}"
        )
    if "/dev/shm" in kind or "/torch_" in kind:
        return (
            "Each tensor that a DataLoader worker has sent keeps a file while it is referred to: clone() what is kept "
            "beyond its step, or torch.multiprocessing.set_sharing_strategy('file_system')."
        )
    if "/" in kind:
        return f"Files are opened and not closed: open them in a `with` block, or once. {_MORE_FILES}"
    return ""


def _lost_speed(known: Evidence) -> str:
    return {
        "work": "If the script went over to longer sequences, larger batches or another phase there, it is that. Else "
        "look at what all ranks share: power and clocks, CPUs that others use too, versions that changed.",
        "uneven": "Work has become uneven: see what differs between ranks (data, sequence lengths, experts, stages).",
        "data": ADVICE["dataloader_bound"],
        "gc": ADVICE["gc_pause"],
        "rest": "Look at the network: errors and speeds of links, and other jobs that use it. Work that varies from "
        "step to step among the ranks shows here, too.",
    }.get(str(known.get("part")), "")


def _mount(known: Evidence) -> str:
    dead = [r["name"] for r in known.get("readings") or [] if "has not answered" in str(r.get("note", ""))]
    return f"The file system at {dead[0]} does not answer: look at its server and the way there." if dead else ""


def _ending(known: Evidence) -> str:
    """The scheduler ends the job: what would have saved it, where it was not saved."""
    if known.get("in_time", True):
        return ""
    if known.get("catchers"):
        return (
            "Ranks have a handler of their own for the signal: with [preemption] forward = true they are given it. "
            "Else call guardrun.hooks.should_checkpoint() once a step on every rank."
        )
    if known.get("answered"):
        return (
            "The ranks were told to save, and no whole checkpoint was seen: [checkpoint] dir says where they lie. If "
            "saving takes longer than that, have the scheduler warn earlier."
        )
    if known.get("asked"):
        return "No step ended in time: have the scheduler warn earlier."
    return (
        "Call guardrun.hooks.should_checkpoint() once a step on every rank, and save where it says yes; or give "
        "guardrun.hooks.save_with() a function that saves."
    )


def _import(known: Evidence) -> str:
    node = known.get("only_on")
    return f"Install on {node} what the other nodes have: their ranks got past their imports." if node else ""


_SPECIAL: dict[str, Callable[[Evidence], str]] = {
    "import_error": _import,
    "cuda_oom": _device_memory,
    "disk_full": _disk,
    "checkpoint_corrupt": _checkpoint,
    "bus_error": _bus,
    "poison_step": _poison,
    "gc_pressure": _collector,
    "dataloader_stall": _workers,
    "io_blocked": _mount,
    "signal": _ending,
    "time_limit": _ending,
    "throughput_drop": _lost_speed,
    "descriptor_leak": _descriptors,
    "nan_loss": numeric_advice.nan_advice,
    "replica_divergence": numeric_advice.divergence_advice,
    "host_leak": memory_advice.host_advice,
    "gpu_leak": memory_advice.device_advice,
    "gpu_fragmentation": memory_advice.fragmentation_advice,
}
