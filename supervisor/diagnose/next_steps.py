"""What to do next: commands that can be run as they stand, the most telling first.

For what could not be seen, why, and the way out.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from guardrun.supervisor.collect.host.procfs import read_bytes
from guardrun.supervisor.collect.ranks.stack_dumps import NOT_INSTALLED, REFUSED
from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.diagnose.answer import Diagnosis, Next, Unseen
from guardrun.supervisor.diagnose.hang_finding import Absent
from guardrun.supervisor.diagnose.scene import GONE, Glance
from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.engine.observation.rank_activity import RankActivity
from guardrun.supervisor.rundir.run_directory import RunFile

MAX_PIDS = 2
LONG_GAP_S = 30
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
"""What ssh takes for a host, and for no option, user or shell's word."""


def next_steps(diagnosis: an.Diagnosis, *, run: RunFile | None, is_held: bool) -> list[an.Next]:
    """For whoever asked. is_held: guardrun changes nothing anyway."""
    target = diagnosis.target
    if target.source == "directory":
        return _of_past(diagnosis, run)
    steps: list[an.Next] = []
    run_id = _name(target) if target.kind == "run" else ""
    is_stuck = diagnosis.verdict in (an.HANG, an.SUSPICIOUS)
    if run_id and is_stuck and not is_held:
        why = "before you attach a debugger: guardrun then changes nothing until guardctl unhold"
        steps.append(an.Next(command=["guardctl", "hold", run_id], why=why, changes=True))
    steps += _of_incident(diagnosis, run_id)
    if run_id:
        why = "the stacks of every process, DataLoader workers too, as they are then"
        steps.append(an.Next(command=["guardctl", "stacks", "--run", run_id], why=why))
    if is_stuck:
        steps += _of_culprits(diagnosis)
    if target.kind == "processes" and diagnosis.verdict in (an.UNKNOWN, an.HANG) and diagnosis.observed_s < LONG_GAP_S:
        pids = [word for pid in target.pids for word in ("--pid", str(pid))]
        why = "looks half a minute apart tell slow from stuck"
        command = ["guardctl", "diagnose", *pids, "--gap", str(LONG_GAP_S // 2)]
        steps.append(an.Next(command=command, why=why))
    if run_id and not is_stuck:
        steps.append(an.Next(command=["guardctl", "status", run_id, "--watch"], why="to watch it go on"))
    return steps


def _name(target: an.Target) -> str:
    """How a command names the run: by its folder, which works from everywhere, where that can be written down."""
    run_dir = target.run_dir or ""
    return run_dir if run_dir.isprintable() else target.run_id or ""


def _of_culprits(diagnosis: an.Diagnosis) -> list[an.Next]:
    steps = []
    doing = {(line.node, line.pid): line.doing for line in diagnosis.ranks if REFUSED not in line.trouble}
    for culprit in diagnosis.culprits[:MAX_PIDS]:
        if (pid := culprit.pid) is None:
            continue
        found = _of_rank(culprit.rank, pid, doing.get((culprit.node, pid)))
        if found is not None and culprit.node != diagnosis.target.node:
            # The same number is another process here.
            found = on_node(found, culprit.node)
        steps += [found] if found is not None else []
    return steps


def on_node(step: an.Next, node: str) -> an.Next | None:
    """The same step, to be typed here; None where no host has such a name: a run's record says what its user likes."""
    if not _HOST.fullmatch(node):
        return None
    return an.Next(command=["ssh", node, shlex.join(step.command)], why=f"{step.why} ({node})", changes=step.changes)


def _of_rank(rank: int | None, pid: int, doing: str | None) -> an.Next | None:
    """On its node."""
    if doing == RankActivity.STOPPED.value:
        why = f"let rank {rank} go on, if nobody keeps it stopped on purpose"
        return an.Next(command=["kill", "-CONT", str(pid)], why=why, changes=True)
    if doing == RankActivity.TRACED.value:
        why = f"TracerPid there names the debugger that holds rank {rank}"
        return an.Next(command=["grep", "TracerPid", f"/proc/{pid}/status"], why=why)
    if doing == RankActivity.IO_BLOCKED.value:
        why = f"where in the kernel rank {rank} waits (as root)"
        return an.Next(command=["sudo", "cat", f"/proc/{pid}/stack"], why=why)
    if doing in (None, RankActivity.GONE.value):
        return None
    why = f"rank {rank}'s C frames, too; pauses it for a moment"
    return an.Next(command=["py-spy", "dump", "--native", "--pid", str(pid)], why=why)


def _of_incident(diagnosis: an.Diagnosis, run_id: str) -> list[an.Next]:
    """The last one, where it is what is told about."""
    if not run_id or not diagnosis.incidents:
        return []
    last = diagnosis.incidents[-1]
    if last.get("recovered") is not None:
        return []
    command = ["guardctl", "show", str(last.get("id")), "--run", run_id]
    return [an.Next(command=command, why="guardrun's own evidence on it")]


def _of_past(diagnosis: an.Diagnosis, run: RunFile | None) -> list[an.Next]:
    run_dir = _name(diagnosis.target)
    steps: list[an.Next] = []
    if diagnosis.incidents:
        number = str(diagnosis.incidents[-1].get("id"))
        why = "its last incident, with stacks, traceback and advice"
        steps.append(an.Next(command=["guardctl", "show", number, "--run", run_dir], why=why))
    if run is not None and diagnosis.evidence.get("journal_ends") is not None:
        why = f"continues it from its newest whole checkpoint; in {run.cwd}, with the environment that it had"
        command = ["guardrun", "--guard-run-id", run.run_id, *run.command[1:]]
        steps.append(an.Next(command=command, why=why, changes=True))
    if diagnosis.target.run_dir and (Path(diagnosis.target.run_dir) / "events.jsonl").exists():
        why = "whether its decisions can be reached again from what it recorded"
        steps.append(an.Next(command=["guardctl", "replay", run_dir], why=why))
    return steps


# Unseen -------------------------------------------------------------------------------------------------------------
# What could not be seen, why, and the way out.


PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


def tell_unseen(diagnosis: Diagnosis, seen: list[Glance], absent: Absent) -> None:
    """Note it all in the answer."""
    if absent.elsewhere:
        why = "on other nodes as it seems: none of them is below these processes; run guardctl diagnose there, too"
        diagnosis.unseen.append(Unseen(what=ranks_text(list(absent.elsewhere)), why=why))
    if absent.dead:
        why = "should be on this node by what the others were started with, and are not alive"
        diagnosis.unseen.append(Unseen(what=ranks_text(list(absent.dead)), why=why))
    _tell_missing(diagnosis, seen)
    _tell_stacks(diagnosis, seen[-1])


def _tell_missing(diagnosis: Diagnosis, seen: list[Glance]) -> None:
    by_why: dict[str, list[int]] = {}
    for rank, told in seen[-1].missing.items():
        was_seen = told == GONE and any(rank in glance.ranks for glance in seen[:-1])
        by_why.setdefault("ended while it was looked at" if was_seen else told, []).append(rank)
    for why, ranks in by_why.items():
        diagnosis.unseen.append(Unseen(what=ranks_text(ranks), why=why))


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
        diagnosis.unseen.append(Unseen(what=f"stacks of {ranks_text(ranks)}", why=why))
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
