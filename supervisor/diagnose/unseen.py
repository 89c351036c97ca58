"""What could not be seen, why, and the way out."""

from __future__ import annotations

import os

from guardrun.supervisor.collect.host.procfs import read_bytes
from guardrun.supervisor.collect.ranks.pyspy import NOT_INSTALLED, REFUSED
from guardrun.supervisor.diagnose.answer import Diagnosis, Next, Unseen
from guardrun.supervisor.diagnose.hang_finding import Absent
from guardrun.supervisor.diagnose.scene import GONE, Glance
from guardrun.supervisor.engine.observation.frames import rank_list

PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


def tell_unseen(diagnosis: Diagnosis, seen: list[Glance], absent: Absent) -> None:
    """Note it all in the answer."""
    if absent.elsewhere:
        why = "on other nodes as it seems: none of them is below these processes; run guardctl diagnose there, too"
        diagnosis.unseen.append(Unseen(what=_ranks(list(absent.elsewhere)), why=why))
    if absent.dead:
        why = "should be on this node by what the others were started with, and are not alive"
        diagnosis.unseen.append(Unseen(what=_ranks(list(absent.dead)), why=why))
    _tell_missing(diagnosis, seen)
    _tell_stacks(diagnosis, seen[-1])


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}"


def _tell_missing(diagnosis: Diagnosis, seen: list[Glance]) -> None:
    by_why: dict[str, list[int]] = {}
    for rank, told in seen[-1].missing.items():
        was_seen = told == GONE and any(rank in glance.ranks for glance in seen[:-1])
        by_why.setdefault("ended while it was looked at" if was_seen else told, []).append(rank)
    for why, ranks in by_why.items():
        diagnosis.unseen.append(Unseen(what=_ranks(ranks), why=why))


def _tell_stacks(diagnosis: Diagnosis, last: Glance) -> None:
    by_trouble: dict[str, list[int]] = {}
    for rank, look in last.ranks.items():
        if look.process.trouble and not look.process.trouble.startswith(GONE):
            by_trouble.setdefault(look.process.trouble, []).append(rank)
    for trouble, ranks in by_trouble.items():
        why = trouble
        if REFUSED in trouble:
            why = f"{trouble}: {refusal_words()}"
        elif NOT_INSTALLED in trouble:
            why = f"{trouble}: pip install py-spy"
        diagnosis.unseen.append(Unseen(what=f"stacks of {_ranks(ranks)}", why=why))
    if any(REFUSED in trouble for trouble in by_trouble) and os.geteuid() != 0:
        pids = [str(line.pid) for line in diagnosis.ranks if line.doing != "exited"]
        command = ["sudo", "guardctl", "diagnose", *(word for pid in pids[:64] for word in ("--pid", pid))]
        diagnosis.next.append(Next(command=command, why="root may take every stack"))


def refusal_words() -> str:
    """Why stacks are refused on this machine, as far as it can be told."""
    scope = (read_bytes(PTRACE_SCOPE) or b"").decode("ascii", "replace").strip()
    if scope == "3":
        return "the kernel allows no tracing at all (Yama ptrace_scope 3), nor can that be changed before a reboot"
    if os.geteuid() == 0:
        return "root without CAP_SYS_PTRACE, as in many containers: run guardctl outside, or add the capability"
    if scope in ("1", "2"):
        way = "as root: sudo guardctl diagnose; or sysctl kernel.yama.ptrace_scope=0"
        return f"Yama ptrace_scope {scope} keeps processes from tracing those that they have not started; {way}"
    return "the processes are another user's, or may not be traced; run it as root: sudo guardctl diagnose"
