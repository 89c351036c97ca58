"""`guardctl slurm`: a job as Slurm and guardrun see it together; prolog and epilog, which Slurm's scripts call."""

from __future__ import annotations

import argparse
import getpass
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guardrun.slurm.client.commands import Failure, Slurm
from guardrun.slurm.client.drain import is_ours
from guardrun.slurm.client.jobs import SlurmJob, parse_job, read_job
from guardrun.slurm.client.nodes import SlurmNode, read_nodes
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.status_reader import read_status
from guardrun.supervisor.cli.base.verb import (
    DEFAULT_DIR,
    NO,
    OK,
    Call,
    CtlError,
    Verb,
    guard_dir,
    read_config,
    read_run,
    this_node,
)
from guardrun.supervisor.cli.verbs.node import places_of
from guardrun.supervisor.health.quarantine_rules import counting, headline
from guardrun.supervisor.preflight.base.remark import plural
from guardrun.supervisor.quarantine.records import read_all
from guardrun.supervisor.report.elements.quantities import duration, iso_time
from guardrun.supervisor.rundir.run_directory import RunFile, list_runs

MARGIN_S = 120.0
"""A run's clock and Slurm's differ by no more."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--guard-config", metavar="FILE", help="as for guardrun")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    status = _add(actions, "status", "jobs of yours: nodes, spares, run, drains, quarantine", _status)
    status.add_argument(
        "job", metavar="JOB", nargs="?", default="", help="5, or 5_3 of an array (default: all of yours)"
    )
    _add(actions, "prolog", "for Slurm's Prolog: may a job start on this node? (69, 71: no)", _prolog)
    _add(actions, "epilog", "for Slurm's Epilog: end what a job has left on this node", _epilog)
    rescue = _add(actions, "rescue", "for a batch script: requeue its job if the run was cut short", _rescue)
    rescue.add_argument("run", metavar="RUN", help="the run's id")
    _add(actions, "scripts", "the folder of guardrun.sbatch, prolog.sh and epilog.sh", _scripts)


def _add(actions: Any, name: str, text: str, run: Callable[[Call], int]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    # As those of `guardctl slurm` itself: they may stand before or after the action.
    for flag in ("--guard-config", "--guard-dir"):
        parser.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="for programs")
    parser.set_defaults(run_action=run)
    return parser


def _run(call: Call) -> int:
    code: int = call.arguments.run_action(call)
    return code


def _prolog(call: Call) -> int:
    from guardrun.slurm.node_hooks import run_prolog

    return run_prolog(call.environ)


def _epilog(call: Call) -> int:
    from guardrun.slurm.node_hooks import run_epilog

    return run_epilog(call.environ)


def _rescue(call: Call) -> int:
    from guardrun.slurm.client.job_environment import SlurmEnvironmentError, read_slurm
    from guardrun.slurm.client.requeue import rescue_run

    try:
        here = read_slurm(call.environ)
    except SlurmEnvironmentError as error:
        raise CtlError(str(error)) from None
    if here is None:
        raise CtlError("this is no Slurm job")
    run_dir = guard_dir(call.arguments.guard_dir, call.environ, call.cwd) / call.arguments.run
    try:
        done = rescue_run(
            run_dir,
            here.job,
            here.restarts,
            Slurm(call.environ),
            time.time(),
            exclude=_left_out(run_dir, call.out.aside),
            silent=call.out.aside,
        )
    except OSError as error:
        raise CtlError(f"{run_dir}: {error.strerror}") from None
    if call.out.is_json:
        call.out.json({"requeued": done.is_done, "text": done.text})
    else:
        call.out.line(done.text)
    return OK if done.is_done else NO


def _left_out(run_dir: Path, print_line: Callable[[str], object]) -> list[str]:
    """Nodes that a run had come to do without; none where its journal cannot be read, or replayed."""
    from guardrun.supervisor.rundir.journal import describe_versions, recover

    try:
        engine, result = recover(run_dir)
    except OSError:
        return []
    if result.is_other:
        print_line(f"{describe_versions(result.other_version)}: which nodes the run did without is not known")
    state = engine.state
    return sorted({*state.nodes.isolated, *(state.fleet.gone if state.fleet is not None else ())})


def _scripts(call: Call) -> int:
    import guardrun.slurm

    folder = str(Path(guardrun.slurm.__file__ or "").parent)
    if call.out.is_json:
        call.out.json({"folder": folder})
    else:
        call.out.line(folder)
    return OK


# Status ----------------------------------------------------------------------------------------------------------


def _status(call: Call) -> int:
    slurm = Slurm(call.environ)
    jobs = [_job(call.arguments.job, slurm)] if call.arguments.job else _own_jobs(slurm)
    nodes = read_nodes(slurm)
    states = {} if isinstance(nodes, Failure) else {node.name: node for node in nodes}
    config = read_config(call)
    known = read_all(places_of(config, call, this_node(call.environ)))
    now_wall_s = time.time()
    held = {
        node: headline(isolations)
        for node, record in sorted(known.records.items())
        if (isolations := counting(record, now_wall_s, os.getuid()))
    }
    drained = {name: node.reason for name, node in states.items() if node.is_drained and is_ours(node.reason)}
    data = {
        "jobs": [_job_data(job, call, states, held, now_wall_s) for job in jobs],
        "drained_by_guardrun": drained,
        "quarantined": held,
        "troubles": [*known.troubles, *([nodes.text] if isinstance(nodes, Failure) else [])],
    }
    if call.out.is_json:
        call.out.json(data)
    else:
        _print(call.out, data)
    return OK


def _job(name: str, slurm: Slurm) -> SlurmJob:
    job = read_job(name, slurm)
    if isinstance(job, Failure):
        raise CtlError(job.text)
    return job


def _own_jobs(slurm: Slurm) -> list[SlurmJob]:
    """This user's jobs that are not over. Raises CtlError."""
    answer = slurm.run("scontrol", "show", "job", "-o")
    if isinstance(answer, Failure):
        raise CtlError(answer.text)
    jobs = [parse_job(line) for line in answer.splitlines() if line.startswith("JobId=")]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return [job for job in jobs if job.user == user and not job.is_over]


