"""Do driver, CUDA, NCCL and torch fit each other? Read from files; nothing of them is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, note, ok, warn
from guardrun.supervisor.preflight.base.torch_files import Torch, find_torch, read_pins

NAME = "versions"

DRIVER_FILE = "/sys/module/nvidia/version"
OLDEST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""By CUDA's major version, under minor version compatibility (CUDA Toolkit release notes, table "CUDA Toolkit and
Minimum Required Driver Version for CUDA Minor Version Compatibility")."""
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def parse_numbers(text: str) -> tuple[int, ...]:
    """`570.86.15` → (570, 86, 15); empty where text begins with no number."""
    match = _NUMBERS.match(text.strip())
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def judge_driver(torch: Torch, driver: str) -> Remark:
    """driver: NVIDIA's, empty where none is loaded."""
    data = {"torch": torch.version, "cuda": torch.cuda, "driver": driver}
    if not torch.is_cuda:
        if driver and not torch.hip:
            return warn(
                NAME,
                f"torch {torch.version} is a build without CUDA, and this node has NVIDIA's driver {driver}.",
                "Install a CUDA build of torch, unless training is meant for the CPU.",
                **data,
            )
        return ok(NAME, f"torch {torch.version} needs no NVIDIA driver.", **data)
    if not driver:
        return note(NAME, f"torch {torch.version} is built for CUDA {torch.cuda}; no NVIDIA driver is loaded.", **data)
    oldest = OLDEST_DRIVER.get(parse_numbers(torch.cuda)[0] if parse_numbers(torch.cuda) else 0)
    if oldest and parse_numbers(driver) < oldest:
        return warn(
            NAME,
            f"torch {torch.version} is built for CUDA {torch.cuda}, and driver {driver} is too old for it.",
            f"Update the driver to {'.'.join(map(str, oldest))} or newer, or install a torch for an older CUDA;"
            " with NVIDIA's cuda-compat package on a datacenter GPU it may work all the same.",
            **data,
        )
    return ok(NAME, f"torch {torch.version} (CUDA {torch.cuda}) fits driver {driver}.", **data)


def judge_pins(pins: Mapping[str, tuple[str, str | None]]) -> list[Remark]:
    """pins: as read_pins answers."""
    wrong = {name: pair for name, pair in pins.items() if pair[1] is not None and not _is_same(*pair)}
    if not wrong:
        return [ok(NAME, "NVIDIA's packages are those that torch was built with.")] if pins else []
    return [
        warn(
            NAME,
            f"{name} is {installed}, and torch was built with {wanted}.",
            f"pip install {name}=={wanted}, unless it was replaced on purpose.",
            package=name,
            installed=installed,
            wanted=wanted,
        )
        for name, (wanted, installed) in sorted(wrong.items())
    ]


def _is_same(wanted: str, installed: str | None) -> bool:
    return parse_numbers(wanted) == parse_numbers(installed or "")


def read_driver() -> str:
    """The version of NVIDIA's kernel driver; empty where none is loaded."""
    try:
        with open(DRIVER_FILE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def run(subject: Subject) -> list[Remark]:
    """The driver against torch, and with CUDA the installed packages against those that torch pins."""
    torch = find_torch()
    if torch is None:
        return [warn(NAME, "There is no torch that this Python could import.", "Install torch 2.6 or newer.")]
    return [judge_driver(torch, read_driver()), *(judge_pins(read_pins()) if torch.is_cuda else [])]


CHECK = Check(NAME, run)
