"""Which NVIDIA devices the PCI bus shows, and which of them the driver should be able to use from here.

In a container the bus shows all devices of the machine, the driver only those that the container was given: a device
counts as one that should be there only where the nvidia driver holds it and its node /dev/nvidiaN exists here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from guardrun.supervisor.health.gpu.xids import normal_bus

NVIDIA = "0x10de"
CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers (PCI Code and ID Assignment): what a GPU is."""

DRIVER_HINTS = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg")
"""The last is Windows' (WSL)."""
LIBRARY = "libnvidia-ml.so.1"

_MINOR = re.compile(r"^Device Minor:\s+(\d+)", re.MULTILINE)


def may_have_gpus(root: Path, environment: Mapping[str, str]) -> bool:
    """Say whether it is worth starting a process for NVML: a driver, or a device without one."""
    return has_driver(root, environment) or any(_is_gpu(device) for device in _devices(root))


def has_driver(root: Path, environment: Mapping[str, str]) -> bool:
    """Say whether a driver is loaded, or its library was put somewhere."""
    folders = filter(None, environment.get("LD_LIBRARY_PATH", "").split(":"))
    return any(
        hint.exists() for hint in (*(root / hint for hint in DRIVER_HINTS), *(Path(f, LIBRARY) for f in folders))
    )


def read_expected(root: Path = Path("/")) -> set[str]:
    """Buses of devices that NVML should show here. Empty where none is, or where it cannot be told."""
    return {bus for device in _devices(root) if (bus := _expected_bus(root, device))}


def _devices(root: Path) -> list[Path]:
    try:
        return sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []


def _is_gpu(device: Path) -> bool:
    return _text(device / "vendor") == NVIDIA and _text(device / "class").startswith(CLASSES)


def _expected_bus(root: Path, device: Path) -> str:
    if not _is_gpu(device):
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
