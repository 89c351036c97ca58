"""Devices that do not answer any more, or are not there though they should be. Pure.

What should be there: what the PCI bus shows and the driver holds (`gpus_missing`), and what has been there before. All
of it has to be seen twice: a driver that is being loaded shows its devices one by one. A driver whose calls do not
return is told as well, but isolates nothing: training may not feel it.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.held_findings import Held
from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.gpu.gpu_inventory import PREFIX, SENSOR, GpuBook, of_node

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

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges the driver's silence, and devices that have been seen before or should be there and are not."""
        told = self._judge_driver(readout, now_s)
        reasons: dict[str, str] = {}
        present: set[str] = set()
        for subject, values in self._book.take(readout).items():
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
