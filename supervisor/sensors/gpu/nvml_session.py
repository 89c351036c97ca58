"""NVML from its initialisation on: the devices it shows, one turn of reading them, and the Xids that it tells of."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from guardrun.supervisor.health.base.readings import Happening, Sample
from guardrun.supervisor.health.gpu.xids import normal_bus, xid_happened
from guardrun.supervisor.sensors.gpu.device_presence import read_expected
from guardrun.supervisor.sensors.gpu.device_readings import (
    read_health,
    read_identity,
    read_memory,
    read_nvlink,
    read_pcie,
    read_processes,
    read_vitals,
)
from guardrun.supervisor.sensors.gpu.nvml_calls import (
    TIMEOUT,
    Asker,
    LostError,
    NotPermittedError,
    SessionOverError,
    UnreadableError,
    Watch,
)
from guardrun.supervisor.sensors.gpu.nvml_wire import FAST, MEDIUM, MEMORY, SLOW

NODE = "node"


class Device:
    """One GPU that NVML has shown."""

    def __init__(self, ask: Asker, index: int, name: str, bus: str) -> None:
        self.ask = ask
        self.index = index
        self.name = name
        self.bus = bus
        self.is_lost = False

    @property
    def address(self) -> int:
        """What its handle points to: how an event names it."""
        return handle_address(self.ask.handle)


class Session:
    """Reads every device; made once NVML can be initialised. Raises SessionOverError where it cannot."""

    def __init__(self, nvml: Any, watch: Watch, root: Path = Path("/")) -> None:
        self._nvml = nvml
        self._watch = watch
        self._root = root
        self.system = Asker(nvml, watch, NODE)
        _required(lambda: self.system.call("nvmlInit"), "NVML cannot be initialised")
        self.driver = str(_or_empty(lambda: self.system.call("nvmlSystemGetDriverVersion")))
        self.system.driver = self.driver
        self.devices: list[Device] = []
        self._unusable: dict[int, str] = {}
        self._hidden = 0
        self._pid_namespace = os.stat("/proc/self/ns/pid").st_ino
        """That of this process: process ids that NVML answers with are its, or the host's."""
        self._find_devices()

    def turn(self, tiers: list[str]) -> list[Sample]:
        """Samples of all devices. Raises SessionOverError where NVML itself has gone."""
        if SLOW in tiers:
            self._look_again()
        samples: list[Sample] = []
        for device in self.devices:
            samples += self._read(device, tiers)
        return samples if tiers == [FAST] else [*samples, *self._node_samples()]

    def _look_again(self) -> None:
        """Raise SessionOverError where other devices may be there than when NVML was initialised.

        A device that was lost comes back, after its reset, only to whoever initialises NVML anew.
        """
        if self._count() != len(self.devices) + len(self._unusable) + self._hidden:
            raise SessionOverError("the number of devices has changed", 0)
        for device in self.devices:
            if device.is_lost:
                raise SessionOverError(f"{device.ask.label} is lost; looking whether it has come back", 0)
        for index in self._unusable:
            if isinstance(self._open(index), Device):
                raise SessionOverError(f"GPU {index} can be used again", 0)

    def _read(self, device: Device, tiers: list[str]) -> list[Sample]:
        """What this device tells; what it told before it was lost is told as well."""
        ask = device.ask
        ask.needs_reset = False
        samples: list[Sample] = []
        try:
            # Asked first, so that the reasons of others can name it.
            ask.is_mig = _is_mig(ask) if SLOW in tiers or MEMORY in tiers else ask.is_mig
            if SLOW in tiers:
                samples += read_identity(ask, device.index, device.name, device.bus)
            if FAST in tiers:
                samples += read_vitals(ask)
            if MEDIUM in tiers:
                for read in (read_health, read_pcie, read_nvlink, read_processes):
                    samples += read(ask)
            if MEMORY in tiers:
                samples += [*read_memory(ask), *read_processes(ask)]
        except LostError as lost:
            device.is_lost = True
            return [*samples, Sample(subject=ask.subject, name="is_lost", value=True, trouble=str(lost))]
        device.is_lost = False
        return [*samples, ask.known("is_lost", False)]

    def _node_samples(self) -> list[Sample]:
        shown = {device.bus for device in self.devices}
        missing = sorted(read_expected(self._root) - shown)
        known = self.system.known
        return [
            known("driver_version", self.driver) if self.driver else self.system.unknown("driver_version", "not told"),
            known("gpus", " ".join(device.ask.subject.removeprefix("gpu:") for device in self.devices)),
            known("gpu_count", len(self.devices)),
            known("gpus_missing", " ".join(missing)),
            known("gpus_unusable", "; ".join(f"{index}: {why}" for index, why in self._unusable.items())),
            known("gpus_hidden", self._hidden),
            known("pid_namespace", self._pid_namespace),
        ]

    def _count(self) -> int:
        return int(_required(lambda: self.system.call("nvmlDeviceGetCount"), "the devices cannot be counted"))

    def _find_devices(self) -> None:
        for index in range(self._count()):
            found = self._open(index)
            if isinstance(found, Device):
                self.devices.append(found)
            elif found:
                self._unusable[index] = found
            else:
                self._hidden += 1

    def _open(self, index: int) -> Device | str:
        """The device, or why it cannot be used; empty where it is somebody else's (a container was given others)."""
        ask = Asker(self._nvml, self._watch, f"gpu:{index}", None, f"GPU {index}")
        ask.driver = self.driver
        try:
            ask.handle = ask.call("nvmlDeviceGetHandleByIndex", index)
            ask.subject = f"gpu:{ask.call('nvmlDeviceGetUUID')}"
            bus = ask.call("nvmlDeviceGetPciInfo_v3|nvmlDeviceGetPciInfo").busId
            name = _or_empty(lambda: ask.call("nvmlDeviceGetName"))
        except NotPermittedError:
            return ""
        except (LostError, UnreadableError) as reason:
            return str(reason)
        text = bus.decode() if isinstance(bus, bytes) else str(bus)
        return Device(ask, index, str(name), normal_bus(text))


def handle_address(handle: Any) -> int:
    """An nvmlDevice_t as the number it is."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _is_mig(ask: Asker) -> bool:
    try:
        return bool(ask.call("nvmlDeviceGetMigMode")[0])
    except UnreadableError:
        return False


def _required(call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except (UnreadableError, LostError) as reason:
        raise SessionOverError(f"{what}: {reason}", 0) from None


def _or_empty(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (UnreadableError, LostError):
        return ""


# NVML events --------------------------------------------------------------------------------------------------------
# Xids as the driver tells of them through NVML's event set: waited for, never polled.
#
# The set is made anew when waiting on it fails, as it does once a device is lost, with growing pauses.


XID = 0x8
"""nvmlEventTypeXidCriticalError"""
WAIT_MS = 60_000
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
REST_S = 0.02
"""After each event: a driver that floods must not keep a core busy."""


def watch_events(
    nvml: Any,
    devices: Iterable[Device],
    report: Callable[[Happening], None],
    pause: Callable[[float], None] = time.sleep,
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
        if events is not None and _wait_on(nvml, events, by_address, report, pause):
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
    report: Callable[[Happening], None],
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
            report(
                xid_happened(device.ask.subject, int(data.eventData), time.monotonic(), bus=device.bus, source="nvml")
            )
        pause(REST_S)


def _free(nvml: Any, events: Any) -> None:
    try:
        nvml.nvmlEventSetFree(events)
    except nvml.NVMLError:
        return
