"""`guardctl sbatch`: a batch script for a job under guardrun, printed, written or submitted."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from guardrun.launcher.creation.run_creation import user_name
from guardrun.slurm.batch.job_fit import Habits, remarks_on
from guardrun.slurm.batch.missing_files import remarks_on_files
from guardrun.slurm.batch.script import SIGNAL, JobWish, ScriptError, read_command, read_template, render
from guardrun.slurm.client.commands import Failure, Slurm, clean_for_submission
from guardrun.slurm.client.nodes import SlurmNode, SlurmPartition, choose_partition, read_nodes, read_partitions
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, read_config, this_node, write_named
from guardrun.supervisor.cli.verbs.node import places_of
from guardrun.supervisor.health.quarantine_rules import counting
from guardrun.supervisor.quarantine.records import read_all

_PASSED_ON = ("time", "partition", "account", "qos", "array", "gpus-per-node", "cpus-per-task", "output")
"""Options of guardctl that are sbatch's own, word for word."""


class _Cluster(NamedTuple):
    """What Slurm says of where the job would run; nothing where it does not answer."""

    partition: SlurmPartition | None
    nodes: list[SlurmNode]
    trouble: str


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--nodes", type=int, default=1, metavar="N", help="that train (default: 1)")
    add("--spares", type=int, default=0, metavar="K", help="nodes beside those, which wait to take a bad one's place")
    add(
        "--nproc-per-node",
        default="",
        metavar="R",
        help="ranks a node (default: as many as GPUs, else torchrun's auto)",
    )
    add("--gpus-per-node", metavar="G")
    add("--cpus-per-task", metavar="C", help="CPUs of a node's ranks together; also takes --exclusive out")
    add("--time", metavar="T", help="as sbatch's (default: the partition's)")
    add(
        "--signal",
        default=SIGNAL,
        metavar="S@T",
        help=f"before the end of the time; none: no signal (default: {SIGNAL})",
    )
    add("--partition", metavar="P")
    add("--account", metavar="A")
    add("--qos", metavar="Q")
    add("--array", metavar="TASKS")
    add("--job-name", metavar="NAME", help="default: the script's")
    add("--output", metavar="FILE", help="as sbatch's (default: NAME-JOB.out)")
    add("--no-requeue", action="store_true", help="a job that was preempted does not start again")
    add("--exclude", default="", metavar="NODES", help="beside those that are quarantined")
    add("--sbatch", action="append", default=[], metavar="OPTION", help="one more of sbatch's, as --sbatch=--comment=x")
    add("--guard-config", metavar="FILE", help="as for guardrun")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--submit", action="store_true", help="submit it")
    where.add_argument("--write", metavar="FILE", help="write it there (default: print it)")
    add("command", nargs="+", metavar="SCRIPT", help="after `--`: more of guardrun's flags, the script, its arguments")


def _run(call: Call) -> int:
    arguments = call.arguments
    slurm = Slurm(clean_for_submission(call.environ))
    cluster = _ask(slurm, arguments.partition or "")
    quarantined, troubles = _quarantined(call, cluster)
    wish = _wish(call, quarantined)
    try:
        script = render(wish, read_template())
    except ScriptError as error:
        raise CtlError(str(error)) from None
    table = read_config(call).preemption
    habits = Habits(tuple(table.signals), table.save_before_end_s)
    remarks = [
        *remarks_on(wish, cluster.partition, cluster.nodes, quarantined, habits),
        *remarks_on_files(wish, call.cwd, user_name()),
        *troubles,
    ]
    if cluster.trouble:
        remarks.append(f"Slurm was not asked whether the job fits: {cluster.trouble}")
    if not call.out.is_json:
        for remark in remarks:
            # Beside the script, which may go into a file by the shell.
            call.out.warn(remark)
    job = ""
    if arguments.submit:
        job = _submit(slurm, script)
    elif arguments.write:
        write_named(call.cwd / arguments.write, script.encode(), 0o777)
    _print_outcome(call, script, job, remarks, quarantined)
    return OK


