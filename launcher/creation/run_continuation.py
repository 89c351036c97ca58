"""May a run directory that is there already be gone on with?

That depends on whether anybody alive owns it, and on what was left in it.

A guardrun and all that it had started may have been killed, or its machine lost its power, at any moment:

    made            the folder, `.owner`, `nccl/`, and run.json before any process of the run
    while it runs   events.jsonl, guardrun.log, checkpoints.json, kept/, incidents/, …
    its end         the journal's last line, then summary.json

A full disk may have kept any of these from being written. docs/checkpoints.md has the table for users.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from guardrun.launcher.base.processes import DEAD, read_boot_id, read_stat
from guardrun.launcher.base.rank_environment import DUMP_FOLDER
from guardrun.supervisor.base.own_files import TEMPORARY, open_own, read_own
from guardrun.supervisor.rundir.run_directory import RunFile

# Run ownership ------------------------------------------------------------------------------------------------------
# Whose run is it: does somebody alive own the run directory?


LOCK_FILE = ".owner"
TOUCH_EVERY_S = 5.0
"""How often a living owner touches the lock file: what other nodes see of it."""
FRESH_S = 3 * TOUCH_EVERY_S

ENDED_OUTCOMES = ("finished", "failed", "gave_up")
"""Of summary.json. `interrupted` is none of them: a requeued job continues it."""


class Ownership:
    """A run directory's lock, held for as long as this process lives."""

    def __init__(self, run_dir: Path) -> None:
        """Take the lock.

        Raises BlockingIOError where another process holds it, OSError where nothing can be written.
        """
        self._path = run_dir / LOCK_FILE
        self._fd: int | None = open_own(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self._touched_s = time.monotonic()
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self.release()
            raise BlockingIOError(f"{self._path} is locked") from None
        except OSError:
            pass  # a file system without locks: the process and the file's age have to do
        self._touch()

    def touch(self, put: Callable[[Callable[[], None]], None]) -> None:
        """Show other nodes that the owner lives; cheap to call often. put: has it done, and `release` after it."""
        now_s = time.monotonic()
        if now_s - self._touched_s >= TOUCH_EVERY_S:
            self._touched_s = now_s
            put(self._touch)

    def _touch(self) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.utime(self._fd)

    def release(self) -> None:
        """Give up the lock, so that another guardrun can continue the run. May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def find_living_owner(run_dir: Path, run: RunFile, node: str, patience_s: float = FRESH_S) -> str:
    """Who owns the run, in words; empty where nobody alive does.

    An owner on another node is alive if it goes on touching the lock file: waits up to patience_s to see that, but only
    where the file is that fresh and the run has written no end.
    """
    if run.node == node and run.boot_id == read_boot_id():
        stat = read_stat(run.launcher_pid)
        is_alive = stat is not None and stat.start == run.launcher_start and stat.state not in DEAD
        return f"by process {run.launcher_pid} on this node" if is_alive else ""
    if run.node == node or (run_dir / "summary.json").exists():
        return ""
    return f"on node {run.node}" if _is_touched(run_dir / LOCK_FILE, patience_s) else ""


def find_touching_owner(run_dir: Path, patience_s: float = FRESH_S) -> str:
    """Likewise, where nothing says on which node."""
    return "on some node" if _is_touched(run_dir / LOCK_FILE, patience_s) else ""


def _is_touched(path: Path, patience_s: float) -> bool:
    try:
        before_s = path.stat().st_mtime
        if abs(time.time() - before_s) > 2 * patience_s:
            return False
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            time.sleep(0.2)
            if path.stat().st_mtime != before_s:
                return True
    except OSError:
        pass
    return False


def read_outcome(run_dir: Path) -> tuple[str, bool]:
    """summary.json's outcome (empty where the run has not ended), and whether it may be gone on with all the same."""
    try:
        summary = json.loads(read_own(run_dir / "summary.json"))
    except (OSError, ValueError):
        return "", False
    if not isinstance(summary, dict) or not isinstance(outcome := summary.get("outcome", ""), str):
        return "", False
    return outcome, summary.get("may_go_on") is True


# Run continuation ---------------------------------------------------------------------------------------------------


class Way(Enum):
    """What is done with the folder."""

    REFUSE_STRANGE = auto()
    """It is no run's: it is left alone."""
    REFUSE_ENDED = auto()
    """Its training is over: it is never started again."""
    BEGIN = auto()
    """No process of the run can have been started yet: it is a new one."""
    CONTINUE = auto()
    """From the newest checkpoint that the run wrote, whatever else is known of it."""


@dataclass(frozen=True)
class Left:
    """What an earlier guardrun left."""

    names: frozenset[str]
    """In the folder."""
    has_record: bool
    """run.json can be read."""
    is_private: bool
    """It is nobody's but the user's, as guardrun makes it."""
    outcome: str
    """By summary.json, or by the journal where there is no summary; empty: nothing says that it has ended."""
    may_go_on: bool = False
    """The user only had to say how the script resumes."""


def decide(left: Left) -> Way:
    """What to do with a folder that is there already."""
    is_made = {name for name in left.names if name in (LOCK_FILE, DUMP_FOLDER) or name.startswith(TEMPORARY)}
    if not left.has_record:
        if left.names == is_made and left.is_private:
            return Way.BEGIN
        if LOCK_FILE not in left.names:
            return Way.REFUSE_STRANGE
    if left.outcome in ENDED_OUTCOMES and not left.may_go_on:
        return Way.REFUSE_ENDED
    return Way.CONTINUE
