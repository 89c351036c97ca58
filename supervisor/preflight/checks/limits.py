"""Are the limits of this shell enough for ranks? Open files, locked memory, processes."""

from __future__ import annotations

import os
import resource

from guardrun.supervisor.preflight.base.remark import (
    Check,
    Remark,
    Subject,
    note,
    ok,
    plural,
    size_text,
    warn,
)

NAME = "limits"

FEW_FILES = 1024
"""Linux's default for services; every DataLoader worker, socket and shared tensor takes some."""
ENOUGH_FILES = 4096
LOCKED_BYTES = 1 << 30
"""With InfiniBand all buffers of all connections are locked; NCCL's documentation asks for unlimited."""
THREADS_PER_RANK = 64
"""OpenMP's, autograd's, NCCL's, the DataLoader's and torch's own, roughly."""
UNLIMITED = resource.RLIM_INFINITY


def judge_files(soft: int, hard: int) -> Remark:
    """Open files a process (RLIMIT_NOFILE). soft, hard: UNLIMITED for no limit; only the soft one counts."""
    if soft == UNLIMITED or soft >= ENOUGH_FILES:
        return ok(NAME, f"A rank may have {'any number of' if soft == UNLIMITED else soft} files open.", nofile=soft)
    summary = f"A rank may have only {soft} files open (nofile)."
    if hard == UNLIMITED or hard > soft:
        top = "65536" if hard == UNLIMITED or hard > 65536 else str(hard)
        advice = f"ulimit -n {top} before guardrun; LimitNOFILE= of a unit, /etc/security/limits.conf for good."
    else:
        advice = "Have the hard limit raised (/etc/security/limits.conf, LimitNOFILE= of the unit or of slurmd)."
    return (warn if soft < FEW_FILES else note)(NAME, summary, advice, nofile=soft, nofile_hard=hard)


def judge_locked(soft: int, has_infiniband: bool) -> Remark:
    """Locked memory a process (RLIMIT_MEMLOCK), in bytes; it matters to InfiniBand alone."""
    if not has_infiniband:
        return ok(NAME, "There is no InfiniBand: locked memory need not be large.", memlock_bytes=soft)
    if soft == UNLIMITED or soft >= LOCKED_BYTES:
        return ok(NAME, "Enough memory may be locked for InfiniBand.", memlock_bytes=soft)
    return warn(
        NAME,
        f"Only {size_text(soft)} of memory may be locked (memlock): NCCL over InfiniBand will fail to register memory.",
        "ulimit -l unlimited; for good in /etc/security/limits.conf, LimitMEMLOCK=infinity of slurmd or the container.",
        memlock_bytes=soft,
    )


def judge_processes(left: int | None, what: str, ranks: int) -> Remark:
    """left: how many more processes and threads may be started; None: any number."""
    needed = ranks * THREADS_PER_RANK
    if left is None or left >= needed:
        return ok(NAME, "There may be enough processes and threads.", processes_left=left)
    return warn(
        NAME,
        f"Only {left} more processes and threads may be started ({what}); {plural(ranks, 'rank')} may need {needed}.",
        "Raise it: ulimit -u, TasksMax= of the unit, --pids-limit of the container.",
        processes_left=left,
    )


def count_own_threads(uid: int) -> int:
    """Threads of all processes of a user, as RLIMIT_NPROC counts them (setrlimit(2))."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return total


def read_processes_left() -> tuple[int | None, str]:
    """How many more there may be, and by which limit."""
    left: int | None = None
    what = ""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != UNLIMITED and os.geteuid() != 0:
        left, what = max(0, soft - count_own_threads(os.getuid())), f"nproc is {soft}"
    in_group = _read_cgroup_left()
    if in_group is not None and (left is None or in_group < left):
        left, what = in_group, "pids.max of the control group"
    return left, what


def _read_cgroup_left() -> int | None:
    """Of the nearest control group that says: its own, else the root of what a container sees."""
    for folder in _cgroup_folders():
        try:
            with open(f"{folder}/pids.max", encoding="ascii") as most, open(f"{folder}/pids.current") as now:
                limit, current = most.read().strip(), now.read().strip()
        except OSError:
            continue
        if limit.isdigit() and current.isdigit():
            return max(0, int(limit) - int(current))
    return None


def _cgroup_folders() -> list[str]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "" or "pids" in kinds.split(","):
            base = "/sys/fs/cgroup" if kinds == "" else "/sys/fs/cgroup/pids"
            folders += [f"{base}{path.rstrip('/')}", base]
    return folders


def run(subject: Subject) -> list[Remark]:
    """One remark each for open files, locked memory and processes."""
    has_infiniband = os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband"))
    left, what = read_processes_left()
    return [
        judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        judge_locked(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], has_infiniband),
        judge_processes(left, what, subject.ranks),
    ]


CHECK = Check(NAME, run, needs_run=True)
