"""What to do when there is no supervisor any more: what torchrun does.

On a failed rank all are stopped, and started again with the same arguments while restarts are left. These name the
newest whole checkpoint of the run. A process of its own looks for it: checkpoints may lie on a file system that does
not answer. All else here is pure.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guardrun.launcher.control.control_channel import Order
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import read_own
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.rundir.run_directory import CHECKPOINTS_FILE, read_run_file
from guardrun.supervisor.wire.control_messages import Finish, Start, Stop

LOOK_S = 10.0
"""Signals wait meanwhile."""
FIND_CODE = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from guardrun.launcher.control.fallback import main; main(sys.argv[1])"
)
"""Without '' on sys.path, the user's working folder can shadow nothing."""


@dataclass(frozen=True)
class View:
    """Where the run stands."""

    attempt: int
    """The last one started; -1 before the first."""
    checkpoint: Checkpoint | None
    """What it resumed from."""
    is_stopping: bool
    is_stopped: bool
    """Nothing of it is alive."""
    exitcodes: dict[int, int]
    """Of the ranks that have ended, in the order in which they did."""
    stopped_by_us: list[int]
    world_size: int
    restarts: int
    """That this guardrun has done."""
    is_alone: bool = True
    """No other nodes: restarting is for this one to decide."""
    is_head: bool = False
    """Of several nodes: its exit status is the job's."""


def exit_status(exitcode: int) -> int:
    """guardrun's exit status for a rank's exit code, as the contract has it."""
    return 128 - exitcode if exitcode < 0 else exitcode


def first_failure(exitcodes: dict[int, int], stopped_by_us: list[int]) -> int | None:
    """The exit code of the first rank that failed by itself."""
    return next((code for rank, code in exitcodes.items() if code != 0 and rank not in stopped_by_us), None)


def ended_well(view: View) -> bool:
    """All of this node's ranks have, by themselves."""
    return len(view.exitcodes) == view.world_size and not any(view.exitcodes.values()) and not view.stopped_by_us


def end_words(view: View) -> str:
    """Why the head ends as it does where nothing here has failed; empty: something has."""
    if not view.is_head or view.attempt < 0 or first_failure(view.exitcodes, view.stopped_by_us) is not None:
        return ""
    here = "have ended well" if ended_well(view) else "were stopped"
    return (
        f"this node's {view.world_size} ranks {here}; how those of the other nodes ended is not known here without a "
        "supervisor, so the exit status is 1: each node's own output says"
    )


def next_order(view: View, max_restarts: int, grace_s: float) -> Order | None:
    """What the lost supervisor would order now, were it torchrun."""
    if view.is_stopping:
        return None
    if view.attempt < 0:
        return Start(attempt=0) if view.is_alone else Finish(exit_code=1)
    failure = first_failure(view.exitcodes, view.stopped_by_us)
    if not view.is_stopped:
        return None if failure is None else Stop(attempt=view.attempt, grace_s=grace_s)
    if ended_well(view):
        # How the other nodes' ranks have ended is not known, and a job that failed must not pass for one that did well.
        return Finish(exit_code=1 if view.is_head else 0)
    # Without a failure it was the supervisor that had it stopped, to be started again: that is still to be done.
    if view.restarts < max_restarts and view.is_alone:
        return Start(attempt=view.attempt + 1, checkpoint=view.checkpoint)
    return Finish(exit_code=1 if failure is None else exit_status(failure))


def find_newest(run_dir: Path) -> Checkpoint | None:
    """What the run would resume from. None: there is none, or it could not be told in time."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", FIND_CODE, str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LOOK_S,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=known_type(Checkpoint | None))
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
        return None


def main(run_dir: str) -> None:
    """Write it to stdout. Raises OSError, msgspec.DecodeError where nothing is remembered of the run's checkpoints."""
    from guardrun.supervisor.checkpoints.chooser import Chooser  # which the launcher itself has no use for

    cwd = read_run_file(Path(run_dir)).cwd
    state = msgspec.json.decode(read_own(Path(run_dir) / CHECKPOINTS_FILE))
    choice = Chooser.from_state(state, cwd).choose(is_urgent=True)
    sys.stdout.buffer.write(msgspec.json.encode(choice.checkpoint))
