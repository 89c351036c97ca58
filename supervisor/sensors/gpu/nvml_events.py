"""Xids as the driver tells of them through NVML's event set: waited for, never polled.

The set is made anew when waiting on it fails, as it does once a device is lost, with growing pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from guardrun.supervisor.health.base.readings import Happening
from guardrun.supervisor.health.gpu.xids import xid_happened
from guardrun.supervisor.sensors.gpu.nvml_calls import TIMEOUT
from guardrun.supervisor.sensors.gpu.nvml_session import Device, handle_address

XID = 0x8
"""nvmlEventTypeXidCriticalError"""
WAIT_MS = 60_000
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
REST_S = 0.02
"""After each event: a driver that floods must not keep a core busy."""


def watch_events(
    nvml: Any, devices: Iterable[Device], tell: Callable[[Happening], None], pause: Callable[[float], None] = time.sleep
) -> None:
    """Tell of every Xid, for ever. Returns where no device has events (MIG instances, old devices)."""
    by_address = {device.address: device for device in devices}
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            events = _make_set(nvml, by_address.values())
        except nvml.NVMLError:
            events = None
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            if events is None:
                return
        if events is not None and _wait_on(nvml, events, by_address, tell, pause):
            pause_s = FIRST_PAUSE_S
        else:
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        pause(pause_s)


def _make_set(nvml: Any, devices: Iterable[Device]) -> Any | None:
    """A set in which every device that can is registered; None where none can."""
    events = nvml.nvmlEventSetCreate()
    registered = 0
    for device in devices:
        try:
            nvml.nvmlDeviceRegisterEvents(device.ask.handle, XID, events)
            registered += 1
        except nvml.NVMLError:
            continue
    if registered:
        return events
    nvml.nvmlEventSetFree(events)
    return None


def _wait_on(
    nvml: Any,
    events: Any,
    devices: dict[int, Device],
    tell: Callable[[Happening], None],
    pause: Callable[[float], None],
) -> bool:
    """Tell of what comes until waiting fails; says whether it ever worked."""
    has_worked = False
    while True:
        try:
            data = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == TIMEOUT:
                has_worked = True
                continue
            _free(nvml, events)
            return has_worked
        has_worked = True
        device = devices.get(handle_address(data.device))
        if data.eventType & XID and device is not None:
            tell(xid_happened(device.ask.subject, int(data.eventData), time.monotonic(), bus=device.bus, source="nvml"))
        pause(REST_S)


def _free(nvml: Any, events: Any) -> None:
    try:
        nvml.nvmlEventSetFree(events)
    except nvml.NVMLError:
        return
