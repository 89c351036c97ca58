"""Are the GPUs there and well? Judged from one readout of their sensor. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from guardrun.supervisor.core.node.facts import Readout, Value
from guardrun.supervisor.preflight.remark import Remark, note, ok, plural, refuse, warn

NAME = "gpus"
GPU = "gpu:"
REPLACE = "Have the device replaced; guardctl node isolate keeps runs away until then."
RESET = "Reset it (nvidia-smi -r -i INDEX, with nothing running there), or reboot the node."
NO_ACTION = "none"
SOFT_ACTIONS = frozenset({"drain_p2p"})
"""What the driver wants done, and may wait for the end of a run."""

Samples = Mapping[str, Value | None]


@dataclass(frozen=True)
class Gpu:
    """One device."""

    uuid: str
    samples: Samples

    @property
    def index(self) -> int:
        index = self.samples.get("index")
        return index if isinstance(index, int) else -1

    @property
    def title(self) -> str:
        """`GPU 3 (NVIDIA H100 80GB HBM3)`."""
        name = f"GPU {self.index}" if self.index >= 0 else f"GPU {self.uuid}"
        model = self.samples.get("model")
        return f"{name} ({model})" if model else name

    def number(self, name: str) -> float | None:
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
    return {sample.name: sample.value for sample in readout.samples if sample.subject == "node"}


def judge(readout: Readout) -> list[Remark]:
    """What a readout says of the node's devices."""
    if readout.is_silent:
        advice = "Look for Xids in dmesg, and for processes in D state; a driver that hangs needs a reboot."
        return [warn(NAME, f"The GPUs' driver does not answer: {readout.trouble}.", advice)]
    gpus, node = gpus_of(readout), node_samples(readout)
    remarks = [*_missing(node), *(remark for gpu in gpus for remark in judge_gpu(gpu))]
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


Rule = Callable[[Gpu], Remark | None]


def judge_gpu(gpu: Gpu) -> list[Remark]:
    """What is wrong with one device."""
    if gpu.samples.get("is_lost") is True:
        return [refuse(NAME, f"{gpu.title} has fallen off the bus.", "Reboot the node; if it recurs: " + REPLACE)]
    return [remark for rule in RULES if (remark := rule(gpu)) is not None]


def _recovery(gpu: Gpu) -> Remark | None:
    action = gpu.samples.get("recovery_action")
    if not isinstance(action, str) or action == NO_ACTION:
        return None
    words = action.replace("_", " ")
    if action in SOFT_ACTIONS:
        return warn(NAME, f"The driver wants a {words} for {gpu.title}.", "Do so when its jobs have ended.")
    return refuse(NAME, f"{gpu.title} is not to be used before a {words}: the driver says so.", RESET)


def _remap(gpu: Gpu) -> Remark | None:
    if gpu.samples.get("remap_failed") is True:
        return refuse(NAME, f"{gpu.title} has a row of memory that could not be remapped.", REPLACE)
    if gpu.samples.get("remap_pending") is True or gpu.samples.get("retired_pages_pending") is True:
        return warn(NAME, f"{gpu.title} has bad memory that is taken out of use at its next reset.", RESET)
    return None


def _ecc(gpu: Gpu) -> Remark | None:
    if gpu.samples.get("ecc_sram_threshold_exceeded") is True:
        return warn(NAME, f"{gpu.title} has more errors in its on-chip memory than NVIDIA tolerates.", REPLACE)
    count = gpu.number("ecc_volatile_uncorrected")
    if not count:
        return None
    summary = f"{gpu.title} has had {plural(int(count), 'uncorrectable memory error')} since the driver was loaded."
    return warn(NAME, summary, RESET, uuid=gpu.uuid, ecc_volatile_uncorrected=int(count))


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


RULES: tuple[Rule, ...] = (_recovery, _remap, _ecc, _pcie, _nvlink, _temperature)
