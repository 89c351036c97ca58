"""Finding ranks, and trainings, among this machine's processes: by what is in their environment.

torchrun, guardrun and accelerate give every rank RANK; mpirun and srun have numbers of their own. A rank's children
inherit all of it, so the topmost of those with the same number is the rank; where that is a shell around a Python, the
Python below it is. torchrun itself may bear a RANK too (Kubeflow numbers nodes so): its ranks bear its run id as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import NamedTuple

from guardrun.launcher.base.processes import short_command
from guardrun.supervisor.collect.host.process_table import ProcessTable, parse_environ, read_environ
from guardrun.supervisor.collect.host.procfs import Stat, read_cmdline, read_status
from guardrun.supervisor.collect.ranks.stacks import is_python
from guardrun.supervisor.engine.model.events import Rank


class Names(NamedTuple):
    """How one kind of launcher tells a rank who it is."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    job: tuple[str, ...]
    """Equal for all ranks of a job, and only for those."""
    also: str = ""
    """Must be there too."""


_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "GUARDRUN_TOKEN")
_TORCH = Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", _RENDEZVOUS)
CONVENTIONS = (
    _TORCH._replace(also="TORCHELASTIC_RUN_ID"),
    _TORCH,
    Names(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid"),
    ),
    Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_FD", "PMI_JOBID")),
    Names("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)
"""Where several fit, the first is meant."""


class FoundRank(NamedTuple):
    """One rank's process, and what its environment says."""

    rank: Rank
    stat: Stat
    environ: dict[str, str]


class Ranks(NamedTuple):
    """The ranks of one job that were found on this machine."""

    found: list[FoundRank]
    world_size: int
    not_alive: list[int]
    """Global ranks of this node that should be here and are not."""
    elsewhere: list[int]
    """Those of other nodes."""
    notes: list[str]
    """What was done with the pids beyond what was asked."""


class NoRanks(Exception):
    """There is nothing to look at; says why, and the way out."""


class View:
    """The processes of this moment with their environments, each read once."""

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self._environs: dict[int, dict[str, str]] = {}

    def environ(self, pid: int) -> dict[str, str]:
        """Empty where it is nobody else's to read."""
        if pid not in self._environs:
            stat = self.table.stats.get(pid)
            self._environs[pid] = parse_environ(read_environ(stat)) if stat is not None and not stat.is_dead else {}
        return self._environs[pid]

    def number(self, pid: int, names: Names) -> int | None:
        """The global rank that a process bears."""
        environ = self.environ(pid)
        text = environ.get(names.rank, "")
        if not text.isdigit() or (names.also and names.also not in environ):
            return None
        return int(text)

    def is_alive(self, pid: int) -> bool:
        """Whether there was such a process when the table was read; a zombie is not alive."""
        stat = self.table.stats.get(pid)
        return stat is not None and not stat.is_dead

    def job(self, pid: int, names: Names) -> tuple[str, ...]:
        """Values of the variables that tell jobs apart; empty strings where the process has none."""
        environ = self.environ(pid)
        return tuple(environ.get(name, "") for name in names.job)

    def topmost(self, pid: int, names: Names) -> int:
        """The rank that a process belongs to: its highest ancestor, or itself, with the same number in the same job."""
        key = (self.number(pid, names), self.job(pid, names))
        while True:
            stat = self.table.stats.get(pid)
            parent = stat.ppid if stat is not None else 0
            if parent <= 1 or (self.number(parent, names), self.job(parent, names)) != key:
                return pid
            pid = parent

    def python_of(self, pid: int, names: Names) -> int:
        """The Python of a rank that is started by way of a shell: of the topmost ones below, the one that did most."""
        key = (self.number(pid, names), self.job(pid, names))
        layer = [pid]
        for _ in range(8):
            pythons = [each for each in layer if is_python(each, self.table.stats[each].state)]
            if pythons:
                return max(pythons, key=lambda each: self.table.stats[each].cpu_s)
            layer = [
                below
                for each in layer
                for below in self.table.descendants(each)
                if self.table.stats[below].ppid == each
                and self.is_alive(below)
                and (self.number(below, names), self.job(below, names)) == key
            ]
            if not layer:
                break
        return pid


def find_ranks(pids: Iterable[int], node: str, *, view: View | None = None, may_be_lone: bool = True) -> Ranks:
    """The ranks that these processes are, belong to or have started, with their peers of the same job on this node.

    may_be_lone: a Python without a rank's environment is a training of one process.
    Raises NoRanks, also where they belong to several jobs.
    """
    view = view or View(ProcessTable.read())
    notes: list[str] = []
    roots = [pid for pid in (_process_of(pid, view, notes) for pid in pids) if pid]
    if not roots:
        raise NoRanks("; ".join(notes))
    tree = list(
        dict.fromkeys(pid for root in roots for pid in (root, *view.table.descendants(root, without=os.getpid())))
    )
    for names in CONVENTIONS:
        bearers = [pid for pid in tree if view.number(pid, names) is not None]
        if bearers:
            return _ranks_of(bearers, roots, names, view, node=node, notes=notes)
    if not may_be_lone:
        raise NoRanks("none is below its launcher")
    return _lone(roots, tree, view, node, notes)


def _process_of(pid: int, view: View, notes: list[str]) -> int:
    """The process that is meant; 0 where there is none."""
    if pid not in view.table.stats:
        status = read_status(pid)  # a thread's id has no entry in /proc's list, but its files are there
        if status is not None and status.tgid in view.table.stats and status.tgid != pid:
            notes.append(f"{pid} is a thread of process {status.tgid}")
            return status.tgid
        notes.append(f"there is no process {pid}")
        return 0
    if not view.is_alive(pid):
        notes.append(f"process {pid} is dead")
        return 0
    return pid


def _ranks_of(bearers: list[int], roots: list[int], names: Names, view: View, *, node: str, notes: list[str]) -> Ranks:
    tops = list(dict.fromkeys(view.topmost(pid, names) for pid in bearers))
    jobs = {view.job(pid, names) for pid in tops}
    if len(jobs) > 1:
        raise NoRanks(f"these are ranks of {len(jobs)} jobs: {_jobs_text(tops, names, view)}; name the pids of one")
    asked = set(tops)
    if any(jobs.pop()):
        tops = _with_peers(tops, names, view)
        if peers := [pid for pid in tops if pid not in asked]:
            notes.append(f"peers of the same job are looked at, too: {', '.join(map(str, peers[:8]))}")
    for root in roots:
        top = view.topmost(root, names) if view.number(root, names) is not None else root
        if top != root and top in tops:
            notes.append(f"process {root} is below rank {view.number(top, names)}, process {top}")
    found: dict[int, FoundRank] = {}
    for top in tops:
        number = view.number(top, names)
        assert number is not None
        pid = view.python_of(top, names)
        if number not in found:
            found[number] = _found(pid, number, names, view, node)
    return _complete([found[number] for number in sorted(found)], names, notes)


def _with_peers(tops: list[int], names: Names, view: View) -> list[int]:
    """These, and every other rank of their job that can be seen."""
    key = view.job(tops[0], names)
    known = {view.number(pid, names) for pid in tops}
    peers = []
    for pid in view.table.stats:
        if view.is_alive(pid) and view.number(pid, names) not in (None, *known) and view.job(pid, names) == key:
            peers.append(view.topmost(pid, names))
    return [*tops, *sorted(dict.fromkeys(peers))]


def _found(pid: int, number: int, names: Names, view: View, node: str) -> FoundRank:
    environ = view.environ(pid)
    local = environ.get(names.local_rank, "")
    rank = Rank(global_rank=number, local_rank=int(local) if local.isdigit() else number, pid=pid, node=node)
    return FoundRank(rank, view.table.stats[pid], environ)


def _complete(found: list[FoundRank], names: Names, notes: list[str]) -> Ranks:
    """What the ranks' environment says of those that are not there."""
    sizes = [environ[names.world_size] for _, _, environ in found if environ.get(names.world_size, "").isdigit()]
    world_size = max([int(size) for size in sizes] + [found[-1].rank.global_rank + 1])
    seen = {each.rank.global_rank for each in found}
    here: set[int] = set()
    for each in found:
        local_size = each.environ.get(names.local_world_size, "")
        if local_size.isdigit() and each.environ.get(names.local_rank, "").isdigit():
            first = each.rank.global_rank - each.rank.local_rank
            here.update(range(first, first + int(local_size)))
    missing = [number for number in range(world_size) if number not in seen]
    return Ranks(found, world_size, [n for n in missing if n in here], [n for n in missing if n not in here], notes)


def _lone(roots: list[int], tree: list[int], view: View, node: str, notes: list[str]) -> Ranks:
    """No number anywhere: a training of one process, if it is a Python at all."""
    unreadable = [pid for pid in roots if not view.environ(pid)]
    if unreadable and (why := refusal(unreadable[0])):
        raise NoRanks(why)
    if len(roots) > 1:
        raise NoRanks("; ".join([*notes, "none of these processes, and none below them, has a rank's environment"]))
    pythons = [pid for pid in tree if view.is_alive(pid) and is_python(pid, view.table.stats[pid].state)]
    if not pythons:
        said = f"process {roots[0]} ({view.table.stats[roots[0]].comm}) is no rank, and none is below it"
        raise NoRanks("; ".join([*notes, f"{said}: nothing there has RANK in its environment or runs Python"]))
    notes.append(f"process {pythons[0]} has no RANK: looked at as a world of one")
    rank = Rank(global_rank=0, local_rank=0, pid=pythons[0], node=node)
    found = FoundRank(rank, view.table.stats[pythons[0]], view.environ(pythons[0]))
    return Ranks([found], 1, [], [], notes)


def refusal(pid: int) -> str:
    """Why a process's environment may not be read, and the way out; empty where it may."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            file.read(1)
        return ""
    except PermissionError:
        pass
    except OSError:
        return ""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    whose = f"belongs to user {owner}" if owner != os.geteuid() else "forbids it"
    return (
        f"process {pid} {whose}: what it was started with cannot be read, so its ranks cannot be told; "
        f"as that user or as root: sudo guardctl diagnose --pid {pid}"
    )


def _jobs_text(tops: list[int], names: Names, view: View) -> str:
    groups: dict[tuple[str, ...], list[int]] = {}
    for pid in tops:
        groups.setdefault(view.job(pid, names), []).append(pid)
    return "; ".join(f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}" for pids in groups.values())


def hooks_of(found: list[FoundRank]) -> tuple[str, int] | None:
    """Where the boards of guarded ranks lie: (socket folder, attempt); None where they have no hooks."""
    for each in found:
        try:
            settings = json.loads(each.environ.get("GUARDRUN_HOOKS", ""))
            attempt = settings["attempt"]
            if attempt is None:
                count = int(each.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
                attempt = count + int(settings.get("first_attempt", 0))
            return str(settings["sockets"]), int(attempt)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


# Running jobs -------------------------------------------------------------------------------------------------------
# The trainings that run on this machine, for whoever does not know their pids.


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
