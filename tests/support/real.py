"""Real parts of the machine that some tests need: `@pytest.mark.real("py-spy")`.

A missing part skips the test and is named; with GUARDRUN_REQUIRE_REAL=1 (as CI sets it) it fails the test instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

REQUIRE_VARIABLE = "GUARDRUN_REQUIRE_REAL"

NEVER_REQUIRED = frozenset({"gpu"})
"""Parts that no CI machine has: their tests skip there."""


def find_program(name: str) -> str | None:
    """Path of a program, of this interpreter's own environment first."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def find_chromium() -> str | None:
    """A Chromium's program, by the names that distributions give it."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def _needs_chromium() -> str:
    return "" if find_chromium() else "no program chromium (package chromium)"


def _needs_program(name: str, package: str) -> Callable[[], str]:
    def missing() -> str:
        return "" if find_program(name) else f"no program {name} (package {package})"

    return missing


def _needs_cpp() -> str:
    """To compile what Python loads."""
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return "no Python.h (package python3-dev, where this Python is the distribution's)"
    return _needs_program("g++", "g++")()


def _needs_module(name: str) -> Callable[[], str]:
    def missing() -> str:
        return "" if importlib.util.find_spec(name) else f"no module {name} (pip install 'guardrun[realworld]')"

    return missing


def _needs_root() -> str:
    return "" if os.geteuid() == 0 else "not root"


def _needs_useradd() -> str:
    return _needs_root() or _needs_program("useradd", "passwd")() or _needs_program("setpriv", "util-linux")()


def _needs_mount() -> str:
    """CAP_SYS_ADMIN is bit 21 of CapEff (linux/capability.h)."""
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return "" if effective >> 21 & 1 else "may not mount (no CAP_SYS_ADMIN)"


def _needs_fuse() -> str:
    return _needs_mount() or ("" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "no /dev/fuse")


def _needs_sshfs() -> str:
    if not os.path.exists("/usr/lib/openssh/sftp-server"):
        return "no /usr/lib/openssh/sftp-server (package openssh-sftp-server)"
    return _needs_fuse() or _needs_program("sshfs", "sshfs")()


def _needs_netns() -> str:
    return _needs_mount() or _needs_program("ip", "iproute2")()


def _needs_kmsg() -> str:
    return "" if os.access("/dev/kmsg", os.R_OK | os.W_OK) else "may not read and write /dev/kmsg"


def _needs_slurm() -> str:
    """Its daemons lie in /usr/sbin, which is in no ordinary user's PATH."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    for name, package in (("slurmctld", "slurm-wlm"), ("slurmd", "slurm-wlm"), ("munged", "munge")):
        if not shutil.which(name, path=path):
            return f"no program {name} (package {package})"
    return _needs_root()


def _needs_gpu() -> str:
    return "" if os.path.exists("/dev/nvidia0") else "no NVIDIA device"


PARTS: dict[str, Callable[[], str]] = {
    "py-spy": _needs_program("py-spy", "py-spy"),
    "gdb": _needs_program("gdb", "gdb"),
    "cc": _needs_program("cc", "gcc libc6-dev"),
    "g++": _needs_cpp,
    "git": _needs_program("git", "git"),
    "chromium": _needs_chromium,
    "root": _needs_root,
    "useradd": _needs_useradd,
    "mount": _needs_mount,
    "fuse": _needs_fuse,
    "sshfs": _needs_sshfs,
    "netns": _needs_netns,
    "kmsg": _needs_kmsg,
    "mkfs.ext4": _needs_program("mkfs.ext4", "e2fsprogs"),
    "systemd": _needs_program("systemd-nspawn", "systemd-container"),
    "systemd-analyze": _needs_program("systemd-analyze", "systemd"),
    "slurm": _needs_slurm,
    "munge": _needs_program("munged", "munge"),
    "transformers": _needs_module("transformers"),
    "accelerate": _needs_module("accelerate"),
    "trl": _needs_module("trl"),
    "lightning": _needs_module("lightning"),
    "gpu": _needs_gpu,
}
"""What is missing of each part, in words; empty where it is there. A part that isn't listed is probed by its test."""


def is_required(part: str) -> bool:
    """Say whether a test that lacks this part must fail rather than skip."""
    return os.environ.get(REQUIRE_VARIABLE, "") not in ("", "0") and part not in NEVER_REQUIRED


def missing(part: str) -> str:
    """Why the part cannot be used here; empty where it can, or where only its test can tell."""
    probe = PARTS.get(part)
    return probe() if probe else ""
