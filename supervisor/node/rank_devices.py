"""Which device each rank of this node trains on, as far as it is known: for the engine, told as it changes.

Four sources meet here: what ranks say (hooks/patches/devices.py), their environment, NVML's list of devices, and who
holds their memory (both of the latter from the node agent, or from the supervisor's own sensors). What follows from
them is decided by supervisor/health/gpu/rank_device.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from guardrun.hooks.wire.messages import DeviceReported
from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model.events import Device
from guardrun.supervisor.health.base.readings import Readout, parse_holders
from guardrun.supervisor.health.gpu.gpu_inventory import GpuBook, of_node
from guardrun.supervisor.health.gpu.rank_device import (
    NVIDIA,
    Answer,
    Gpu,
    Inventory,
    TorchDevice,
    find_device,
    trusts_pids,
)

MAX_TYPE_CHARS = 40
"""Of what is told of a type of device: it is the script's word."""


class RankSaid(NamedTuple):
    """What ranks of the current attempt have said, by global rank."""

    variables: Mapping[int, Mapping[str, str]] = {}
    devices: Mapping[int, DeviceReported] = {}
    attempt: int = 0


class RankDevices:
    """Fed with readouts; asked once a second."""

    def __init__(self, pid_namespace: int | None = None) -> None:
        """pid_namespace: the ranks', as an inode; None: this process's own."""
        self.book = GpuBook()
        self._here = read_pid_namespace() if pid_namespace is None else pid_namespace
        self._namespace: int | None = None
        self._gpus: dict[str, Gpu] = {}
        """As last told; with all of a node's samples, those that are not listed any more are gone."""
        self._is_complete = False
        self._is_own_view = False
        self._holders: dict[str, frozenset[int]] = {}
        self._pids: dict[int, int] = {}
        self.known: dict[int, Device] = {}
        """Per global rank, as the engine has it."""
        self._why: dict[int, str] = {}
        self._unsensed: set[str] = set()

    def note(self, readout: Readout, is_own_view: bool) -> dict[str, dict[str, float | int | str | bool | None]]:
        """Learn from a readout; answers GpuBook.update. is_own_view: it was read here, and not by the node's agent."""
        values = self.book.update(readout)
        for subject, of in values.items():
            held = of.get("holders")
            if isinstance(held, str):
                self._holders[subject] = frozenset(parse_holders(held))
            elif "holders" in of:
                self._holders.pop(subject, None)
            if isinstance(of.get("index"), int):
                self._gpus[subject] = _gpu(subject, of)
        if isinstance(listed := of_node(readout, "gpus"), str):
            shown = {f"gpu:{uuid}" for uuid in listed.split()}
            self._gpus = {subject: gpu for subject, gpu in self._gpus.items() if subject in shown}
            self._holders = {subject: pids for subject, pids in self._holders.items() if subject in shown}
            lacking = [of_node(readout, name) for name in ("gpus_missing", "gpus_unusable", "gpus_hidden")]
            self._is_complete = not any(lacking) and len(self._gpus) == len(shown)
            self._is_own_view = is_own_view
            namespace = of_node(readout, "pid_namespace")
            self._namespace = namespace if isinstance(namespace, int) else None
        return values

    def changes(self, pids: Mapping[int, int], said: RankSaid) -> dict[int, Device | None]:
        """What the engine does not have yet: a rank's device, or None where it is not known any more.

        pids: of each rank. A rank that has ended keeps the device that it had; a new process has none at first.
        """
        changed: dict[int, Device | None] = {}
        self.known = {rank: device for rank, device in self.known.items() if rank in pids}
        inventory = Inventory(tuple(self._gpus.values()), self._is_complete, self._is_own_view)
        holders = self._trusted_holders(pids)
        for rank, pid in pids.items():
            # What the engine has is of a process that is gone, which may have been on another node.
            is_new = self._pids.get(rank) != pid
            if is_new and (rank in self.known or (said.attempt > 0 and inventory.gpus)):
                self.known.pop(rank, None)
                changed[rank] = None
            answer = find_device(
                _torch_device(said.devices.get(rank)),
                said.variables.get(rank, {}),
                inventory,
                *_held(pid, holders, pids),
            )
            self._log(rank, answer)
            known = self.known.get(rank)
            if answer.subject:
                device = Device(subject=answer.subject, index=self.book.index(answer.subject))
                if device != known:
                    changed[rank] = self.known[rank] = device
            elif known is not None and answer.is_contradiction:
                del self.known[rank]
                changed[rank] = None
        if inventory.gpus:
            self._pids = dict(pids)
        return changed

    def news_unsensed(self, said: RankSaid) -> dict[str, list[int]]:
        """Types of devices of which no sensor tells anything → ranks that train on one; each type once."""
        kinds: dict[str, list[int]] = {}
        for rank, told in sorted(said.devices.items()):
            kind = told.device_type[:MAX_TYPE_CHARS]
            if kind != NVIDIA and kind not in self._unsensed:
                kinds.setdefault(kind, []).append(rank)
        self._unsensed |= kinds.keys()
        return kinds

    def _trusted_holders(self, pids: Mapping[int, int]) -> dict[str, frozenset[int]]:
        everybody = frozenset().union(*self._holders.values())
        is_trusted = trusts_pids(self._namespace, self._here, everybody, list(pids.values()))
        return self._holders if is_trusted else {}

    def _log(self, rank: int, answer: Answer) -> None:
        said = answer.subject or answer.why
        if self._why.get(rank) != said:
            self._why[rank] = said
            log.info("rank_device", global_rank=rank, device=answer.subject, why=answer.why)


def read_pid_namespace() -> int:
    """This process's, as an inode; -1 where it cannot be read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return -1


def _gpu(subject: str, of: Mapping[str, object]) -> Gpu:
    index, bus, instances = of.get("index"), of.get("bus"), of.get("mig_instances")
    assert isinstance(index, int)
    return Gpu(
        subject=subject,
        place=index,
        bus=bus if isinstance(bus, str) else "",
        is_mig=of.get("mig_enabled") is True,
        instances=tuple(instances.split()) if isinstance(instances, str) else (),
    )


def _torch_device(said: DeviceReported | None) -> TorchDevice:
    if said is None:
        return TorchDevice()
    return TorchDevice(kind=said.device_type, place=said.index, uuid=said.uuid, bus=said.bus, is_alone=said.is_alone)


def _held(pid: int, holders: Mapping[str, frozenset[int]], pids: Mapping[int, int]) -> tuple[list[str], list[str]]:
    """Devices that a process holds memory of, and those of them that no other rank does."""
    held = [subject for subject, by in holders.items() if pid in by]
    others = set(pids.values()) - {pid}
    return held, [subject for subject in held if not holders[subject] & others]
