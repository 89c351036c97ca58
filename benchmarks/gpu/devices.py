"""Sensors of a real device, and whether torch and NVML call it the same."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guardrun.supervisor.health.gpu.rank_device import Inventory


def sensors(out: Path) -> str:
    """What the sensors tell of an idle and of a busy device, beside nvidia-smi's whole report."""
    import pynvml
    import torch

    from guardrun.supervisor.sensors.gpu.nvml_calls import Watch
    from guardrun.supervisor.sensors.gpu.nvml_session import Session
    from guardrun.supervisor.sensors.gpu.nvml_wire import FAST, MEDIUM, SLOW

    def read(session: Session) -> list[dict[str, Any]]:
        began_s = time.monotonic()
        told: list[dict[str, Any]] = [
            {"subject": one.subject, "name": one.name, "value": one.value, "trouble": one.trouble}
            for one in session.turn([FAST, MEDIUM, SLOW])
        ]
        return [*told, {"took_s": time.monotonic() - began_s}]

    session = Session(pynvml, Watch())
    kept = {"idle": read(session)}
    report = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, check=False)
    (out / "nvidia-smi.xml").write_text(report.stdout or report.stderr)
    factor = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda")
    until_s = time.monotonic() + 15
    while time.monotonic() < until_s:
        for _ in range(20):
            factor @ factor
        torch.cuda.synchronize()
        if until_s - time.monotonic() < 8 and "busy" not in kept:
            for _ in range(600):
                factor @ factor  # The device is at work while it is read.
            kept["busy"] = read(session)
    torch.cuda.synchronize()
    kept["after"] = read(session)
    (out / "sensors.json").write_text(json.dumps(kept, indent=1, default=str))
    unread = [f"{one['name']}: {one['trouble']}" for one in kept["busy"] if one.get("trouble")]
    return f"{len(kept['busy'])} readings, unread: {'; '.join(unread) or 'none'}"


def identity(out: Path) -> str:
    """Whether torch and NVML call the same device the same, and guardrun finds it by either of the two names."""
    import pynvml
    import torch

    from guardrun.hooks.patches.devices import read_identity
    from guardrun.supervisor.health.gpu.rank_device import Gpu, Inventory
    from guardrun.supervisor.sensors.gpu.nvml_calls import Watch
    from guardrun.supervisor.sensors.gpu.nvml_session import Session

    listed = Session(pynvml, Watch()).devices
    inventory = Inventory(tuple(Gpu(one.ask.subject, one.index, one.bus) for one in listed))
    known = [read_identity(torch.cuda.get_device_properties(place)) for place in range(torch.cuda.device_count())]
    found = [compare_identity(place, uuid, bus, inventory) for place, (uuid, bus) in enumerate(known)]
    (out / "identity.json").write_text(json.dumps({"nvml": [one._asdict() for one in inventory.gpus], "torch": found}))
    wrong = [f"cuda:{one['place']}: {one['trouble']}" for one in found if one["trouble"]]
    return f"{len(found)} devices, {'; '.join(wrong) or 'each found by UUID and by PCI address, and the same one'}"


def compare_identity(place: int, uuid: str, bus: str, inventory: Inventory) -> dict[str, Any]:
    """One device of torch's: which of NVML's it is by its UUID, and which by its PCI address."""
    from guardrun.supervisor.health.gpu.rank_device import NVIDIA, TorchDevice, find_device

    by_uuid = find_device(TorchDevice(NVIDIA, place, uuid=uuid), {}, inventory)
    by_bus = find_device(TorchDevice(NVIDIA, place, bus=bus), {}, inventory)
    told = (("UUID", uuid, by_uuid), ("PCI", bus, by_bus))
    # One device alone would be found without either.
    troubles = [f"{name}: {a.why if value else 'not told'}" for name, value, a in told if not (value and a.subject)]
    if by_uuid.subject != by_bus.subject and not troubles:
        troubles = [f"{by_uuid.subject} by UUID, {by_bus.subject} by PCI address"]
    names = {"uuid": uuid, "bus": bus, "by_uuid": by_uuid.subject, "by_bus": by_bus.subject}
    return {"place": place, **names, "trouble": "; ".join(troubles)}
