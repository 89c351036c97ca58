"""DataLoader workers: which of a rank's processes they are, and what each was doing while the rank waited for data.

A worker that was forked shows its parent's frames below its own: only what was called from torch's `_worker_loop` is
the worker's. Nothing tells from outside which worker the rank waits for (torch hands batches out in order, the queue
is shared), so those that could not deliver are told: the dead, the stopped, and those that are inside of the data set.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook
from guardrun.supervisor.engine.observation import frames as fr

_LOOP_FILE, _LOOP = "torch/utils/data/_utils/worker.py", "_worker_loop"
_NAME = "pt_data_worker"
"""torch 2.6 and newer give it to their workers; all that is left of one that has died."""
MAX_TOLD = 32


class Standing(str, Enum):
    """What a worker does; those further up are more likely to be what the rank waits for."""

    DEAD = "dead"
    STOPPED = "stopped"
    TRACED = "traced"
    BLOCKED = "blocked"
    """In uninterruptible wait, or waiting for a mount that does not answer."""
    INSIDE = "inside"
    """In the data set's own code, or what that called."""
    UNSEEN = "unseen"
    """No stack of it could be taken."""
    IDLE = "idle"
    """Waiting for work."""


_ORDER = list(Standing)


class Worker(NamedTuple):
    """One worker, as a look showed it."""

    process: ProcessLook
    standing: Standing
    spot: str
    """`read_shard (data.py:31)`: empty where it is in none of the data set's code."""


def workers_of(look: RankLook, before: RankLook | None = None) -> list[Worker]:
    """The DataLoader workers among a rank's processes, the most telling first.

    before: an earlier look, which may know a process that has lost its stack by now.
    """
    known = {child.pid for child in before.children if _is_worker(child)} if before is not None else set()
    found = [_worker(child) for child in look.children if child.pid in known or _is_worker(child)]
    return sorted(found, key=lambda worker: _ORDER.index(worker.standing))


def _is_worker(process: ProcessLook) -> bool:
    return process.command == _NAME or any(_is_loop(frame) for frame in _stack(process))


def _is_loop(frame: Frame) -> bool:
    return _LOOP_FILE in frame.file and fr.last_name(frame) == _LOOP


def _stack(process: ProcessLook) -> list[Frame]:
    return next((thread.frames for thread in process.threads if thread.is_main), [])


def _worker(process: ProcessLook) -> Worker:
    own: list[Frame] = []
    for frame in _stack(process):
        if _is_loop(frame):
            break
        own.append(frame)
    spot = _spot(own)
    return Worker(process, _standing(process, spot), spot)


def _spot(own: list[Frame]) -> str:
    """The innermost frame of the user's code, else of an installed data set's."""
    for frame in own:
        if fr.is_users(frame):
            return fr.spot([frame])
    for frame in own:
        if not frame.file.startswith("<") and not _is_plumbing(frame):
            return fr.spot([frame])
    return ""


def _is_plumbing(frame: Frame) -> bool:
    """Whether a frame is torch's or the standard library's."""
    if any(part in frame.file for part in ("torch/utils/data/", "/multiprocessing/")):
        return True
    return "/lib/python3" in frame.file and "-packages/" not in frame.file


def _standing(process: ProcessLook, spot: str) -> Standing:
    states = {"Z": Standing.DEAD, "X": Standing.DEAD, "T": Standing.STOPPED, "t": Standing.TRACED}
    if process.state in states:
        return states[process.state]
    if process.state == "D" or process.dead_mount:
        return Standing.BLOCKED
    if spot:
        return Standing.INSIDE
    return Standing.IDLE if _stack(process) else Standing.UNSEEN


def cannot_deliver(workers: list[Worker], before: RankLook) -> bool:
    """Whether one of them never will again by itself: it is dead, or stopped by a signal in both looks.

    Equal context switches: it has not been let run in between, as programs that limit the CPU do.
    """
    known = {child.pid: child for child in before.children}
    for process, standing, _ in workers:
        old = known.get(process.pid)
        if standing is Standing.DEAD:
            return True
        if standing is Standing.STOPPED and old and (old.state, old.switches) == (process.state, process.switches):
            return True
    return False


def clause(workers: list[Worker]) -> str:
    """The most telling of them in words, to follow `its `: `DataLoader worker 4711 is in read_shard (data.py:31)`."""
    if not workers:
        return ""
    first = workers[0]
    alike = [w for w in workers if w.standing is first.standing and w.spot == first.spot]
    pids = ", ".join(str(worker.process.pid) for worker in alike[:4])
    more = f" and {len(alike) - 4} more" if len(alike) > 4 else ""
    return f"DataLoader worker{'s' if len(alike) > 1 else ''} {pids}{more} {_words(first, len(alike) > 1)}"


def _words(worker: Worker, is_many: bool) -> str:
    are, have = ("are", "have") if is_many else ("is", "has")
    inside = f" in {worker.spot}" if worker.spot else ""
    return {
        Standing.DEAD: f"{have} died",
        Standing.STOPPED: f"{are} stopped by a signal{inside}",
        Standing.TRACED: f"{are} stopped by a debugger{inside}",
        Standing.BLOCKED: f"{are} in uninterruptible wait{kernel_words(worker.process)}{inside}"
        f"{mount_words(worker.process)}",
        Standing.INSIDE: f"{are}{inside}",
        Standing.UNSEEN: f"{have} no stack that could be taken",
        Standing.IDLE: f"{'wait' if is_many else 'waits'} for work",
    }[worker.standing]


def kernel_words(process: ProcessLook) -> str:
    """` (nfs_wait_bit_killable)`; empty where the kernel doesn't say."""
    return f" ({process.wchan})" if process.wchan else ""


def mount_words(process: ProcessLook) -> str:
    """`, on /scratch, which does not answer`, or the file that it waits for; empty where neither is known."""
    file = f", at {process.file}" if process.file else ""
    if process.dead_mount:
        return f"{file}, on {process.dead_mount}, which does not answer"
    return file


def of_workers(looks: list[RankLook], ranks: list[int]) -> list[dict[str, Any]]:
    """The workers of these ranks, as an incident shows them; bounded."""
    told = []
    for look in looks:
        for worker in workers_of(look) if look.global_rank in ranks else []:
            process = worker.process
            entry = {"rank": look.global_rank, "pid": process.pid, "state": process.state}
            entry |= {"standing": worker.standing.value, "at": worker.spot}
            extra = {"wchan": process.wchan, "file": process.file, "dead_mount": process.dead_mount}
            told.append({**entry, **{name: value for name, value in extra.items() if value}})
    return told[:MAX_TOLD]
