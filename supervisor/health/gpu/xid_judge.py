"""Xids, judged by the catalogue. Pure.

The same Xid comes by NVML's events and by the kernel log, the latter with process and text: within SAME_S they are one.
One whose likely cause is what ran on the device blames no node.
"""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.health.base.findings import Finding, Held, Response
from guardrun.supervisor.health.base.readings import Happening, Readout
from guardrun.supervisor.health.gpu.gpu_inventory import SENSOR, GpuBook
from guardrun.supervisor.health.gpu.xid_catalogue import RECOVERY_RESPONSES, Asks, Entry, advise, look_up
from guardrun.supervisor.health.gpu.xids import XID, recovery_in

CAUSE = "gpu_xid"
KERNEL_LOG = "kernel_log"
SAME_S = 10.0
"""The kernel log may be read late."""
APART_S = 60.0
"""Xids of one number that come closer together are one event: they come in bursts."""
DAY_S = 86400.0
LASTS_S = {Response.NOTE: 600.0, Response.RESTART: DAY_S, Response.ISOLATE: float("inf")}
"""After the last one, so long is it of interest; a device that needs a reset does so until it has had it."""
RECOVERY = 154
MAX_PIDS = 16
MAX_TIMES = 64
MAX_KEPT = 512


class Series(msgspec.Struct):
    """The Xids of one number on one device."""

    last_s: dict[str, float] = {}
    """By source."""
    count: int = 0
    events_s: list[float] = []
    """When each event began; the last MAX_TIMES of a day."""
    pids: list[int] = []
    processes: list[str] = []
    text: str = ""
    recovery: str = ""


class XidJudge:
    """`gpu_xid`, a finding a device and number."""

    sensors = frozenset({SENSOR, KERNEL_LOG})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()
        self._series: dict[tuple[str, int], Series] = {}

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges Xids, and the recovery action that the driver asks for; LASTS_S says when a finding ends."""
        told: list[Finding] = []
        for subject, values in self._book.update(readout).items():
            action = values.get("recovery_action")
            if isinstance(action, str):
                told += self._take_recovery(subject, action, readout.at_s, now_s)
        for happening in readout.happenings:
            if happening.name == XID:
                told += self._take_xid(happening, now_s)
        return told + self._end_old(now_s)

    def _take_xid(self, happening: Happening, now_s: float) -> list[Finding]:
        code = happening.data.get(XID)
        if not isinstance(code, int):
            return []
        subject = self._book.canonical(happening.subject)
        series = self._series.get((subject, code))
        if series is None:
            if len(self._series) >= MAX_KEPT:
                return []
            series = self._series[subject, code] = Series()
        _add(series, happening)
        return self._report_xid(subject, look_up(code), series, now_s)

    def _take_recovery(self, subject: str, action: str, at_s: float, now_s: float) -> list[Finding]:
        """What the driver says itself it wants done: the same as Xid 154, for as long as it is so."""
        series = self._series.get((subject, RECOVERY))
        if action == "none":
            if series is not None and series.recovery not in ("", "none") and at_s - max(series.events_s) > SAME_S:
                del self._series[subject, RECOVERY]
                summary = f"The driver asks for nothing any more to be done to {self._book.label(subject)}."
                return self._held.end(_id(subject, RECOVERY), now_s, summary)
            return []
        if series is None:
            series = self._series[subject, RECOVERY] = Series(count=1, events_s=[at_s])
        series.recovery = action
        return self._report_xid(subject, look_up(RECOVERY), series, now_s)

    def _report_xid(self, subject: str, entry: Entry, series: Series, now_s: float) -> list[Finding]:
        response = _response(entry, series)
        return self._held.hold(
            Finding(
                id=_id(subject, entry.code),
                cause=CAUSE,
                key=f"{CAUSE}_{entry.code}",
                subject=subject,
                since_s=series.events_s[0],
                told_s=now_s,
                summary=self._summary(subject, entry, series),
                evidence=_evidence(entry, series),
                advice=advise(look_up(95)) if series.recovery and response is Response.ISOLATE else advise(entry),
                response=response,
            ),
            # A flood is told at its first, its tenth, its hundredth, …
            news=f"{len(str(series.count))} {series.recovery} {bool(series.pids)}",
        )

    def _summary(self, subject: str, entry: Entry, series: Series) -> str:
        label = self._book.label(subject)
        if series.recovery:
            return f"The driver wants {label} to have a {series.recovery.replace('_', ' ')} (Xid {RECOVERY})."
        often = f", {series.count} times" if series.count > 1 else ""
        who = f", in process {series.pids[-1]}" if series.pids else ""
        named = f" ({series.processes[-1]})" if series.pids and series.processes else ""
        return f"{label} has told Xid {entry.code}{often}: {entry.meaning}{who}{named}."

    def _end_old(self, now_s: float) -> list[Finding]:
        told: list[Finding] = []
        for (subject, code), series in list(self._series.items()):
            lasts_s = LASTS_S[_response(look_up(code), series)]
            if series.last_s and now_s - max(series.last_s.values()) > lasts_s:
                del self._series[subject, code]
                told += self._held.end(_id(subject, code), now_s)
        return told


def _add(series: Series, happening: Happening) -> None:
    source = str(happening.data.get("source", ""))
    others = [last_s for other, last_s in series.last_s.items() if other != source]
    is_same = any(abs(happening.at_s - last_s) <= SAME_S for last_s in others)
    # Of a burst each source tells each Xid: only the one that has told more of them counts.
    is_counted = not is_same or source == min(series.last_s, key=lambda name: name not in (source, "nvml"))
    series.count += is_counted
    if not series.events_s or happening.at_s - max(series.events_s[-1], *series.last_s.values(), 0.0) >= APART_S:
        series.events_s = [at_s for at_s in series.events_s if at_s > happening.at_s - DAY_S][1 - MAX_TIMES :]
        series.events_s.append(happening.at_s)
    series.last_s = {**series.last_s, source: max(happening.at_s, series.last_s.get(source, 0.0))}
    pid, process = happening.data.get("pid"), happening.data.get("process")
    if isinstance(pid, int) and pid not in series.pids:
        series.pids = [*series.pids, pid][-MAX_PIDS:]
    if isinstance(process, str) and process not in series.processes:
        series.processes = [*series.processes, process][-MAX_PIDS:]
    if happening.text:
        series.text = happening.text
        series.recovery = recovery_in(happening.text) or series.recovery


def _response(entry: Entry, series: Series) -> Response:
    if entry.asks is Asks.XID_154:
        return RECOVERY_RESPONSES.get(series.recovery, Response.ISOLATE) if series.recovery else Response.NOTE
    if entry.is_worse_again and len(series.events_s) > 1:
        return Response.ISOLATE
    return entry.response


def _evidence(entry: Entry, series: Series) -> dict[str, Any]:
    return {
        "xid": entry.code,
        "name": entry.name,
        "asks": entry.asks.value,
        "is_application": entry.is_application,
        "count": series.count,
        "events_s": list(series.events_s),
        "pids": list(series.pids),
        "processes": list(series.processes),
        "text": series.text,
    }


def _id(subject: str, code: int) -> str:
    return f"{CAUSE}/{subject}/{code}"
