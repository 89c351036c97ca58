"""What this rank computes with, told once: the user's modules, versions, precision, seed, variables, the device.

On the hooks' thread, when the first step is done: by then the script has imported and set what it will. Nothing is
imported, no file is read and no device is asked for it: what torch and the interpreter know already is looked up, about
a millisecond for a thousand modules. Nor is anything of the script's own run, which may take its time, print, or import
while somebody forks. Files are read by the supervisor (supervisor/collect/ranks/environment.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from guardrun.hooks.rank.computed_with import MAX_CHARS, PREFIXES, attempt, read_flags, read_runtime, read_seed

MAX_MODULES = 300
MAX_PATHS = 200
MAX_LIST_BYTES = 60_000
"""Of modules, of sys.path and of variables, each: a message has its bounds (hooks/wire/messages.py)."""
MAX_VARIABLES = 200
NOT_OWN = frozenset({"guardrun", "sitecustomize"})
"""Packages."""
OTHERS = ("/site-packages/", "/dist-packages/")
"""What is installed is told by its version."""

NAMES = ("LD_PRELOAD", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "TOKENIZERS_PARALLELISM")
"""Of variables that count beside those of PREFIXES."""
OF_THE_RUN = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS",
    }
)
"""Different in each run, or on each node, whatever is computed there."""

_DICT: Any = vars(ModuleType)["__dict__"]


def describe(environ: Mapping[str, str], device: str = "") -> dict[str, Any]:
    """The fields of messages.EnvironmentReported; what can't be told is left out.

    device: its model, as the thread that trains has read it: this one might wait in a driver, with the GIL held.
    """
    torch: Any = sys.modules.get("torch")
    script = _script()
    modules, more = attempt(find_own_modules) or ([], 0)
    return {
        "script": _clean(_absolute(script)) if script else "",
        "modules": modules,
        "more_modules": more,
        "path": attempt(_find_path) or [],
        "runtime": attempt(lambda: read_runtime(torch)) or {},
        "flags": attempt(lambda: read_flags(torch)) or {},
        "seed": read_seed(torch),
        "variables": attempt(lambda: choose_variables(environ)) or {},
        "device": _clean(device[:MAX_CHARS]),
    }


def choose_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that matter for what is computed."""
    meant = [name for name in environ if name.startswith(PREFIXES) or name in NAMES]
    kept = sorted(name for name in meant if name not in OF_THE_RUN)[:MAX_VARIABLES]
    chosen = {_clean(name): _clean(environ[name][:MAX_CHARS]) for name in kept}
    room = len(_cut([f"{name}{value}" for name, value in chosen.items()]))
    return dict(list(chosen.items())[:room])


def find_own_modules() -> tuple[list[str], int]:
    """Files of the imported modules that are neither Python's nor installed; how many more there are."""
    homes = tuple(f"{_absolute(folder)}/" for folder in (".", os.path.dirname(_script()) or "."))
    library = f"{os.path.dirname(os.__file__)}/"
    prefixes = tuple(f"{prefix}/" for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    found: dict[str, None] = {}
    for name, module in sys.modules.copy().items():
        file = _file_of(module)
        if type(name) is not str or not file or name.partition(".")[0] in NOT_OWN:
            continue
        if file.startswith(library) or any(other in file for other in OTHERS) or len(file) > MAX_CHARS:
            continue
        path = _absolute(file)
        if path.startswith(homes) or not path.startswith(prefixes):
            found[_clean(path)] = None
    kept = _cut(list(found)[:MAX_MODULES])
    return kept, len(found) - len(kept)


def _find_path() -> list[str]:
    return _cut([_clean(_absolute(entry)) for entry in sys.path[:MAX_PATHS] if type(entry) is str])


def _file_of(module: object) -> str:
    """A module's file; empty: it has none.

    Not by getattr, upon which some modules make what they have, and not by the __dict__ that a module's own class may
    define: that of apipkg imports all that the module offers.
    """
    if not issubclass(type(module), ModuleType):
        return ""
    file = (_DICT.__get__(module) or {}).get("__file__")
    return file if type(file) is str else ""


def _script() -> str:
    return _file_of(sys.modules.get("__main__"))


def _cut(texts: list[str]) -> list[str]:
    """The first ones, as many as there is room for."""
    left, kept = MAX_LIST_BYTES, []
    for text in texts:
        left -= len(text) if text.isascii() else 4 * len(text)
        if left < 0:
            break
        kept.append(text)
    return kept


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # The folder that it is relative to is gone.
        return path


def _clean(text: str) -> str:
    """Text that can be sent: bytes that are no text are written out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
