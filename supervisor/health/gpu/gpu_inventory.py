"""A node's GPUs as judges know them: their names, which of them are gone, and who holds their memory. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from guardrun.supervisor.health.base.findings import Finding, Held, Response
from guardrun.supervisor.health.base.readings import Readout, Value, parse_holders
from guardrun.supervisor.health.gpu.xids import normal_bus

PREFIX = "gpu:"
SENSOR = "gpu"


def by_subject(readout: Readout) -> dict[str, dict[str, Value | None]]:
    """Values by name, by GPU: only of what this readout tells."""
    found: dict[str, dict[str, Value | None]] = {}
    for sample in readout.samples:
        if sample.subject.startswith(PREFIX):
            found.setdefault(sample.subject, {})[sample.name] = sample.value
    return found


def of_node(readout: Readout, name: str) -> Value | None:
    """A value of the node's; None where this readout does not tell it."""
    return next((sample.value for sample in readout.samples if sample.subject == "node" and sample.name == name), None)


def number(values: dict[str, Value | None], name: str) -> float | None:
    """A number, where it is told and known."""
    value = values.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class GpuBook:
    """Remembers index, model and bus of every GPU that has told them."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}
        self._models: dict[str, str] = {}
        self._by_bus: dict[str, str] = {}

    def update(self, readout: Readout) -> dict[str, dict[str, Value | None]]:
        """Learn from a readout; answers by_subject."""
        values = by_subject(readout) if readout.sensor == SENSOR else {}
        for subject, of in values.items():
            index, model, bus = of.get("index"), of.get("model"), of.get("bus")
            if isinstance(index, int):
                self._indexes[subject] = index
            if isinstance(model, str):
                self._models[subject] = model
            if isinstance(bus, str):
                self._by_bus[bus] = subject
        return values

    def canonical(self, subject: str) -> str:
        """The UUID's subject of one that names a GPU by its bus (`gpu:0000:3b:00`); itself where that is not known."""
        return self._by_bus.get(normal_bus(subject.removeprefix(PREFIX)), subject)

    def at_index(self, index: int) -> str:
        """The subject of the GPU with this index, or one by the index where none has told it."""
        return next((subject for subject, known in self._indexes.items() if known == index), f"{PREFIX}{index}")

    def label(self, subject: str) -> str:
        """`GPU 1`; by UUID or bus where its index is not known."""
        index = self._indexes.get(subject)
        return f"GPU {subject.removeprefix(PREFIX)}" if index is None else f"GPU {index}"

    def model(self, subject: str) -> str:
        """As the driver names it (`NVIDIA H100 80GB HBM3`); empty where it is not known."""
        return self._models.get(subject, "")

    def index(self, subject: str) -> int:
        """As the driver counts; -1 where it is not known."""
        return self._indexes.get(subject, -1)

    def bus(self, subject: str) -> str:
        """Its PCI address (`0000:3b:00`); empty where it is not known."""
        return next((bus for bus, known in self._by_bus.items() if known == subject), "")


# Lost devices -------------------------------------------------------------------------------------------------------
# Devices that do not answer any more, or are not there though they should be.
#
# What should be there: what the PCI bus shows and the driver holds (`gpus_missing`), and what has been there before.
# All of it has to be seen twice: a driver that is being loaded shows its devices one by one. A driver whose calls do
# not return is told as well, but isolates nothing: training may not feel it.


CAUSE = "gpu_lost"
DRIVER = "driver"
TIMES = 2
ADVICE = "Power-cycle the node; if it comes back, check the device's seat and power, or have it replaced."


