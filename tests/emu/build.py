"""Builds the emulated device's library, once a machine: by torch, compiler and sources it has a folder in .venv/emu."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).with_name("csrc")
NAME = "emu_device"
KEPT = 2
"""Folders of other sources that stay: whoever goes back and forth need not build anew each time."""
PARTS = ("device", "memory", "tensors", "module", "collectives", "process_group", "served", "watchdog")
"""Sources, compiled as one: most of the time goes to torch's headers."""
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w", "-DFMT_HEADER_ONLY=1", f"-DTORCH_EXTENSION_NAME={NAME}")
LIBRARIES = ("c10", "torch_cpu", "torch", "torch_python")


def load() -> ModuleType:
    """The library as a module, built first where it has not been. torch must have been imported."""
    spec = importlib.util.spec_from_file_location(NAME, build())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build() -> Path:
    """Where the library is; about 30 CPU seconds where it is not yet."""
    folder = Path(sys.prefix, "emu", _key(version("torch")))
    library = folder / f"{NAME}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                os.replace(_compile(Path(scratch)), library)
            _remove_old(folder)
    return library


def _key(torch_version: str) -> str:
    parts = [torch_version, sys.version, str(PARTS), *FLAGS]
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            parts += [path.name, path.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(scratch: Path) -> Path:
    from torch.utils import cpp_extension

    includes = [SOURCES, *cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    flags = [*FLAGS, *(f"-I{path}" for path in includes)]

    # No source's own name: what is included is looked for beside it first.
    source, library = scratch / "all.cpp", scratch / f"{NAME}.so"
    source.write_text("".join(f'#include "{name}.cpp"\n' for name in PARTS))
    paths = [f"-L{path}" for path in cpp_extension.library_paths()]
    libraries = [f"-l{name}" for name in LIBRARIES]
    _run(["g++", *flags, "-shared", str(source), "-o", str(library), *paths, *libraries])
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[-3:])} failed:\n{done.stderr[-4000:]}")


def _remove_old(kept: Path) -> None:
    others = sorted((path for path in kept.parent.iterdir() if path != kept), key=lambda path: path.stat().st_mtime)
    for path in others[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    print(build())
