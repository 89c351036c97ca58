"""Are the GPUs there and well, judged from one readout of their sensor (pure), and is their memory free of others?

What the node's own judges tell at once, without a history (errors, remapped rows, what the driver wants done), is
theirs to tell; what they take a while for, because it may pass, is told here as it is now.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from guardrun.supervisor.base.redaction import redact_argv
from guardrun.supervisor.collect.host.procfs import read_cmdline
from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.readings import Readout, Value, parse_holders
from guardrun.supervisor.health.gpu import thermal
from guardrun.supervisor.health.gpu.rank_device import INITIAL_PID_NAMESPACE
from guardrun.supervisor.health.judges import gpu_judges
from guardrun.supervisor.preflight.base.remark import Remark, Severity, note, ok, plural, refuse, size_text, warn

NAME = "gpus"
GPU = "gpu:"
LOOK = "nvidia-smi -q and dmesg tell more."
REPLACE = "Have the device replaced; guardctl node isolate keeps runs away until then."
RESET = "Reset it (nvidia-smi -r -i INDEX, with nothing running there), or reboot the node."

Samples = Mapping[str, Value | None]


@dataclass(frozen=True)
class Gpu:
    """One device."""

    uuid: str
    samples: Samples

    @property
    def index(self) -> int:
        """As the driver counts; -1 where it is not known."""
        index = self.samples.get("index")
        return index if isinstance(index, int) else -1

    @property
    def title(self) -> str:
        """`GPU 3 (NVIDIA H100 80GB HBM3)`."""
        name = f"GPU {self.index}" if self.index >= 0 else f"GPU {self.uuid}"
        model = self.samples.get("model")
        return f"{name} ({model})" if model else name

    def number(self, name: str) -> float | None:
        """A sample's value; None where it is missing, unknown, or no number."""
        value = self.samples.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def gpus_of(readout: Readout) -> list[Gpu]:
    """The devices in a readout, by index."""
    found: dict[str, dict[str, Value | None]] = {}
    for sample in readout.samples:
        if sample.subject.startswith(GPU):
            found.setdefault(sample.subject.removeprefix(GPU), {})[sample.name] = sample.value
    return sorted((Gpu(uuid, samples) for uuid, samples in found.items()), key=lambda gpu: gpu.index)


def node_samples(readout: Readout) -> Samples:
    """What the readout says of the driver and the node rather than of one device, by name."""
    return {sample.name: sample.value for sample in readout.samples if sample.subject == "node"}


def judge_health(readout: Readout) -> list[Remark]:
    """What a readout says of the node's devices."""
    if readout.is_silent:
        advice = "Look for Xids in dmesg, and for processes in D state; a driver that hangs needs a reboot."
        return [warn(NAME, f"The GPUs' driver does not answer: {readout.trouble}.", advice)]
    gpus, node = gpus_of(readout), node_samples(readout)
    remarks = [*_missing(node), *(remark for gpu in gpus for remark in judge_gpu(gpu)), *_judged(readout)]
    if remarks:
        return remarks
    if not gpus:
        return [note(NAME, f"The GPUs could not be read: {readout.trouble or 'none is shown'}.", _slow(readout))]
    models = sorted({str(gpu.samples.get("model") or "GPU") for gpu in gpus})
    return [ok(NAME, f"{plural(len(gpus), 'GPU')} ({', '.join(models)}) present and healthy.", count=len(gpus))]


def _slow(readout: Readout) -> str:
    if "being initialised" in readout.trouble:
        return "Persistence mode (nvidia-smi -pm 1, nvidia-persistenced) keeps the driver ready."
    return ""


def _missing(node: Samples) -> list[Remark]:
    remarks = []
    if missing := node.get("gpus_missing"):
        summary = f"The driver no longer shows the GPU at {missing}, which this node has."
        remarks.append(refuse(NAME, summary, "Reboot the node; if it does not come back, have it replaced."))
    if unusable := node.get("gpus_unusable"):
        remarks.append(refuse(NAME, f"A GPU cannot be used at all: {unusable}.", RESET))
    return remarks


