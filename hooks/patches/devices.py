"""Which device this rank trains on, as torch knows it in the rank: told once, and again when it is another.

The thread that trains says so, at moments when torch has long asked the device itself: after torch.cuda.set_device, and
when an optimizer has stepped, by where its parameters lie. So nothing here initialises CUDA, makes a context or calls
the driver, and the hooks' thread, which might wait in it with the GIL held, asks nothing at all. The properties of all
devices are read by torch when it initialises CUDA (torch/cuda/__init__.py, _check_capability) and kept.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from guardrun.hooks.rank.rank import Rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guardrun.hooks.rank.parts import DeviceObserver

HOST = frozenset({"cpu", "meta"})
STEPS = 16
"""So many steps of optimizers are looked at until one is of a device: some have a part on the host."""
MAX_PARAMETERS = 512
"""Looked at in one step."""
CHANGES = 8
"""By set_device. A script that goes to and fro all the time works on several devices, and pays nothing for it here."""


class DeviceReporter:
    """Tells; one a process."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._told: tuple[object, ...] = ()
        self._steps_left = STEPS
        self._changes_left = CHANGES
        self._current = -1
        """As set_device last left it."""
        self._is_by_parameters = False
        self.model = ""

    def after_set_device(self, cuda: Any) -> None:
        """The thread that asks uses another device of torch.cuda from now on."""
        if not (self._changes_left and self._rank.is_owner() and cuda.is_initialized()):
            return
        index = int(cuda.current_device())
        if index == self._current:
            return
        self._current = index
        self._changes_left -= 1
        self._steps_left = STEPS  # where the parameters are says more, once there are any
        if not self._is_by_parameters:
            self._report("cuda", {index}, is_alone=bool(self._changes_left))

    def on_step(self, optimizer: Any) -> None:
        """An optimizer has stepped. 50 ns once the device is known. Never raises."""
        if not self._steps_left:
            return
        try:
            self._steps_left -= 1
            found = find_devices(optimizer)
            if found and self._rank.is_owner():
                self._steps_left, self._is_by_parameters = 0, True
                kind = min(kind for kind, _ in found)
                self._report(kind, {index for each, index in found if each == kind}, len(found) == 1)
        except Exception as error:
            self._steps_left = 0
            self._rank.fail("device", error)

    def _report(self, kind: str, indexes: set[int], is_alone: bool = True) -> None:
        is_alone = is_alone and len(indexes) == 1
        index = min(indexes) if is_alone else -1
        if self._told == (kind, index, is_alone):
            return
        self._told = (kind, index, is_alone)
        torch: Any = sys.modules["torch"]
        uuid = bus = ""
        if kind == "cuda" and torch.version.hip:
            kind = "hip"
        elif kind == "cuda" and index >= 0 and torch.cuda.is_initialized():
            properties = torch.cuda.get_device_properties(index)
            self.model = str(getattr(properties, "name", ""))
            uuid, bus = read_identity(properties)
        self._rank.send("DeviceReported", device_type=kind, index=index, uuid=uuid, bus=bus, is_alone=is_alone)


def find_devices(optimizer: Any) -> set[tuple[str, int]]:
    """(type, index) of each device that an optimizer has parameters on; the host is none."""
    found = set()
    left = MAX_PARAMETERS
    for group in optimizer.param_groups:
        for parameter in group["params"][:left]:
            device = parameter.device
            if device.type not in HOST:
                found.add((str(device.type), -1 if device.index is None else int(device.index)))
        left -= min(left, len(group["params"]))
    return found


def read_identity(properties: Any) -> tuple[str, str]:
    """UUID and PCI address of torch's properties of a CUDA device; empty where this torch does not tell them."""
    uuid = str(getattr(properties, "uuid", "") or "")
    place = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    known = [int(part) for part in place if part is not None]
    if len(known) < len(place):
        return uuid, ""
    return uuid, "{:04x}:{:02x}:{:02x}".format(*known)


def reporter(rank: Rank) -> DeviceObserver:
    """The rank's, made when it is first asked for."""
    if rank.devices is None:
        rank.devices = DeviceReporter(rank)
    return rank.devices


def install(module: Any, rank: Rank) -> None:
    """Hear of torch.cuda.set_device."""
    original, heard = module.set_device, reporter(rank)

    @functools.wraps(original)
    def set_device(device: Any) -> None:
        original(device)
        try:
            heard.after_set_device(module)
        except Exception as error:
            rank.fail("device", error)

    module.set_device = set_device
