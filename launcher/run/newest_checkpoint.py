"""The newest whole checkpoint of a run, for a launcher whose supervisor was given up.

A process of its own looks: checkpoints may lie on a file system that does not answer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from guardrun.supervisor.base.own_files import read_own
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.rundir.run_directory import CHECKPOINTS_FILE, read_run_file

LOOK_S = 10.0
"""Signals wait meanwhile."""
CODE = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from guardrun.launcher.run.newest_checkpoint import main; main(sys.argv[1])"
)
"""Without '' on sys.path, the user's working folder can shadow nothing."""


def find_newest(run_dir: Path) -> Checkpoint | None:
    """What the run would resume from. None: there is none, or it could not be told in time."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LOOK_S,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=Checkpoint | None)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
        return None


def main(run_dir: str) -> None:
    """Write it to stdout. Raises OSError, msgspec.DecodeError where nothing is remembered of the run's checkpoints."""
    from guardrun.supervisor.checkpoints.chooser import Chooser  # which the launcher itself has no use for

    cwd = read_run_file(Path(run_dir)).cwd
    state = msgspec.json.decode(read_own(Path(run_dir) / CHECKPOINTS_FILE))
    choice = Chooser.from_state(state, cwd).choose(is_urgent=True)
    sys.stdout.buffer.write(msgspec.json.encode(choice.checkpoint))
