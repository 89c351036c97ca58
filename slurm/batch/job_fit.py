"""What of a job doesn't fit: with guardrun's own flags, with itself, with the partition it would run in. Pure.

Each remark is one sentence, and says what to do. None of them keeps the job from being submitted: Slurm has the last
word, and some clusters are not as others.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from guardrun.slurm.batch.script import SIGNAL, Given, JobWish, read_command
from guardrun.slurm.client.hostlist import HostlistError, parse_hostlist
from guardrun.slurm.client.nodes import SlurmNode, SlurmPartition, is_time, parse_time

# Command fit --------------------------------------------------------------------------------------------------------
# What of guardrun's own flags, behind `guardctl sbatch … --`, doesn't fit the job.


def remarks_on_command(wish: JobWish) -> list[str]:
    """One sentence each."""
    given = read_command(wish.command)
    if given.trouble:
        return [f"guardrun would not take what stands behind `--`: {given.trouble}"]
    found = [f"guardrun knows no flag {flag.partition('=')[0]}: the job would end at once" for flag in given.unknown]
    if not given.script:
        found.append("no script: what stands behind `--` is all flags")
    return [*found, *_counts(wish, given), *_ways(wish, given), *_names(wish, given)]


def _counts(wish: JobWish, given: Given) -> list[str]:
    """The script says how many, by the flags of guardctl sbatch; who says it again may mean something else."""
    found: list[str] = []
    most = given.nnodes.rpartition(":")[2]
    if given.nnodes and most != str(wish.nodes):
        found.append(
            f"--nnodes={given.nnodes} behind `--`, and --nodes {wish.nodes} (that train) before it: say --nodes {most}"
        )
    if given.spares and given.spares != str(wish.spares):
        found.append(f"--guard-spares={given.spares} behind `--`, and the job has {wish.spares}: say --spares instead")
    ranks = given.nproc_per_node
    if ranks and wish.ranks not in ("auto", ranks):
        found.append(f"--nproc-per-node={ranks} behind `--` is what counts, not the {wish.ranks} before it")
    return found


def _ways(wish: JobWish, given: Given) -> list[str]:
    """Flags by which several nodes would not be one job."""
    found: list[str] = []
    total = wish.nodes + wish.spares
    if given.is_standalone and total > 1:
        found.append(f"--standalone: each of {total} nodes would train for itself")
    if given.is_off and total > 1:
        found.append(
            "--guard-off: torchrun knows nothing of Slurm or of spares; each node would need a --rdzv-endpoint, and all"
            " would train"
        )
    if given.node_rank:
        found.append(f"--node-rank={given.node_rank} would be said to every node: under srun none is needed")
    return found


def _names(wish: JobWish, given: Given) -> list[str]:
    found: list[str] = []
    if given.run_id and wish.options.get("array"):
        found.append(
            f"--guard-run-id={given.run_id}: all tasks of the array would be one run, and all but the first be refused;"
            " leave it out, and each has a name of its own (slurm-JOB_TASK)"
        )
    found += [
        f"{text}: what stands behind `--` is taken word for word, variables stay as they are"
        for text in (f"--guard-dir={given.run_dir}", f"--guard-run-id={given.run_id}", f"--nnodes={given.nnodes}")
        if "$" in text
    ]
    return found


# Job fit ------------------------------------------------------------------------------------------------------------


SHORT_GRACE_S = 60.0
"""Less than that from a signal to the end is little for a checkpoint of any size."""
SIGNAL_S = 60
"""What --signal=NAME alone means (sbatch(1))."""

SIGNALS = frozenset(
    (
        "HUP",
        "INT",
        "QUIT",
        "ABRT",
        "KILL",
        "ALRM",
        "TERM",
        "USR1",
        "USR2",
        "URG",
        "CONT",
        "STOP",
        "TSTP",
        "TTIN",
        "TTOU",
    )
)
"""That sbatch knows by name; others only by number (22.05, tried)."""
LONGEST_SIGNAL_S = 65535
"""More is refused (sbatch(1))."""

_SIGNAL = re.compile(r"(?P<to>[BR]+:)?(?P<name>[A-Za-z0-9]+)(?:@(?P<seconds>\d+))?")
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")


class Habits(NamedTuple):
    """What guardrun does of itself: [preemption], where the job is submitted."""

    signals: Sequence[str] = ("USR1", "USR2")
    save_before_end_s: float = 120.0


def remarks_on(
    wish: JobWish,
    partition: SlurmPartition | None = None,
    nodes: Sequence[SlurmNode] = (),
    excluded: Sequence[str] = (),
    habits: Habits | None = None,
) -> list[str]:
    """What does not fit. partition, nodes: as Slurm has them, where it could be asked; excluded: by quarantine."""
    options, habits = wish.options, habits or Habits()
    found = [*remarks_on_command(wish), *_shape(wish, options), *_time(options, habits)]
    found += [*_signal(wish, options, habits), *_steps(wish, options), *_lists(options, excluded)]
    if partition is not None:
        mine = [node for node in nodes if partition.name in node.partitions]
        found += _partition(wish, options, partition, mine, excluded)
    return found


def _shape(wish: JobWish, options: Mapping[str, str | None]) -> list[str]:
    found: list[str] = []
    if wish.spares > wish.nodes:
        found.append(
            f"{wish.spares} spares for {wish.nodes} node(s) that train: more wait than work; is it the other way round?"
        )
    total = options.get("nodes")
    if total is not None and total != str(wish.nodes + wish.spares):
        found.append(
            f"--nodes={total} for sbatch, and guardrun takes {_sum(wish)}: say it by --nodes and --spares alone"
        )
    gpus, ranks = options.get("gpus-per-node"), read_command(wish.command).nproc_per_node or wish.ranks
    count = (gpus or "").rpartition(":")[2]
    if count.isdigit() and ranks.isdigit() and int(count) != int(ranks):
        found.append(
            f"{ranks} ranks a node, but {count} GPUs: --nproc-per-node and --gpus-per-node are the same in most jobs"
        )
    if options.get("exclusive", "") is None and not options.get("cpus-per-task"):
        found.append(
            "without --exclusive and --cpus-per-task the one task of a node may get a single CPU for all its ranks"
        )
    return found


def _time(options: Mapping[str, str | None], habits: Habits) -> list[str]:
    text = options.get("time") or ""
    if text and not is_time(text):
        return [f"--time={text}: expected minutes, H:M:S, D-H, D-H:M:S or UNLIMITED"]
    limit_s, before_s = parse_time(text), habits.save_before_end_s
    if limit_s is not None and limit_s < 2 * before_s:
        return [
            f"--time={text}: the ranks are asked to save {before_s:.0f} s before the end ([preemption]"
            " save_before_end_s), of a job so short after half of its time"
        ]
    return []


def _lists(options: Mapping[str, str | None], excluded: Sequence[str]) -> list[str]:
    """Nodes by name."""
    wanted = _hosts(options.get("nodelist"))
    clash = sorted({*_hosts(options.get("exclude")), *excluded}.intersection(wanted))
    return [f"--nodelist asks for {', '.join(clash)}, and it is left out: Slurm refuses such a job"] if clash else []


def _hosts(text: str | None) -> list[str]:
    try:
        return parse_hostlist(text or "")
    except HostlistError:
        return []


def _signal(wish: JobWish, options: Mapping[str, str | None], habits: Habits) -> list[str]:
    limit_s = parse_time(options.get("time") or "")
    wanted = options.get("signal", "")
    if wanted is None:
        if limit_s is None:
            return []
        return [
            "a time limit without --signal: guardrun asks Slurm for the end of the job, and saves before it, but where"
            " Slurm does not answer the job ends without a checkpoint"
        ]
    match = _SIGNAL.fullmatch(wanted or SIGNAL)
    if match is None:
        return [f"--signal={wanted}: expected NAME@SECONDS, as USR2@180"]
    found: list[str] = []
    if "B" in (match["to"] or ""):
        found.append(f"--signal={wanted} goes to the batch script alone, and not to guardrun: leave `B:` out")
    name = _signal_name(match["name"])
    if not _is_signal(match["name"]):
        return [*found, f"--signal={wanted}: sbatch knows no signal {match['name']}, and would refuse the job"]
    if name == "TERM":
        found.append(
            f"--signal={wanted}: where Slurm tells every process of a job (proctrack/linuxproc, pgid), TERM ends the"
            f" ranks before they have saved; {SIGNAL.partition('@')[0]} does not"
        )
    elif name not in map(_signal_name, habits.signals):
        found.append(
            f"--signal={wanted}: guardrun takes {' and '.join(habits.signals)} for a warning ([preemption] signals);"
            f" {name} is none, and may end the ranks"
        )
    return found + _signal_time(wanted, match["seconds"], limit_s)


def _signal_time(wanted: str, given: str | None, limit_s: float | None) -> list[str]:
    """given: the seconds, as they stand there."""
    seconds = SIGNAL_S if given is None else int(given)
    if seconds > LONGEST_SIGNAL_S:
        return [f"--signal={wanted}: at most {LONGEST_SIGNAL_S} s before the end; sbatch would refuse the job"]
    if seconds == 0:
        return [f"--signal={wanted}: with 0 s Slurm sends none, and the job ends without a checkpoint"]
    if limit_s is not None and seconds >= limit_s:
        return [f"--signal={wanted} comes {seconds} s before the end of a job of {limit_s:.0f} s: at its start"]
    if given is None:
        return [f"--signal={wanted} has no time: {seconds} s before the end is little for a checkpoint; say {SIGNAL}"]
    return [f"--signal={wanted}: {seconds} s may be too little for a checkpoint"] if seconds < SHORT_GRACE_S else []


def _is_signal(text: str) -> bool:
    """Whether sbatch takes it; names of any case, with SIG before them or not."""
    return (text.isdigit() and int(text) > 0) or _signal_name(text) in SIGNALS


def _signal_name(text: str) -> str:
    """`USR1`, of `SIGUSR1` and `10` alike."""
    if text.isdigit() and int(text) in set(signal.Signals):
        text = signal.Signals(int(text)).name
    return text.upper().removeprefix("SIG")


def _steps(wish: JobWish, options: Mapping[str, str | None]) -> list[str]:
    """Options that break what guardrun relies on."""
    found: list[str] = []
    tasks = options.get("ntasks-per-node")
    if tasks is not None and tasks != "1" and "ntasks-per-node" in options:
        found.append(f"--ntasks-per-node={tasks}: guardrun starts the ranks itself, one of it a node is needed")
    for name in ("gpus-per-task", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket"):
        if options.get(name):
            found.append(f"--{name}: the one task of a node is guardrun, for all its ranks; say --gpus-per-node")
    ntasks = options.get("ntasks") or ""
    if ntasks.isdigit() and int(ntasks) != wish.nodes + wish.spares:
        found.append(f"--ntasks={ntasks}: one task a node is needed, {wish.nodes + wish.spares} in all")
    if wish.spares and "no-kill" in options and options["no-kill"] != "":
        found.append("spares without --no-kill: the first node that fails ends the whole job, spares and all")
    if options.get("kill-on-bad-exit") not in (None, "0"):
        found.append("--kill-on-bad-exit: a node that guardrun leaves out would end the others")
    if "no-requeue" in options and options.get("requeue") == "":
        found.append("--requeue and --no-requeue: sbatch takes the last, which is --no-requeue; say one of them")
    if "no-requeue" in options or options.get("requeue", "") is None:
        found.append("--no-requeue: after a preemption, or when the head is lost, nobody starts the job again")
    if options.get("open-mode", "append") != "append":
        found.append("--open-mode is not append: each new start of the job throws the output so far away")
    return found


def _partition(
    wish: JobWish,
    options: Mapping[str, str | None],
    partition: SlurmPartition,
    nodes: Sequence[SlurmNode],
    excluded: Sequence[str],
) -> list[str]:
    found: list[str] = []
    total = wish.nodes + wish.spares
    size = len(nodes) or partition.node_count
    out = {*excluded, *_hosts(options.get("exclude"))}
    left = [node for node in nodes if node.name not in out]
    fit = [node for node in left if not node.is_drained and not node.is_down]
    name = partition.name
    if not partition.is_up:
        found.append(f"partition {name} is not up: the job will wait")
    if total > size:
        found.append(f"{_sum(wish)} nodes, and partition {name} has {size}: the job would never start")
    elif partition.max_nodes is not None and total > partition.max_nodes:
        found.append(f"{_sum(wish)} nodes, and partition {name} gives a job at most {partition.max_nodes}")
    elif nodes and total > len(left):
        quarantined = sum(node.name in excluded for node in nodes)
        more = size - len(left) - quarantined
        which = f"{quarantined} are quarantined" + (f", {more} more excluded" if more else "")
        found.append(
            f"{_sum(wish)} nodes, and of the {size} of partition {name} {which}: the job would wait until one is"
            " released (guardctl node list)"
        )
    elif nodes and total > len(fit):
        found.append(
            f"{_sum(wish)} nodes, and only {len(fit)} of partition {name} are in service now: the job will wait"
        )
    found += _times(options, partition)
    return found + _gpus(options, partition, left)


def _times(options: Mapping[str, str | None], partition: SlurmPartition) -> list[str]:
    found: list[str] = []
    limit_s = parse_time(options.get("time") or "")
    if limit_s is not None and partition.max_time_s is not None and limit_s > partition.max_time_s:
        found.append(f"--time={options['time']} is more than partition {partition.name} allows")
    if "REQUEUE" in partition.preempt_mode.upper() and partition.grace_s < SHORT_GRACE_S:
        found.append(
            f"jobs of partition {partition.name} may be preempted with {partition.grace_s:.0f} s of grace (GraceTime):"
            " that may be too little for a checkpoint, so save often"
        )
    return found


def _gpus(options: Mapping[str, str | None], partition: SlurmPartition, nodes: Sequence[SlurmNode]) -> list[str]:
    count = (options.get("gpus-per-node") or "").rpartition(":")[2]
    if not count.isdigit() or not nodes:
        return []
    most = max(sum(int(match[1]) for match in _GPUS.finditer(node.gres)) for node in nodes)
    if most >= int(count):
        return []
    return [f"--gpus-per-node={count}: no node of partition {partition.name} has more than {most}"]


def _sum(wish: JobWish) -> str:
    total = wish.nodes + wish.spares
    return f"{wish.nodes} + {wish.spares} spares = {total}" if wish.spares else str(total)