def _job_data(
    job: SlurmJob, call: Call, states: dict[str, SlurmNode], held: dict[str, str], now_wall_s: float
) -> dict[str, Any]:
    run_dir, run = _find_run(job, call)
    nodes = [
        {
            "node": name,
            "state": "+".join(sorted(states[name].states)) if name in states else "",
            "reason": states[name].reason if name in states else "",
            "drained_by_guardrun": name in states and states[name].is_drained and is_ours(states[name].reason),
            "quarantined": held.get(name, ""),
        }
        for name in job.nodes
    ]
    return {
        "job": job.job,
        "name": job.name,
        "user": job.user,
        "state": job.state,
        "reason": job.reason,
        "partition": job.partition,
        "restarts": job.restarts,
        "nodes": nodes,
        "excluded": job.excluded,
        "may_requeue": job.may_requeue and job.is_batch,
        "started": iso_time(job.start_wall_s) if job.start_wall_s else None,
        "ends": iso_time(job.end_wall_s) if job.end_wall_s else None,
        "left_s": round(job.end_wall_s - now_wall_s, 1) if job.end_wall_s and job.state == "RUNNING" else None,
        "preempted": job.preempt_wall_s is not None,
        "run": _run_data(run_dir, run, call) if run_dir is not None and run is not None else None,
    }