def _judged(readout: Readout) -> list[Remark]:
    """What the GPUs' judges make of it: what would isolate the node refuses a run."""
    found = [
        finding
        for judge in gpu_judges()
        if readout.sensor in judge.sensors
        for finding in judge.judge_readout(readout, readout.at_s)
    ]
    return [_of_finding(one) for one in found]


def _of_finding(finding: Finding) -> Remark:
    return Remark(
        check=NAME,
        severity=Severity.REFUSE if finding.response is Response.ISOLATE else Severity.WARN,
        summary=finding.summary,
        advice=finding.advice or LOOK,
        evidence={**finding.evidence, "cause": finding.cause, "subject": finding.subject},
    )


Rule = Callable[[Gpu], Remark | None]


def judge_gpu(gpu: Gpu) -> list[Remark]:
    """What is wrong with one device."""
    if gpu.samples.get("is_lost") is True:
        return [refuse(NAME, f"{gpu.title} has fallen off the bus.", "Reboot the node; if it recurs: " + REPLACE)]
    return [remark for rule in RULES if (remark := rule(gpu)) is not None]


def _pcie(gpu: Gpu) -> Remark | None:
    width, most = gpu.number("pcie_width"), gpu.number("pcie_width_max")
    if width is None or most is None or width >= most:
        return None
    summary = f"{gpu.title} has {width:g} PCIe lanes of {most:g}: transfers from the host are that much slower."
    return warn(NAME, summary, "Reseat it, or look at the riser and the slot.", uuid=gpu.uuid)


def _nvlink(gpu: Gpu) -> Remark | None:
    inactive = gpu.samples.get("nvlink_inactive")
    # With none active it is a board without a bridge, or a machine whose fabric is off on purpose.
    if not inactive or not gpu.number("nvlink_active"):
        return None
    summary = f"{gpu.title}: NVLink {inactive} is down, others are up."
    return warn(NAME, summary, "Look for Xid 74 in dmesg; reset the node's fabric (fabric manager), or reboot.")


def _temperature(gpu: Gpu) -> Remark | None:
    now, limit = gpu.number("temperature_c"), gpu.number("temperature_slowdown_c")
    if now is None or limit is None or now < limit:
        return None
    return warn(NAME, f"{gpu.title} is at {now:g} °C and slows down from {limit:g} °C.", "Look at its cooling first.")


def _throttling(gpu: Gpu) -> Remark | None:
    reasons = str(gpu.samples.get("clock_reasons") or "").split(",")
    kind = next((kind for kind in thermal.KINDS if kind in reasons), None)
    if kind is None:
        return None
    return warn(NAME, f"{gpu.title} is throttled: {thermal.KINDS[kind]}.", thermal.ADVICE[kind], uuid=gpu.uuid)


RULES: tuple[Rule, ...] = (_pcie, _nvlink, _temperature, _throttling)


# Foreign processes --------------------------------------------------------------------------------------------------
# Is the GPUs' memory free of others? A run that shares it without knowing dies of out-of-memory.


MEMORY_NAME = "memory"
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


def reader_of(readout: Readout) -> Callable[[int], Holder]:
    """How to read a holder: in a PID namespace of its own, most drivers give the host's ids, which are others' here."""
    is_hosts = node_samples(readout).get("pid_namespace") not in (None, INITIAL_PID_NAMESPACE)
    return (lambda pid: Holder(pid, "", "a process as the host counts")) if is_hosts else read_holder


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


def judge_memory(gpus: Sequence[Gpu], read: Callable[[int], Holder] = read_holder) -> list[Remark]:
    """gpus: those that the run would see."""
    remarks = [remark for gpu in gpus for remark in _of_gpu(gpu, read)]
    if remarks or not gpus:
        return remarks
    return [ok(MEMORY_NAME, "Nobody else holds memory of the GPUs.")]


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
                MEMORY_NAME,
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
        return note(MEMORY_NAME, summary, "", **data)
    return warn(
        MEMORY_NAME, summary, "If it is left over, end it; if not, choose other GPUs (CUDA_VISIBLE_DEVICES).", **data
    )