def _wish(call: Call, quarantined: list[str]) -> JobWish:
    arguments = call.arguments
    if arguments.nodes < 1 or arguments.spares < 0:
        raise CtlError("--nodes must be at least 1, and --spares at least 0")
    options: dict[str, str | None] = {"time": None}
    for name in _PASSED_ON:
        if value := getattr(arguments, name.replace("-", "_")):
            options[name] = value
    if arguments.array and not arguments.output:
        options["output"] = "%x-%A_%a.out"
    if arguments.cpus_per_task:
        options["exclusive"] = None
    options["signal"] = None if arguments.signal == "none" else arguments.signal
    if arguments.no_requeue:
        options |= {"requeue": None, "no-requeue": ""}
    if exclude := ",".join([one for one in (arguments.exclude, *quarantined) if one]):
        options["exclude"] = exclude
    for option in arguments.sbatch:
        if not option.startswith("--") or not option[2:]:
            raise CtlError(
                f"--sbatch {option}: expected an option of sbatch's in its long form, as --sbatch=--comment=x"
            )
        name, _, value = option[2:].partition("=")
        # What is quarantined stays out.
        options[name] = f"{options[name]},{value}" if name == "exclude" and options.get(name) else value
    count = (arguments.gpus_per_node or "").rpartition(":")[2]
    return JobWish(
        command=tuple(arguments.command),
        nodes=arguments.nodes,
        spares=arguments.spares,
        ranks=arguments.nproc_per_node or (count if count.isdecimal() else "auto"),
        name=arguments.job_name or _script_name(arguments.command),
        guardrun=_guardrun(),
        options=options,
    )


def _script_name(command: list[str]) -> str:
    """The script's name without its ending; flags of guardrun may stand before it."""
    return Path(read_command(command).script).stem or "train"


def _guardrun() -> str:
    """The guardrun beside this guardctl: a job has its own PATH."""
    beside = Path(sys.executable).with_name("guardrun")
    return str(beside) if beside.exists() else "guardrun"


def _ask(slurm: Slurm, partition: str) -> _Cluster:
    partitions = read_partitions(slurm)
    if isinstance(partitions, Failure):
        return _Cluster(None, [], partitions.text)
    chosen = choose_partition(partitions, partition.partition(",")[0])  # of several the first stands for all
    if isinstance(chosen, Failure):
        return _Cluster(None, [], chosen.text)
    nodes = read_nodes(slurm)
    return _Cluster(chosen, [] if isinstance(nodes, Failure) else nodes, "")


def _quarantined(call: Call, cluster: _Cluster) -> tuple[list[str], list[str]]:
    """Nodes that the job is not to get, and what was in doubt. Slurm takes no name that it does not know."""
    config = read_config(call)
    known = read_all(places_of(config, call, this_node(call.environ)))
    now_wall_s = time.time()
    held = sorted(node for node, record in known.records.items() if counting(record, now_wall_s, os.getuid()))
    names = {node.name for node in cluster.nodes}
    return [node for node in held if not names or node in names], known.troubles


def _submit(slurm: Slurm, script: str) -> str:
    """Submit by standard input, from the folder that the user is in; the job's id."""
    answer = slurm.run("sbatch", "--parsable", stdin=script)
    if isinstance(answer, Failure):
        raise CtlError(f"the job was not submitted: {answer.text}")
    return answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""


def _print_outcome(call: Call, script: str, job: str, remarks: list[str], quarantined: list[str]) -> None:
    arguments, out = call.arguments, call.out
    if out.is_json:
        written = str(call.cwd / arguments.write) if arguments.write else ""
        out.json({"script": script, "job": job, "path": written, "warnings": remarks, "excluded": quarantined})
        return
    if job:
        out.line(f"submitted job {job}" + (f", without {', '.join(quarantined)} (quarantined)" if quarantined else ""))
    elif arguments.write:
        out.line(f"written to {arguments.write}; submit it with sbatch {arguments.write}")
    else:
        sys.stdout.write(script)


VERB = Verb(
    "sbatch", "a Slurm batch script for a job under guardrun: printed, written or submitted", _add_arguments, _run
)
