"""Which device is a rank's: from what its process says of it, its environment, NVML's list and who holds memory. Pure.

A wrong device is worse than none: a finding of it would blame a rank that has nothing to do with it. So each source
answers only where it can mean one device alone, two that disagree answer nothing, and LOCAL_RANK is none of them.

1. torch, in the rank: UUID and PCI address of the device that it trains on. Both are the device's own, whoever counts.
2. The environment: a UUID in CUDA_VISIBLE_DEVICES (or, seen from outside of a container, NVIDIA_VISIBLE_DEVICES) is as
   good. A number counts the devices that the process may see, in an order that is known only where CUDA_DEVICE_ORDER is
   PCI_BUS_ID or there is one device: by default CUDA puts the fastest first. It says nothing where NVML was asked from
   somewhere else (the node's agent, outside of the job's cgroup or container).
3. Memory: a device that this process alone of its run holds memory of, or the only one that it holds any of.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from guardrun.supervisor.health.gpu.gpu_inventory import PREFIX
from guardrun.supervisor.health.gpu.xids import normal_bus

NVIDIA = "cuda"
"""torch's name for devices that NVML knows; torch for ROCm says the same, so its hooks say `hip`."""
ALL_VISIBLE = "CUDA_VISIBLE_DEVICES"
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO, include/linux/proc_ns.h."""

_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]+)/\d+/\d+$")
"""Drivers before R470: the GPU, its instance, the compute instance."""


class Gpu(NamedTuple):
    """A GPU as NVML lists it."""

    subject: str
    """`gpu:GPU-…`"""
    place: int
    """NVML's index."""
    bus: str
    """`0000:3b:00`; empty where it is not known."""
    is_mig: bool = False
    """It is divided: processes get instances of it."""
    instances: tuple[str, ...] = ()
    """Their UUIDs, `MIG-…`."""

    @property
    def uuid(self) -> str:
        """`GPU-…`."""
        return self.subject.removeprefix(PREFIX)


class Inventory(NamedTuple):
    """What NVML lists."""

    gpus: tuple[Gpu, ...] = ()
    is_complete: bool = True
    """No GPU is hidden, unusable or missing, so that they can be counted."""
    is_ranks_view: bool = True
    """It was asked from where the ranks live: with their rights, in their cgroup and container."""


class TorchDevice(NamedTuple):
    """What a rank's process says of the device that it trains on."""

    kind: str = ""
    """torch's type of it: `cuda`, `xpu`, …; empty: nothing has been told yet."""
    place: int = -1
    """Its index, as this process counts; -1 unknown."""
    uuid: str = ""
    """Of the device, or of its MIG instance; with or without `GPU-` and `MIG-`."""
    bus: str = ""
    is_alone: bool = True
    """False: it trains on several."""


class Answer(NamedTuple):
    """The device, or why it is unknown."""

    subject: str
    why: str = ""
    is_contradiction: bool = False
    """What is known says two things, or that it is no device of the list: an earlier answer is not kept."""


def find_device(
    told: TorchDevice,
    environ: Mapping[str, str],
    inventory: Inventory,
    held: Collection[str] = (),
    own: Collection[str] = (),
) -> Answer:
    """Which of the inventory's devices a rank trains on.

    environ: of its process, at least DEVICE_VARIABLES (hooks/beat/message_sender.py). held: devices that it holds
    memory of, where process ids can be trusted; own: those of them that no other rank of the run holds any of.
    """
    if told.kind not in ("", NVIDIA):
        return _contradicted(f"it trains on a device of type {told.kind}, of which nothing is sensed")
    if not told.is_alone:
        return _contradicted("it trains on several devices")
    if not inventory.gpus:
        return Answer("", "no list of devices is there")
    for found, source in (
        (_by_torch(told, inventory), "torch"),
        (_by_environment(told, environ, inventory), "its environment"),
    ):
        if found.subject and held and found.subject not in held:
            return _contradicted(f"{source} names another device than the one whose memory it holds")
        if found.subject or found.why:
            return found
    return _by_memory(held, own)


def _contradicted(why: str) -> Answer:
    return Answer("", why, is_contradiction=True)


def trusts_pids(namespace: int | None, here: int, holders: Collection[int], ranks: Collection[int]) -> bool:
    """Whether NVML's process ids are those of this PID namespace.

    namespace: the one that NVML was asked in (its inode), None unknown; here: the ranks'. In a namespace of their own
    most drivers answer with the host's ids, which may be anybody's here; some translate. The former give themselves
    away: among the holders of memory are processes that are no ranks.
    """
    if namespace == here == INITIAL_PID_NAMESPACE:
        return True
    return bool(holders) and set(holders) <= set(ranks)


# By what torch says -------------------------------------------------------------------------------------------------


