"""Is the GPUs' memory free of others? A run that shares it without knowing dies of out-of-memory."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from guardrun.supervisor.base.redaction import redact_argv
from guardrun.supervisor.collect.host.procfs import read_cmdline
from guardrun.supervisor.health.base.memory_holders import parse_holders
from guardrun.supervisor.preflight.base.remark import Remark, note, ok, size_text, warn
from guardrun.supervisor.preflight.checks.gpu_health import Gpu

NAME = "memory"
MUCH_BYTES = 512 << 20
"""More than a bare CUDA context takes, and less than any training."""
SERVICES = ("nvidia-persiste", "nv-hostengine", "dcgm", "nvidia-cuda-mps", "Xorg", "gnome-shell", "nvidia-smi")
"""Beginnings of the names of programs that hold a little of a device's memory on purpose."""


class Holder(NamedTuple):
    """A process as a person knows it."""

    pid: int
    user: str
    command: str

    @property
    def is_service(self) -> bool:
        """Whether it is one of SERVICES, which hold memory on every node that has them."""
        return os.path.basename(self.command.partition(" ")[0]).startswith(SERVICES)


def read_holder(pid: int) -> Holder:
    """What /proc tells of it; of one in another PID namespace nothing."""
    command = " ".join(redact_argv(read_cmdline(pid)))[:120]
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        user = pwd.getpwuid(uid).pw_name
    except OSError:
        user = ""
    except KeyError:
        user = f"uid {uid}"
    return Holder(pid, user, command)


def visible(gpus: Sequence[Gpu], chosen: str | None) -> list[Gpu]:
    """The devices that a run would see; chosen: CUDA_VISIBLE_DEVICES, None where it is not set.

    It names indices or UUIDs (or their beginnings), and what follows one that is not there is left out (CUDA's
    programming guide, "CUDA Environment Variables").
    """
    if chosen is None:
        return list(gpus)
    seen: list[Gpu] = []
    for word in (part.strip() for part in chosen.split(",")):
        found = [gpu for gpu in gpus if (word.isdigit() and gpu.index == int(word)) or _is_uuid(gpu, word)]
        if not found:
            break
        seen += found[:1]
    return seen


def _is_uuid(gpu: Gpu, word: str) -> bool:
    return word.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(word)


def judge(gpus: Sequence[Gpu], read: Callable[[int], Holder] = read_holder) -> list[Remark]:
    """gpus: those that the run would see."""
    remarks = [remark for gpu in gpus for remark in _of_gpu(gpu, read)]
    if remarks or not gpus:
        return remarks
    return [ok(NAME, "Nobody else holds memory of the GPUs.")]


def _of_gpu(gpu: Gpu, read: Callable[[int], Holder]) -> list[Remark]:
    try:
        held = parse_holders(str(gpu.samples.get("holders") or ""))
    except ValueError:
        held = {}
    remarks = []
    for pid, used in sorted(held.items(), key=lambda pair: -(pair[1] or 0)):
        holder = read(pid)
        if not holder.is_service:
            remarks.append(_stranger(gpu, holder, used))
    used_bytes = gpu.number("memory_used_bytes")
    if not held and used_bytes is not None and used_bytes > 2 * MUCH_BYTES:
        remarks.append(
            warn(
                NAME,
                f"{gpu.title} has {size_text(used_bytes)} of its memory in use, by nobody that can be seen from here.",
                "Somebody outside this container uses it, or an ended process left it: nvidia-smi on the host tells.",
                uuid=gpu.uuid,
            )
        )
    return remarks


def _stranger(gpu: Gpu, holder: Holder, used: int | None) -> Remark:
    much = "memory" if used is None else f"{size_text(used)} of memory"
    who = f"{holder.command or 'a process'} (pid {holder.pid}{f', of {holder.user}' if holder.user else ''})"
    data: dict[str, Any] = {"uuid": gpu.uuid, "pid": holder.pid, "bytes": used}
    summary = f"{who} holds {much} of {gpu.title}."
    if used is not None and used < MUCH_BYTES:
        return note(NAME, summary, "", **data)
    return warn(NAME, summary, "If it is left over, end it; if not, choose other GPUs (CUDA_VISIBLE_DEVICES).", **data)