def _find_run(job: SlurmJob, call: Call) -> tuple[Path | None, RunFile | None]:
    """guardrun's run in this job: the newest that says so.

    Else, of runs that say nothing of a job, by the name that guardrun.sbatch gives it, and the newest of its time and
    nodes.
    """
    folders = [guard_dir(call.arguments.guard_dir, call.environ, call.cwd)]
    if job.work_dir:
        folders.append(Path(job.work_dir) / DEFAULT_DIR)
    named = {f"slurm-{job.job}", job.job, f"{job.name}-{job.job}"}
    for folder in dict.fromkeys(folders):
        runs: list[tuple[Path, RunFile]] = []
        for path in list_runs(folder):
            try:
                runs.append((path, read_run(path)))
            except CtlError:
                continue
        for path, run in runs:
            if run.slurm_job == job.job:
                return path, run
        runs = [(path, run) for path, run in runs if not run.slurm_job]
        for path, run in runs:
            if run.run_id in named:
                return path, run
        for path, run in runs:
            is_then = job.start_wall_s is not None and run.created_wall_s >= job.start_wall_s - MARGIN_S
            if is_then and run.node in job.nodes and run.user == job.user:
                return path, run
    return None, None


def _run_data(run_dir: Path, run: RunFile, call: Call) -> dict[str, Any]:
    status = read_status(run_dir, this_node(call.environ))
    incidents = status.get("incidents") or []
    plan = run.fleet.plan if run.fleet is not None else None
    return {
        "run_id": run.run_id,
        "run_dir": str(run_dir),
        "state": status["state"],
        "attempt": status.get("attempt"),
        "world_size": status.get("world_size"),
        "spares": plan.spares if plan is not None else 0,
        "training_on": sorted({rank["node"] for rank in status.get("ranks", []) if rank.get("node")}),
        "incidents": len(incidents),
        "last_incident": incidents[-1] if incidents else None,
    }


def _print(out: Output, data: dict[str, Any]) -> None:
    for job in data["jobs"]:
        _print_job(out, job)
    if not data["jobs"]:
        out.line("no job of yours is running or waiting")
    for heading, table in (("Drained by guardrun", "drained_by_guardrun"), ("Quarantined", "quarantined")):
        if data[table]:
            out.line()
            out.line(heading, "bold")
            for node, why in data[table].items():
                out.line(f"  {node}: {why}")
    for trouble in data["troubles"]:
        out.line(trouble, "yellow")


def _print_job(out: Output, job: dict[str, Any]) -> None:
    facts = [
        job["state"] + (f" ({job['reason']})" if job["reason"] else ""),
        f"partition {job['partition']}",
        f"{duration(job['left_s'])} left" if job["left_s"] is not None and job["left_s"] > 0 else "",
        "being preempted" if job["preempted"] else "",
        f"started again {times(job['restarts'])}" if job["restarts"] else "",
        "" if job["may_requeue"] else "cannot start again by itself",
        f"without {job['excluded']}" if job["excluded"] else "",
    ]
    out.line(f"job {job['job']} · {job['name']} · " + " · ".join(fact for fact in facts if fact), "bold")
    is_live = job["run"] is not None and job["run"]["state"] not in ("ended", "unfinished")
    training = set(job["run"]["training_on"]) if is_live else set()
    rows = [
        [
            node["node"],
            node["state"],
            ("training" if node["node"] in training else "spare or left out") if training else "",
            "; ".join(text for text in (node["reason"], node["quarantined"]) if text),
        ]
        for node in job["nodes"]
    ]
    if rows:
        out.table(("Node", "Slurm", "guardrun", "Why"), rows)
    run = job["run"]
    if run is None:
        out.line("no run of guardrun's found (--guard-dir says where they are)", "dim")
        return
    counts = [plural(run["incidents"], "incident"), *([plural(run["spares"], "spare")] if run["spares"] else [])]
    out.line(f"run {run['run_id']}: {run['state']}, attempt {run['attempt']}, {', '.join(counts)}")
    if run["last_incident"]:
        out.line(f"  last: {run['last_incident'].get('summary', '')}")


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


VERB = Verb("slurm", "Slurm: a job's nodes, spares, drains and run; prolog and epilog", _add_arguments, _run)
