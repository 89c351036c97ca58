"""What a node has that should be alike on all: versions, read from files, and the user's code, by its content."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from guardrun import __version__
from guardrun.supervisor.engine.membership.version_skew import NodeEnvironment
from guardrun.supervisor.preflight.base.torch_files import find_torch, read_pins
from guardrun.supervisor.preflight.checks.versions import read_driver

MAX_FILES, MAX_BYTES, MAX_S = 200, 8 << 20, 2.0
"""Of the user's code: what is beyond is not compared."""
MAX_DEPTH = 4
DIGEST_CHARS = 12
NOT_CODE = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist", "guardrun-runs"})


def read_facts(command: Sequence[str], cwd: Path, wall_s: float) -> NodeEnvironment:
    """command: what each rank runs, as in run.json. wall_s: as Facts has it."""
    script = find_script(command, cwd)
    name, files = read_code(script) if script is not None else ("", {})
    return NodeEnvironment(
        wall_s=wall_s, versions=read_versions(), script=name, files=files, is_script_alone=len(files) == 1
    )


def read_versions() -> dict[str, str]:
    """Of torch, nccl, python, driver and guardrun; empty for what is not installed. torch is not imported."""
    torch = find_torch()
    pins = read_pins() if torch is not None and torch.is_cuda else {}
    nccl = next((installed for name, (_, installed) in pins.items() if name.startswith("nvidia-nccl")), None)
    return {
        "torch": torch.version if torch is not None else "",
        "nccl": nccl or "",
        "python": platform.python_version(),
        "driver": read_driver(),
        "guardrun": __version__,
    }


def compared_versions() -> dict[str, str]:
    """Those that every node tells as it joins."""
    versions = read_versions()
    return {name: versions[name] for name in ("python", "torch")}


def find_script(command: Sequence[str], cwd: Path) -> Path | None:
    """The file that ranks run; None where it is not a file that can be found without importing anything."""
    arguments = list(command)
    for place, argument in enumerate(arguments):
        if argument == "-m" and place + 1 < len(arguments):
            stem = cwd / arguments[place + 1].replace(".", "/")
            found = (stem.with_name(f"{stem.name}.py"), stem / "__main__.py")
            return next((path for path in found if path.is_file()), None)
        if argument.startswith("-") or (place == 0 and "python" in os.path.basename(argument)):
            continue
        path = cwd / argument
        return path if path.is_file() else None
    return None


def read_code(script: Path) -> tuple[str, dict[str, str]]:
    """The script's name, and per file of Python in its folder (and below) a digest; as many as are cheap to read."""
    folder = script.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent  # a module's package, whole
    name = str(script.relative_to(folder))
    ends_s, left = time.monotonic() + MAX_S, MAX_BYTES
    files: dict[str, str] = {}
    for path in _code(script, folder):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        left -= len(data)
        if left < 0 or time.monotonic() > ends_s:
            # Half of it would differ between two nodes for being half: the script alone, then.
            return name, {one: digest for one, digest in files.items() if one == name}
        files[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]
    return name, files if len(files) <= MAX_FILES else {name: files[name]}


def _code(script: Path, folder: Path) -> Iterator[Path]:
    yield script
    count = 0
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if _may_be_code(Path(root) / name) and depth < MAX_DEPTH)
        for name in sorted(names):
            path = Path(root) / name
            if name.endswith(".py") and path != script:
                yield path
                count += 1
                if count > MAX_FILES:
                    return


def _may_be_code(folder: Path) -> bool:
    is_environment = (folder / "pyvenv.cfg").exists()
    return not folder.name.startswith(".") and folder.name not in NOT_CODE and not is_environment
