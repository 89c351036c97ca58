"""The trainings that run on this machine, for whoever does not know their pids."""

from __future__ import annotations

import os
from typing import NamedTuple

from guardrun.launcher.base.processes import short_command
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import read_cmdline
from guardrun.supervisor.diagnose.rank_processes import CONVENTIONS, View

_ELASTIC, _PLAIN = CONVENTIONS[:2]
_LAUNCHERS = ("torchrun", "torch.distributed", "guardrun", "accelerate", "deepspeed")


class Job(NamedTuple):
    """A training that runs on this machine, as `--pid` may be told."""

    pid: int
    """Its launcher's, or of its first rank where the launcher can't be told."""
    ranks: int
    world_size: str
    command: str
    run_id: str
    """guardrun's; empty where another launcher started it."""


def find_jobs(view: View | None = None) -> list[Job]:
    """Every job of this user of which a rank runs here, by what torchrun and its like put into the environment."""
    view = view or View(ProcessTable.read())
    uid = os.geteuid()
    jobs: dict[tuple[str, ...], dict[int, int]] = {}
    for pid in view.table.stats:
        if not view.is_alive(pid) or not _is_of_user(pid, uid) or "WORLD_SIZE" not in view.environ(pid):
            continue
        names = _ELASTIC if "TORCHELASTIC_RUN_ID" in view.environ(pid) else _PLAIN
        number = view.number(pid, names)
        if number is not None:
            top = view.topmost(pid, names)
            jobs.setdefault((names.also, *view.job(top, names)), {}).setdefault(number, top)
    # A launcher that itself bears a RANK shows as a job of its own: its ranks say more.
    launchers = {view.table.stats[pid].ppid for members in jobs.values() for pid in members.values()}
    return [_job(members, view) for members in jobs.values() if launchers.isdisjoint(members.values())]


def _is_of_user(pid: int, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False


def _job(members: dict[int, int], view: View) -> Job:
    pids = [members[number] for number in sorted(members)]
    parents = {view.table.stats[pid].ppid for pid in pids}
    parent = parents.pop() if len(parents) == 1 else 0
    is_launcher = parent > 1 and view.is_alive(parent) and _looks_like_launcher(parent)
    environ = view.environ(pids[0])
    return Job(
        pid=parent if is_launcher else pids[0],
        ranks=len(pids),
        world_size=environ.get("WORLD_SIZE", "?"),
        command=_command(pids[0]),
        run_id=environ.get("GUARDRUN_RUN_ID", ""),
    )


def _command(pid: int) -> str:
    return short_command(read_cmdline(pid))


def _looks_like_launcher(pid: int) -> bool:
    words = " ".join(read_cmdline(pid))
    return any(name in words for name in _LAUNCHERS)
