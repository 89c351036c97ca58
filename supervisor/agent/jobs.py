"""Who trains on this node, and what dead jobs have left behind.

A job is registered by its supervisor. When its launcher is gone, its own supervisor ends what is left; what is there
after that patience bears the run's mark, belongs to the job's user, and to nobody who lives: the agent ends it, by pid
and start time. What not even SIGKILL ends, and what holds a device's memory, is told for as long as it is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from guardrun.launcher.base.processes import ProcessHandle
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import SECRET, write_file
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.base.redaction import redact_argv
from guardrun.supervisor.collect.host.process_table import ProcessTable, end_processes, processes_with_marker
from guardrun.supervisor.collect.host.procfs import read_boot_id, read_cmdline, read_stat
from guardrun.supervisor.wire.agent_messages import RegisterJob

NAME = "jobs.json"
MAX_OF_ONE_USER = 64
"""Jobs that one user may have registered, those counted that have ended and left something."""
_LONGEST = {"run_id": 255, "run_dir": 4096, "token": 128}
"""Bytes: as long as the names of files and folders are, and more than guardrun's own marks."""
PATIENCE_S = 30.0
"""From the launcher's end: its supervisor takes at most ten seconds to end what is left, and ends itself after that."""
AGAIN_S = 60.0
"""Between two looks at what could not be ended."""
END_S = 5.0
_MAX_TOLD = 64


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a dead job."""

    pid: int
    start: int
    command: str
    state: str


class Job(msgspec.Struct, kw_only=True):
    """A registered job."""

    run_id: str
    run_dir: str
    launcher_pid: int
    launcher_start: int
    token: str
    uid: int
    boot_id: str = ""
    """A token of another boot is nobody's: its processes are gone with it."""
    ended_s: float | None = None
    """CLOCK_MONOTONIC when its launcher was seen to be gone, or it was said to be over."""
    left: list[Left] = []
    """What could not be ended."""
    holds: list[str] = []
    """Devices (`gpu:UUID`) whose memory those hold."""

    def public(self, now_s: float) -> dict[str, Any]:
        """What everybody may know: no token, and no other user's folder."""
        return {
            "run_id": self.run_id,
            "uid": self.uid,
            "launcher_pid": self.launcher_pid,
            "is_over": self.ended_s is not None,
            "over_for_s": None if self.ended_s is None else round(now_s - self.ended_s, 1),
            "left": [msgspec.to_builtins(left) for left in self.left],
            "holds": self.holds,
        }


class NotAllowedError(Exception):
    """Why a user may not do that: one sentence."""


