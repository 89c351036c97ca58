"""guardrun and guardctl in a folder of their own, for those who start them otherwise than by subprocess: Slurm, say.

That guardrun imports torch as any does, and forks its supervisor and its ranks (`server.py --become`). The folder looks
like a virtual environment, since `guardctl sbatch` writes down the guardrun that lies beside its interpreter.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.support.forkserver import client
from tests.support.forkserver.program import BECOME

REAL = Path(sys.executable).parent
"""What is installed: every process of it is executed."""
STARTS = """#!/bin/sh
exec {python} {server} {become} {guardrun} "$@"
"""


def make_programs(folder: Path) -> Path:
    """Make the folder; answers where its programs lie: those that are installed, where everything is to be executed."""
    if client.cold or not (REAL.parent / "pyvenv.cfg").exists():
        return REAL
    (folder / "bin").mkdir(parents=True)
    for name in ("lib", "lib64", "pyvenv.cfg"):
        if (REAL.parent / name).exists():
            (folder / name).symlink_to(REAL.parent / name)
    for name in ("python", "guardctl"):
        (folder / "bin" / name).symlink_to(REAL / name)
    words = {"python": sys.executable, "server": str(client.SERVER), "guardrun": str(REAL / "guardrun")}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    guardrun = folder / "bin" / "guardrun"
    guardrun.write_text(STARTS.format(become=BECOME, **quoted))
    guardrun.chmod(0o755)
    return folder / "bin"
