"""The run directory: where things lie, as the contract has it, and what the parts of guardrun leave for each other.

RUN/events.jsonl            journal (rotated ones: events.jsonl.1, …)
RUN/incidents/NNN-CAUSE/    incident.json, report.html, stacks/
RUN/summary.json            at the end
RUN/preflight.json          what the pre-flight found (supervisor/preflight/preflight_process.py)
RUN/run.json                RunFile: what a supervisor, and guardctl, need to know
RUN/environment.json        what training is computed with (environment.py)
RUN/steps.csv               loss and gradient norm of single steps (step_values.py)
RUN/looks/LOOK/             raw stacks of looks that no incident has taken up yet
RUN/traces/NNN-rank-R.json  module times that a rank measured because a person asked for them (`guardctl trace`)
RUN/guardrun.log            structlog JSON of launcher and supervisor
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import open_folder, open_own, read_own, write_own
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.engine.model.events import FleetPlan, Settings
from guardrun.supervisor.wire.listening_addresses import EVERYWHERE, Listen

RUN_FILE = "run.json"
CHECKPOINTS_FILE = "checkpoints.json"
_FOLDERS = ("incidents", "looks", "kept", "nccl", "traces")
_FILES = re.compile(
    r"(run|summary|checkpoints|kept|fleet|rescues|environment)\.json|steps\.csv|events\.jsonl(\.\d)?|(guardrun|notify)\.log|\.owner"
)
"""What guardrun goes by when it continues a run, and what it adds to."""


class FleetFile(msgspec.Struct, frozen=True, kw_only=True):
    """A job of several nodes, as one of them sees it."""

    is_head: bool
    slot: int
    """In the scheduler's order, or --node-rank; -1: none given."""
    switches: list[str] = []
    """Above this node, from the top of the network down; empty: not known, or the user has an order of his own."""
    join_file: str
    """Where the head says how to reach it; of a node that does not lead maybe a pattern (joinfile.on_host)."""
    names: list[str] = []
    """The head's, as far as this node knows them: which join file is meant."""
    awaited: str = ""
    """Who leads, in words: `the guardrun on node-a (--rdzv-endpoint)`."""
    plan: FleetPlan
    key: str
    """By which the nodes know the job before they know anything else of it."""
    address: str
    """At which other nodes reach this one."""
    listen: Listen = EVERYWHERE
    """Of the head: where the other nodes come, once they know its address."""
    meet_listen: Listen = EVERYWHERE
    """Likewise, to be introduced by munge."""
    check_listen: Listen = EVERYWHERE
    """Where others come that try to reach this node, before an attempt."""
    meet: tuple[str, int] | None = None
    """Where the head introduces itself by munge, in place of the join file."""
    munge_socket: str = ""
    port: int = 0
    """On which the head listens; 0: any."""
    term_s: float = 15.0
    role: str = ""
    """torchrun's --role: its ranks are counted together with those of other nodes that have the same."""
    work: str = ""
    """What every node must have alike: a digest of the script and its arguments."""


class RunFile(msgspec.Struct, kw_only=True):
    """run.json: written by the launcher when it opens (or continues) a run."""

    schema: int = 1
    run_id: str
    node: str
    user: str
    command: list[str]
    """guardrun's own arguments, secrets left out."""
    cwd: str
    script: list[str]
    """What each rank runs: interpreter, script, arguments."""
    launcher_pid: int
    launcher_start: int
    """starttime of /proc/PID/stat: tells a live owner from a pid used again."""
    boot_id: str
    session: int = 0
    """0 for the guardrun that created the run, +1 for each that continued it."""
    created_wall_s: float
    clock_base_s: float = 0.0
    """now_s = clock_base_s + CLOCK_MONOTONIC - clock_mono_s; of a session that continues the run: its age by then."""
    clock_mono_s: float
    socket_dir: str
    token: str
    """Marks the run's processes in their environment (GUARDRUN_TOKEN); no secret, opens nothing."""
    settings: Settings
    checkpoint_dir: str = ""
    """[checkpoint] dir, absolute; empty: wherever the ranks are seen to save."""
    checkpoint_format: str = "auto"
    notify_command: list[str] = []
    agent: str = "guardrun"
    config: dict[str, Any] = {}
    """The effective configuration, for guardctl config."""
    fleet: FleetFile | None = None
    """None: a job of one node."""
    slurm_job: str = ""
    """In which it began, or was continued: `5`, and `5_3` for a task of an array; empty outside Slurm."""

    def date_s(self, at_s: float) -> float:
        """Seconds since the epoch of a time of the engine's; the same in every session, whatever became of the clock.

        For what is written, not for comparing with the clocks of today.
        """
        return self.created_wall_s + at_s


def read_run_file(run_dir: Path, *, is_anybodys: bool = False) -> RunFile:
    """Read run.json, if it is the user's own in a folder of their own. is_anybodys: of whatever user.

    Raises NotOwnError, FileNotFoundError, or msgspec.DecodeError where it is no run's.
    """
    return msgspec.json.decode(read_own(run_dir / RUN_FILE, is_anybodys=is_anybodys), type=known_type(RunFile))


def check_run_dir(run_dir: Path) -> None:
    """Raise NotOwnError where anybody else has, or may have, a hand in what a run goes on from."""
    folder = open_folder(run_dir)
    try:
        mode = os.fstat(folder).st_mode
        for name in os.listdir(folder):
            if name in _FOLDERS:
                os.close(open_folder(run_dir / name, within=mode))
            elif _FILES.fullmatch(name):
                os.close(open_own(run_dir / name))
    finally:
        os.close(folder)


def list_runs(directory: Path) -> list[Path]:
    """The folders of runs in a guard directory, newest first; those that this user may look into."""
    found: list[tuple[float, Path]] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.is_symlink() and stat.S_ISREG(
                    (about := os.lstat(os.path.join(entry.path, RUN_FILE))).st_mode
                ):
                    found.append((about.st_mtime, Path(entry.path)))
    return [path for _, path in sorted(found, key=lambda one: one[0], reverse=True)]


def write_run_file(run_dir: Path, run: RunFile) -> None:
    """Write run.json. Raises OSError."""
    write_own(run_dir / RUN_FILE, msgspec.json.format(encode_json(run)))


def mend_run_file(run_dir: Path, run: RunFile) -> None:
    """Write run.json anew where it cannot be read any more, for a supervisor that has to."""
    try:
        read_run_file(run_dir)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        with suppress(OSError):
            write_run_file(run_dir, run)
    except OSError:
        pass  # somebody else's, or nobody answers
