"""Does LD_LIBRARY_PATH or LD_PRELOAD put another CUDA or NCCL in front of torch's own?

torch's wheels bring their own, which the dynamic loader finds by the RUNPATH of torch's libraries: LD_LIBRARY_PATH
comes before that (ld.so(8)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, note, ok, warn
from guardrun.supervisor.preflight.base.torch_files import Torch, find_torch

NAME = "libraries"
SHADOWING = re.compile(r"lib(cudart|nccl|cudnn|cublas|cublasLt|cufft|cusparse|cusolver|nvrtc|nvJitLink)\.so(\.[\d.]+)?")
MAX_ENTRIES = 4096
"""Of one folder."""


class Shadow(NamedTuple):
    """A library that may be loaded in place of torch's."""

    library: str
    """`libnccl.so.2`."""
    path: str
    real: str
    """Where its links lead: the name there has the whole version."""
    variable: str


def find_in_folder(folder: str) -> list[str]:
    """Names of libraries that could shadow torch's, sorted; empty where the folder cannot be listed."""
    try:
        names = os.listdir(folder or ".")[:MAX_ENTRIES]
    except OSError:
        return []
    return sorted(name for name in names if SHADOWING.fullmatch(name))


def find_shadows(environ: Mapping[str, str], own: Iterable[str]) -> list[Shadow]:
    """own: folders that torch's own lie in; what is there shadows nothing."""
    mine = [os.path.realpath(folder) + os.sep for folder in own]
    found: dict[str, Shadow] = {}
    entries = [("LD_PRELOAD", path) for path in re.split(r"[\s:]+", environ.get("LD_PRELOAD", "")) if path]
    for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if environ.get("LD_LIBRARY_PATH") else ():
        entries += [("LD_LIBRARY_PATH", os.path.join(folder, name)) for name in find_in_folder(folder)]
    for variable, path in entries:
        match = SHADOWING.fullmatch(os.path.basename(path))
        real = os.path.realpath(path)
        if match and not any(real.startswith(folder) for folder in mine):
            # libnccl.so, .so.2 and .so.2.21.5 are one library: the first that the loader would meet counts.
            found.setdefault(match[1], Shadow(os.path.basename(path), path, real, variable))
    return list(found.values())


def judge(shadow: Shadow, torch: Torch | None) -> Remark:
    """A warning where torch uses CUDA; else a note, since nothing is shadowed then."""
    leads = f" (it is {shadow.real})" if shadow.real != shadow.path else ""
    data = {"path": shadow.path, "real": shadow.real, "variable": shadow.variable}
    summary = f"{shadow.variable} puts {shadow.path}{leads} in front of the {shadow.library} that torch was built with."
    advice = f"Take it out of {shadow.variable} (module unload, unset), unless it is meant to replace torch's."
    if torch is not None and torch.is_cuda:
        return warn(NAME, summary, advice, **data)
    return note(NAME, summary.replace(" that torch was built with", " of a torch with CUDA"), advice, **data)


def run(subject: Subject) -> list[Remark]:
    """A remark for each library that comes before torch's own."""
    torch = find_torch()
    # torch/lib, and the folders of NVIDIA's packages beside torch's.
    own = [str(torch.folder), str(torch.folder.parent / "nvidia")] if torch else []
    shadows = find_shadows(subject.environ, own)
    return [judge(shadow, torch) for shadow in shadows] or [ok(NAME, "No other CUDA or NCCL stands before torch's.")]


CHECK = Check(NAME, run)
