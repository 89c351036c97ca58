"""What the files of the installed torch say of it, without importing it, which takes seconds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

_STRING = re.compile(
    r"""^(?P<name>\w+)[ \t]*(?::[^=\n]*)?=[ \t]*(?P<quote>['"])(?P<text>[^'"\\\n]*)(?P=quote)[ \t]*(?:\#.*)?$""",
    re.MULTILINE,
)
_PIN = re.compile(r"([A-Za-z0-9._-]+)\s*==\s*([^\s;,]+)")


class Torch(NamedTuple):
    """The installed torch."""

    version: str
    cuda: str
    """That it was built for, `12.8`; empty: a build without CUDA."""
    hip: str
    folder: Path

    @property
    def is_cuda(self) -> bool:
        """Whether it was built for CUDA; False for ROCm's and the CPU's builds."""
        return bool(self.cuda)


def parse_version_file(text: str) -> dict[str, str]:
    """torch/version.py: its assignments of plain strings; those of None are left out.

    By a pattern: ast.parse is not safe beside other threads (CPython 3.11 raises SystemError where another thread
    parses, too, while the first one collects garbage), and nodes are tried by several.
    """
    return {found["name"]: found["text"] for found in _STRING.finditer(text)}


def find_torch() -> Torch | None:
    """The torch that this interpreter would import. None where there is none, or its files say nothing."""
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
        found = parse_version_file((folder / "version.py").read_text(encoding="utf-8"))
    except (ImportError, OSError, ValueError):
        return None
    return Torch(found.get("__version__", ""), found.get("cuda", ""), found.get("hip", ""), folder)


def parse_pins(requirements: list[str]) -> dict[str, str]:
    """NVIDIA's packages that a torch was built against, by exact version: `nvidia-nccl-cu12==2.27.3; …`."""
    pins = {}
    for requirement in requirements:
        match = _PIN.match(requirement)
        if match and match[1].lower().startswith("nvidia-"):
            pins[match[1].lower()] = match[2]
    return pins


def read_pins() -> dict[str, tuple[str, str | None]]:
    """Of the installed torch: package → (wanted, installed or None)."""
    # Ten milliseconds, for builds with CUDA only.
    from importlib.metadata import PackageNotFoundError, requires, version

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    try:
        pins = parse_pins(requires("torch") or [])
    except PackageNotFoundError:
        return {}
    return {name: (wanted, installed(name)) for name, wanted in pins.items()}
