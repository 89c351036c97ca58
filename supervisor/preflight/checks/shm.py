"""Is there room in /dev/shm? DataLoader workers hand batches over there, and die by SIGBUS where it is full."""

from __future__ import annotations

import os

from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, ok, plural, size_text, warn

NAME = "shm"
FOLDER = "/dev/shm"
SMALL_BYTES = 64 << 20
"""What Docker gives by default (docker run, --shm-size), for all ranks together."""
RANK_BYTES = 64 << 20
"""Some batches of each rank's workers, and NCCL's buffers."""


def judge(total_bytes: int, free_bytes: int, ranks: int) -> Remark:
    """Whether it is large enough, and free enough for this node's ranks (RANK_BYTES each)."""
    data = {"total_bytes": total_bytes, "free_bytes": free_bytes}
    if total_bytes <= SMALL_BYTES:
        return warn(
            NAME,
            f"{FOLDER} is only {size_text(total_bytes)}: DataLoader workers will die of a bus error.",
            "Start the container with --shm-size=16g (or --ipc=host; Kubernetes: an emptyDir of medium Memory).",
            **data,
        )
    if free_bytes < ranks * RANK_BYTES:
        return warn(
            NAME,
            f"{FOLDER} has {size_text(free_bytes)} left of {size_text(total_bytes)}, for {plural(ranks, 'rank')}.",
            f"Remove what earlier runs left there (ls -l {FOLDER}), or make it larger.",
            **data,
        )
    return ok(NAME, f"{FOLDER} has {size_text(free_bytes)} left.", **data)


def run(subject: Subject) -> list[Remark]:
    """One remark; a warning, too, where nothing is mounted there."""
    try:
        room = os.statvfs(FOLDER)
    except OSError as error:
        advice = "Mount a tmpfs there: the DataLoader's workers and NCCL need it."
        return [warn(NAME, f"There is no {FOLDER} ({error.strerror}).", advice)]
    return [judge(room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize, subject.ranks)]


CHECK = Check(NAME, run, needs_run=True)