def _by_torch(told: TorchDevice, inventory: Inventory) -> Answer:
    uuid, bus = _bare(told.uuid), normal_bus(told.bus) if told.bus else ""
    if not (uuid or bus):
        return Answer("")
    by_uuid = [g for g in inventory.gpus if uuid and uuid in (_bare(g.uuid), *map(_bare, g.instances))]
    by_bus = [g for g in inventory.gpus if bus and g.bus == bus]
    if len(by_uuid) == 1 and by_bus in ([], by_uuid):
        return Answer(by_uuid[0].subject)
    # An instance that NVML does not list to this user is on the GPU with its address.
    if len(by_bus) == 1 and not by_uuid and (not uuid or by_bus[0].is_mig):
        return Answer(by_bus[0].subject)
    if by_uuid and by_bus:
        return _contradicted("torch's UUID and PCI address are those of two devices")
    return _contradicted("torch's device is not among those that NVML lists")


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


# By the environment -------------------------------------------------------------------------------------------------


class Visible(NamedTuple):
    """Devices in CUDA's order, as far as it is known."""

    subjects: tuple[str, ...] = ()
    is_whole: bool = False
    """There are no others."""


def _by_environment(told: TorchDevice, environ: Mapping[str, str], inventory: Inventory) -> Answer:
    visible = parse_visible(environ, inventory)
    if told.place < 0:
        return Answer(visible.subjects[0] if visible.is_whole and len(visible.subjects) == 1 else "")
    return Answer(visible.subjects[told.place] if told.place < len(visible.subjects) else "")


def parse_visible(environ: Mapping[str, str], inventory: Inventory) -> Visible:
    """What CUDA shows a process with this environment (CUDA C++ Programming Guide, "CUDA Environment Variables").

    What is invalid hides all that follows it; a device that is named twice hides all.
    """
    order = _in_order(environ, inventory)
    text = environ.get(ALL_VISIBLE)
    if text is None:
        return order
    parts = [part.strip() for part in text.split(",")]
    if parts[0].startswith("MIG-"):
        # Only one instance is ever used, by whichever of them CUDA takes.
        found = _instance(parts[0], inventory)
        return Visible((found,), len(parts) == 1) if found else Visible()
    if parts[0].startswith("GPU-"):
        return _by_uuids(parts, inventory)
    return _by_numbers(parts, order)


def _in_order(environ: Mapping[str, str], inventory: Inventory) -> Visible:
    """All devices that a process may see, where it is known in which order CUDA counts them."""
    if not inventory.is_ranks_view:
        return _contained(environ.get("NVIDIA_VISIBLE_DEVICES", ""), inventory)
    gpus = inventory.gpus
    if not inventory.is_complete or any(gpu.is_mig or not gpu.bus for gpu in gpus):
        return Visible()
    if len(gpus) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return Visible()
    return Visible(tuple(gpu.subject for gpu in sorted(gpus, key=lambda gpu: gpu.bus)), True)


def _contained(text: str, inventory: Inventory) -> Visible:
    """The one device that a container was given by its UUID: NVIDIA's runtime shows it no other."""
    if "," in text:
        return Visible()
    if text.startswith("MIG-"):
        found = _instance(text, inventory)
        return Visible((found,), True) if found else Visible()
    same = [gpu.subject for gpu in inventory.gpus if text == gpu.uuid]
    return Visible(tuple(same), bool(same))


def _by_uuids(parts: list[str], inventory: Inventory) -> Visible:
    """Beginnings of UUIDs do, where they are one device's alone."""
    subjects: list[str] = []
    for part in parts:
        if not part.startswith("GPU-"):
            break
        same = [gpu for gpu in inventory.gpus if gpu.uuid.startswith(part)]
        if len(same) != 1 or same[0].is_mig:
            # Not one of those that are listed here, or several: a process that sees others may know better.
            return Visible(tuple(subjects))
        if same[0].subject in subjects:
            return Visible((), True)
        subjects.append(same[0].subject)
    return Visible(tuple(subjects), True)


def _by_numbers(parts: list[str], order: Visible) -> Visible:
    if not order.is_whole:
        return Visible()
    subjects: list[str] = []
    for part in parts:
        number = re.match(r"\+?\d+", part)  # what follows is passed over: `1gpu` is 1
        if number is None or int(number[0]) >= len(order.subjects):
            break
        subject = order.subjects[int(number[0])]
        if subject in subjects:
            return Visible((), True)
        subjects.append(subject)
    return Visible(tuple(subjects), True)


def _instance(text: str, inventory: Inventory) -> str:
    """The GPU that a MIG instance is on; empty where it is not known."""
    if old := _OLD_MIG.match(text):
        same = [gpu.subject for gpu in inventory.gpus if gpu.uuid == old[1]]
    else:
        same = [gpu.subject for gpu in inventory.gpus for uuid in gpu.instances if uuid.startswith(text)]
    return same[0] if len(same) == 1 else ""


# By memory ----------------------------------------------------------------------------------------------------------


def _by_memory(held: Collection[str], own: Collection[str]) -> Answer:
    """Ranks hold some of others' devices as well: contexts made by mistake, peers' buffers."""
    for these in (own, held):
        if len(these) == 1:
            return Answer(next(iter(these)))
    if held:
        return _contradicted("it holds memory of several devices, and nothing says which of them it trains on")
    return Answer("", "nothing says which device it trains on")