class Jobs:
    """All registered jobs, by (user, run id); `state` keeps them over a restart of the agent."""

    def __init__(self, folder: Path, writer: BackgroundWriter) -> None:
        """writer: whose thread writes the state folder."""
        self._path = folder / NAME
        self._writer = writer
        self._boot_id = read_boot_id()
        self._jobs: dict[tuple[int, str], Job] = {}
        self.trouble = ""
        """Why they could not be kept in the state folder."""

    def load(self, now_s: float) -> None:
        """Take up what an agent before this one had registered. What can't be read is as if it weren't there."""
        try:
            jobs = msgspec.json.decode(self._path.read_bytes(), type=known_type(list[Job]))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return
        for job in jobs:
            if job.boot_id == self._boot_id and self._count(job.uid) < MAX_OF_ONE_USER:
                job.ended_s = None if job.ended_s is None else now_s
                is_known = (job.uid, job.run_id) in self._jobs  # the newest of a run is written first
                self._jobs[job.uid, _past_name(job) if is_known else job.run_id] = job

    def register(self, said: RegisterJob, uid: int, own_uid: int) -> tuple[Job, bool]:
        """A supervisor says whose it is. Answers the job, and whether it is new. Raises NotAllowedError.

        uid: of who says it; own_uid: the agent's.
        """
        if not _is_alive(said.launcher_pid, said.launcher_start):
            raise NotAllowedError(f"run {said.run_id}: its launcher, process {said.launcher_pid}, does not run here")
        owner = _owner(said.launcher_pid)
        if uid not in (owner, 0, own_uid):
            raise NotAllowedError(f"run {said.run_id}: its launcher, process {said.launcher_pid}, is not yours")
        if not said.token:
            raise NotAllowedError(f"run {said.run_id}: without a mark its processes could not be told from others")
        for name, longest in _LONGEST.items():
            if len(getattr(said, name).encode()) > longest:
                raise NotAllowedError(f"run {said.run_id[:40]}: its {name} has more than {longest} bytes")
        key = (owner, said.run_id)
        before = self._jobs.get(key)
        is_new = before is None or before.token != said.token or before.ended_s is not None
        if (before is None or before.token != said.token) and self._count(owner) >= MAX_OF_ONE_USER:
            raise NotAllowedError(f"run {said.run_id}: too many jobs of yours are registered on this node")
        if before is not None and before.token != said.token:
            # The run goes on with a new launcher: what the old one left must not be forgotten.
            self._jobs[owner, _past_name(before)] = before
        self._jobs[key] = Job(
            run_id=said.run_id,
            run_dir=said.run_dir,
            launcher_pid=said.launcher_pid,
            launcher_start=said.launcher_start,
            token=said.token,
            uid=owner,
            boot_id=self._boot_id,
        )
        if is_new:
            self.save()
        return self._jobs[key], is_new

    def end(self, run_id: str, uid: int, own_uid: int, now_s: float) -> Job:
        """A job is said to be over. Raises NotAllowedError."""
        job = self.find(run_id, uid, own_uid)
        if job.ended_s is None:
            job.ended_s = now_s
            self.save()
        return job

    def _count(self, uid: int) -> int:
        return sum(owner == uid for owner, _ in self._jobs)

    def find(self, run_id: str, uid: int, own_uid: int) -> Job:
        """A job that this user may act for. Raises NotAllowedError, in the same words for no job and another's."""
        if (found := self._jobs.get((uid, run_id))) is not None:
            return found
        if uid in (0, own_uid):
            for (_, name), job in self._jobs.items():
                if name == run_id:
                    return job
        raise NotAllowedError(f"no job {run_id} of yours is registered on this node")

    @property
    def launchers(self) -> list[int]:
        """Processes of the jobs that run here; any thread may ask."""
        return [job.launcher_pid for job in list(self._jobs.values()) if job.ended_s is None]

    def living(self) -> list[Job]:
        """Whose launchers have not been seen to end."""
        return [job for job in self._jobs.values() if job.ended_s is None]

    def all(self) -> list[Job]:
        """Those that run, and dead ones that have left something behind or are yet to be swept."""
        return list(self._jobs.values())

    def launcher_gone(self, job: Job, now_s: float) -> None:
        """The job is dead from now_s on (CLOCK_MONOTONIC): its leftovers are looked for after the patience."""
        if job.ended_s is None:
            job.ended_s = now_s
            self.save()

    def due(self, now_s: float, patience_s: float) -> list[Job]:
        """Dead jobs whose leftovers should be looked for now. One whose launcher lives after all is left to it."""
        return [
            job
            for job in self._jobs.values()
            if job.ended_s is not None
            and now_s - job.ended_s >= (AGAIN_S if job.left else patience_s)
            and not _is_alive(job.launcher_pid, job.launcher_start)
        ]

    def swept(self, job: Job, left: list[Left], holds: list[str], now_s: float) -> None:
        """What a sweep has left: nothing, and the job is forgotten, or something to be looked at again."""
        job.left, job.holds = left, holds
        job.ended_s = now_s if left else job.ended_s
        if not left:
            for key in [key for key, other in self._jobs.items() if other is job]:
                del self._jobs[key]
        self.save()

    def save(self) -> None:
        """Have them written to the state folder, by the background writer; `trouble` says whether that failed."""
        data = encode_json(list(self._jobs.values()))
        self._writer.put(lambda: self._write(data))

    def _write(self, data: bytes) -> None:
        try:
            write_file(self._path, data, SECRET)
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self._path}: {error.strerror}"


def _past_name(job: Job) -> str:
    """Of one that its run has gone on from with another launcher."""
    return f"{job.run_id}#{job.token}"


def open_launcher(job: Job) -> ProcessHandle:
    """The job's launcher, to be told of its end. Raises ProcessLookupError where that has come."""
    return ProcessHandle(job.launcher_pid, job.launcher_start)


def sweep(job: Job, living_tokens: Iterable[str], may_end: bool) -> tuple[list[Left], list[Left]]:
    """End what a dead job left; answers what was there, and what is there still.

    living_tokens: marks of jobs that live. may_end: False only looks. Takes seconds where something does not end.
    """
    if job.token in set(living_tokens):
        return [], []
    found = _find(job)
    if not found or not may_end:
        return found, found
    end_processes([(left.pid, left.start) for left in found], END_S)
    return found, _find(job)


def _find(job: Job) -> list[Left]:
    table = ProcessTable.read()
    return [
        Left(
            pid=pid,
            start=start,
            command=" ".join(redact_argv(_command(pid, table)))[:200],
            state=table.stats[pid].state,
        )
        for pid, start in processes_with_marker(job.token, table, uid=job.uid)
        if pid != os.getpid()
    ][:_MAX_TOLD]


def _command(pid: int, table: ProcessTable) -> list[str]:
    stat = table.stats[pid]
    # The memory map of one in D may be locked for as long as it waits.
    return [stat.comm] if stat.state == "D" else read_cmdline(pid, 400) or [stat.comm]


def _is_alive(pid: int, start: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.start == start and not stat.is_dead


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1
