"""Which NVIDIA devices the PCI bus shows, and which of them the driver should be able to use from here.

In a container the bus shows all devices of the machine, the driver only those that the container was given: a device
counts as one that should be there only where the nvidia driver holds it and its node /dev/nvidiaN exists here.
"""

from __future__ import annotations

import re
from pathlib import Path

from guardrun.supervisor.core.node.xids import normal_bus

NVIDIA = "0x10de"
CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers (PCI Code and ID Assignment): what a GPU is."""

_MINOR = re.compile(r"^Device Minor:\s+(\d+)", re.MULTILINE)


def read_expected(root: Path = Path("/")) -> set[str]:
    """Buses of devices that NVML should show here. Empty where none is, or where it cannot be told."""
    return {bus for device in _devices(root) if (bus := _expected_bus(root, device))}


def _devices(root: Path) -> list[Path]:
    try:
        return sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []


def _expected_bus(root: Path, device: Path) -> str:
    if _text(device / "vendor") != NVIDIA or not _text(device / "class").startswith(CLASSES):
        return ""
    information = _text(root / "proc/driver/nvidia/gpus" / device.name / "information")
    minor = _MINOR.search(information)
    if minor is None or not (root / f"dev/nvidia{minor[1]}").exists():
        return ""
    return normal_bus(device.name)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
