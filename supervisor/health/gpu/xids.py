"""Xids as they come: from a line of the kernel log, or from NVML. Pure.

What each of them means and asks for is in `xid_catalogue.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from guardrun.supervisor.health.base.readings import Happening, Value

XID = "xid"
"""Name of the happening."""
MAX_TEXT = 400

RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
"""What the driver wants done before a device is used on: nvmlDeviceGpuRecoveryAction_t, and the numbers in the text of
Xid 154."""

_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (?P<rest>.*)")
_CODE = re.compile(r"(\d+)(?:,\s*|\s*$)(.*)", re.DOTALL)
_PID = re.compile(r"pid='?(\d+)'?")
_NAME = re.compile(r"name='?([^,']*)'?")
_RECOVERY = re.compile(r"recovery action changed from \S+ \([^)]*\) to (0x[0-9a-fA-F]+)")


class XidLine(NamedTuple):
    """What a line of the kernel log says of an Xid."""

    bus: str
    """As `normal_bus` has it."""
    code: int
    pid: int
    """0: not told, or `<unknown>`."""
    process: str
    text: str
    """All that follows the number."""


def normal_bus(address: str) -> str:
    """`0000:3b:00`, of any form that NVML (`00000000:3B:00.0`), the kernel log and sysfs give."""
    domain, _, rest = address.strip().lower().removeprefix("pci:").partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.partition('.')[0]}"
    except ValueError:
        return address.strip().lower()


def parse_xid_line(line: str) -> XidLine | None:
    """The Xid in a line of the kernel log; None where there is none.

    Forms: `NVRM: Xid (PCI:0000:3b:00): 79, pid=12, name=python, GPU has fallen off the bus.`; without `PCI:` (old
    drivers); `(PCI:0005:01:00 GPU-I:05)` with MIG; without pid and name; `pid='<unknown>'`.
    """
    found = _LINE.search(line)
    code = _CODE.match(found["rest"]) if found else None
    if found is None or code is None:
        return None
    text = code[2].strip()
    pid, name = _PID.search(text), _NAME.search(text)
    process = name[1].strip() if name else ""
    return XidLine(
        bus=normal_bus(found["bus"]),
        code=int(code[1]),
        pid=int(pid[1]) if pid else 0,
        process="" if process.startswith("<") else process,
        text=text[:MAX_TEXT],
    )


def xid_from_line(line: str, at_s: float) -> Happening | None:
    """The happening in a line of the kernel log; its subject names the device by its bus, `gpu:0000:3b:00`."""
    found = parse_xid_line(line)
    if found is None:
        return None
    return xid_happened(
        f"gpu:{found.bus}",
        found.code,
        at_s,
        bus=found.bus,
        source="kernel_log",
        pid=found.pid,
        process=found.process,
        text=found.text,
    )


def xid_happened(
    subject: str, code: int, at_s: float, *, bus: str, source: str, pid: int = 0, process: str = "", text: str = ""
) -> Happening:
    """One Xid. source: `nvml` or `kernel_log`, each of which tells of the same one."""
    data: dict[str, Value] = {XID: code, "bus": bus, "source": source}
    if pid:
        data["pid"] = pid
    if process:
        data["process"] = process
    return Happening(subject=subject, name=XID, at_s=at_s, text=text, data=data)


def recovery_in(text: str) -> str:
    """What Xid 154's text asks for, as RECOVERY_ACTIONS has it; empty where it does not say."""
    found = _RECOVERY.search(text)
    if found is None:
        return ""
    number = int(found[1], 16)
    return RECOVERY_ACTIONS.get(number, f"action_{number}")
