"""Are the GPUs there and well? Judged from one readout of their sensor. Pure.

What the node's own judges tell at once, without a history (errors, remapped rows, what the driver wants done), is
theirs to tell; what they take a while for, because it may pass, is told here as it is now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.gpu import thermal
from guardrun.supervisor.health.gpu.gpu_judges import gpu_judges
from guardrun.supervisor.preflight.base.remark import Remark, Severity, note, ok, plural, refuse, warn

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


def judge(readout: Readout) -> list[Remark]:
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
        for finding in judge.take(readout, readout.at_s)
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
