"""Run a script or a module (`-m name`) whose process group nobody takes apart, and end without Python's finalization.

torch lets go of a gloo group by waiting for its threads, Python's lock in hand. Where one of them wants that lock to
let go of its last tensor, the rank hangs for ever (pytorch/pytorch#179291); where it wants it once Python is being
finalized, the rank is aborted. Whether a trainer meets either is a matter of load, under torchrun as well; what is
shown with these trainers is something else.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

KEEP_GROUP = str(Path(__file__))
"""To be run as a rank, before the script and its arguments."""


def main() -> None:
    import torch.distributed as dist  # not for who needs the path alone

    make = dist.init_process_group

    def make_and_keep(*arguments: Any, **named: Any) -> None:
        make(*arguments, **named)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))

    dist.init_process_group = make_and_keep
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