class LostJudge:
    """`gpu_lost`: fallen off the bus, missing, unusable; a driver that does not answer."""

    sensors = frozenset({SENSOR})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()
        self._seen: set[str] = set()
        self._gone: dict[str, tuple[int, str]] = {}
        """How often in a row, and why."""

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges the driver's silence, and devices that have been seen before or should be there and are not."""
        told = self._judge_driver(readout, now_s)
        reasons: dict[str, str] = {}
        present: set[str] = set()
        for subject, values in self._book.update(readout).items():
            if values.get("is_lost"):
                reasons[subject] = "has fallen off the bus: it does not answer any more"
            elif values.get("is_lost") is False:
                present.add(subject)
        is_whole = isinstance(of_node(readout, "gpus"), str)
        if is_whole:
            reasons.update(self._not_there(readout, present | reasons.keys()))
        self._seen |= present
        for subject in present:
            self._gone.pop(subject, None)
            told += self._held.end(f"{CAUSE}/{subject}", now_s, f"{self._book.label(subject)} answers again.")
        for subject in [gone for gone in self._gone if is_whole and gone not in reasons]:
            del self._gone[subject]
            told += self._held.end(f"{CAUSE}/{subject}", now_s)
        for subject, reason in reasons.items():
            told += self._count(subject, reason, readout.at_s, now_s)
        return told

    def _not_there(self, readout: Readout, here: set[str]) -> dict[str, str]:
        """Devices that should be among those that the driver shows, by why they are not."""
        reasons = {}
        for subject in self._seen - here:
            reasons[subject] = "is not shown by the driver any more"
        unusable = str(of_node(readout, "gpus_unusable") or "")
        for text in filter(None, unusable.split("; ")):
            index, _, why = text.partition(": ")
            reasons[self._book.at_index(int(index))] = f"cannot be used: {why}"
        if not unusable:
            # The bus of an unusable one is not known: it may be one of these.
            for bus in str(of_node(readout, "gpus_missing") or "").split():
                subject = self._book.canonical(f"{PREFIX}{bus}")
                reasons.setdefault(subject, f"is on the PCI bus ({bus}), but the driver does not show it")
        return reasons

    def _count(self, subject: str, reason: str, at_s: float, now_s: float) -> list[Finding]:
        times = self._gone.get(subject, (0, ""))[0] + 1
        self._gone[subject] = (times, reason)
        if times < TIMES:
            return []
        return self._held.hold(
            Finding(
                id=f"{CAUSE}/{subject}",
                cause=CAUSE,
                subject=subject,
                since_s=at_s,
                told_s=now_s,
                summary=f"{self._book.label(subject)} {reason}.",
                evidence={"bus": self._book.bus(subject), "model": self._book.model(subject)},
                advice=ADVICE,
                response=Response.ISOLATE,
            )
        )

    def _judge_driver(self, readout: Readout, now_s: float) -> list[Finding]:
        finding_id = f"{CAUSE}/{DRIVER}"
        if not readout.is_silent:
            # "Being initialised" and "ended" are no answers.
            return self._held.end(finding_id, now_s, "The GPUs' driver answers again.") if readout.samples else []
        return self._held.hold(
            Finding(
                id=finding_id,
                cause=CAUSE,
                key="gpu_driver_silent",
                subject=DRIVER,
                since_s=readout.at_s,
                told_s=now_s,
                summary=f"The GPUs' driver does not answer: {readout.trouble}.",
                evidence={"trouble": readout.trouble},
                advice="`dmesg` may say why (Xid 119, 120); a driver that stays so needs a reboot.",
            )
        )


# Foreign processes --------------------------------------------------------------------------------------------------
# Who holds a device's memory and has no business there.


class Stranger(NamedTuple):
    """A process that holds memory of a GPU."""

    subject: str
    label: str
    """`GPU 1`."""
    pid: int
    used_bytes: int | None
    """None: the driver does not say."""


def strangers(readout: Readout, own: Collection[int]) -> list[Stranger]:
    """Processes, other than own, that hold GPU memory by this readout.

    Empty where it does not tell (`holders` Unknown, or not of this turn), and where pids cannot be seen from here.
    """
    book = GpuBook()
    found: list[Stranger] = []
    for subject, values in book.update(readout).items():
        held = values.get("holders")
        for pid, used in parse_holders(held).items() if isinstance(held, str) else ():
            if pid not in own:
                found.append(Stranger(subject, book.label(subject), pid, used))
    return found
