"""`guardctl diagnose`: what holds a job up, or how it ended; guarded or not, live or over. Changes nothing."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import NamedTuple

import msgspec

from guardrun.supervisor.base.printable import make_printable
from guardrun.supervisor.cli.base.verb import (
    LATEST,
    NO,
    OK,
    USAGE,
    Call,
    CtlError,
    Verb,
    find_run,
    guard_dir,
    is_alive,
    named_run,
    read_run,
    seconds_up_to,
    this_node,
)
from guardrun.supervisor.cli.views.diagnosis_view import print_diagnosis
from guardrun.supervisor.client.supervisor_client import Unreachable
from guardrun.supervisor.collect.host.process_table import processes_with_marker
from guardrun.supervisor.collect.host.procfs import read_boot_id
from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.diagnose.hang_finding import NOBODY, Absent, observe
from guardrun.supervisor.diagnose.next_steps import next_steps, on_node, tell_unseen
from guardrun.supervisor.diagnose.past_run import Left, conclude_past
from guardrun.supervisor.diagnose.rank_processes import Job, NoRanks, Ranks, find_jobs, find_ranks
from guardrun.supervisor.diagnose.scene import DirectLooker, Glance, Look, NotUnderstood, by_supervisor
from guardrun.supervisor.diagnose.verdict import conclude, conclude_phase, make_case, name_hand_changes
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.report.run_record import read_incidents, short_incident
from guardrun.supervisor.rundir.run_directory import RunFile, list_runs

STUCK, FELL = 3, 4
"""Exit codes: something holds the job up, or seems to; a rank fell, or the run ended badly."""
EXIT_CODES = {
    an.HEALTHY: OK,
    an.STARTING: OK,
    an.FINISHED: OK,
    an.SUSPICIOUS: STUCK,
    an.HANG: STUCK,
    an.CRASHED: FELL,
    an.UNKNOWN: NO,
}
GAP_S = 3.0
MAX_GAP_S = 600.0


class DiagnosisResult(NamedTuple):
    """An answer, and what its stacks are printed from."""

    diagnosis: an.Diagnosis
    looks: list[RankLook]


def _pid(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"expected a process id, not {text!r}")
    return int(text)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="a run's id or its folder (default: the newest that is alive)"
    )
    parser.add_argument(
        "--pid",
        metavar="PID",
        type=_pid,
        nargs="+",
        action="extend",
        help="instead of a run: ranks, or a launcher of any kind (torchrun, mpirun, slurmstepd)",
    )
    parser.add_argument(
        "--gap",
        metavar="SECONDS",
        type=seconds_up_to(MAX_GAP_S),
        default=GAP_S,
        help=f"between two looks (default: {GAP_S:g})",
    )
    parser.add_argument("--full", action="store_true", help="library frames too")


def _run(call: Call) -> int:
    if call.arguments.run is not None and call.arguments.pid:
        call.out.error("diagnose: RUN or --pid, not both")
        return USAGE
    told = _processes(call) if call.arguments.pid else _named(call) if call.arguments.run else _newest(call)
    if call.out.is_json:
        call.out.json(make_printable(msgspec.to_builtins(told.diagnosis, str_keys=True)))
    else:
        print_diagnosis(call.out, told.diagnosis, told.looks, call.arguments.full)
    return EXIT_CODES[told.diagnosis.verdict]


# Which ---------------------------------------------------------------------------------------------------


def _named(call: Call) -> DiagnosisResult:
    return diagnose_run(call, named_run(call))


def _newest(call: Call) -> DiagnosisResult:
    """The newest run that is alive, or that answers; else what else trains here is named; else the newest run.

    Whether a run that another node leads is alive cannot be seen from here: it is asked, or looked at.
    """
    directory, node = guard_dir(call.arguments.guard_dir, call.environ, call.cwd), this_node(call.environ)
    runs = list_runs(directory)
    unseen: dict[Path, _Unseen] = {}
    for run_dir in runs:
        try:
            run = read_run(run_dir)
        except CtlError:
            continue
        alive = is_alive(run, node)
        if alive:
            return diagnose_run(call, run_dir.resolve())
        if alive is None and not _is_ended(run_dir):
            try:
                return diagnose_run(call, run_dir.resolve())
            except CtlError as error:
                unseen[run_dir.resolve()] = _Unseen(run.node, error)
    jobs = find_jobs()
    if jobs:
        raise CtlError(_choices(jobs, directory, runs, unseen))
    run_dir = find_run(LATEST, directory, call.cwd)
    if run_dir in unseen:
        raise unseen[run_dir].error
    return diagnose_run(call, run_dir)


class _Unseen(NamedTuple):
    """A run of which it cannot be seen from here whether it is alive."""

    node: str
    """Who leads it."""
    error: CtlError


def _choices(jobs: list[Job], directory: Path, runs: list[Path], unseen: dict[Path, _Unseen]) -> str:
    answers = "answers from here" if unseen else "is alive"
    lines = [f"no run in {directory} {answers}; say which of these is meant:"]
    for job in jobs[:16]:
        ranks = f"{job.ranks} of {job.world_size} ranks" if str(job.ranks) != job.world_size else f"{job.ranks} ranks"
        guarded = f", guardrun's {job.run_id}" if job.run_id else ""
        lines.append(f"  guardctl diagnose --pid {job.pid}    {ranks}{guarded}: {job.command}")
    if runs:
        run = unseen.get(runs[0].resolve())
        what = f"to be asked on {run.node}, which leads it" if run else "which is over"
        lines.append(f"  guardctl diagnose {runs[0].name}    the newest run here, {what}")
    return "\n".join(lines)


def _is_ended(run_dir: Path) -> bool:
    return (run_dir / "summary.json").is_file()


# A guarded run -------------------------------------------------------------------------------------------


def diagnose_run(call: Call, run_dir: Path) -> DiagnosisResult:
    """The diagnosis of one run, live or over. Of the command line `gap` is read. Raises CtlError."""
    run = read_run(run_dir)
    alive = is_alive(run, this_node(call.environ))
    if alive is False or (alive is None and _is_ended(run_dir)):
        return _past(run_dir, run)
    try:
        return _guarded(call, run_dir, lambda: by_supervisor(run, run_dir), source="supervisor")
    except (Unreachable, NotUnderstood) as error:
        if alive:
            return _without_supervisor(call, run_dir, run, [run.launcher_pid], str(error))
        jobs = [job for job in find_jobs() if job.run_id == run.run_id]
        if not jobs:
            raise CtlError(f"run {run.run_id} is on node {run.node}: run guardctl diagnose there ({error})") from None
        return _without_head(call, run_dir, run, jobs, str(error))


def _past(run_dir: Path, run: RunFile) -> DiagnosisResult:
    left = Left(has_rebooted=bool(run.boot_id and read_boot_id() and run.boot_id != read_boot_id()))
    if not left.has_rebooted and run.node == socket.gethostname():
        left.alive = [pid for pid, _ in processes_with_marker(run.token)]
    diagnosis = conclude_past(run_dir, run, left)
    diagnosis.next = next_steps(diagnosis, run=run, is_held=False)
    return DiagnosisResult(diagnosis, [])


def _without_supervisor(call: Call, run_dir: Path, run: RunFile, pids: list[int], why: str) -> DiagnosisResult:
    """Nobody answers, but ranks live here: look at them directly. pids: they, or their launcher."""
    try:
        ranks = find_ranks(pids, this_node(call.environ), may_be_lone=False)
    except NoRanks as error:
        raise CtlError(f"run {run.run_id}: {why}; and no rank of it is alive ({error})") from None
    looker = DirectLooker(ranks.found, world_size=ranks.world_size, run=run)
    try:
        told = _guarded(call, run_dir, looker.look, source="guardctl", absent=_absent(ranks))
    finally:
        looker.close()
    told.diagnosis.unseen.insert(0, an.Unseen(what="supervisor", why=f"{why}: guardctl has looked itself"))
    return told


def _without_head(call: Call, run_dir: Path, run: RunFile, jobs: list[Job], why: str) -> DiagnosisResult:
    """On a node that does not lead, where the head does not answer: look at the ranks that are here."""
    here = msgspec.structs.replace(run, clock_base_s=0.0, clock_mono_s=0.0)  # what it has is of the head's clock
    told = _without_supervisor(call, run_dir, here, [job.pid for job in jobs], f"{run.node} leads the run ({why})")
    steps = [on_node(one, run.node) if one.command[0] == "guardctl" else one for one in told.diagnosis.next]
    told.diagnosis.next = [step for step in steps if step is not None]  # guardctl's: its supervisor is asked
    return told


def _guarded(call: Call, run_dir: Path, look: Look, *, source: str, absent: Absent = NOBODY) -> DiagnosisResult:
    run = read_run(run_dir)
    seen = observe(look, call.arguments.gap)
    incidents = read_incidents(run_dir)
    state = seen[-1].state
    target = an.Target(
        kind="run",
        source=source,
        node=run.node,
        world_size=state.world_size,
        run_id=run.run_id,
        run_dir=str(run_dir),
        attempt=state.attempt.number if state.attempt is not None else None,
    )
    if state.phase is Phase.ENDED and _is_ended(run_dir):
        return _past(run_dir, run)
    told = _concluded(target, seen, absent, incidents)
    told.diagnosis.incidents = [short_incident(record) for record in incidents]
    name_hand_changes(told.diagnosis, state)
    is_held = state.is_held or not state.settings.act
    told.diagnosis.next += next_steps(told.diagnosis, run=run, is_held=is_held)
    return told


def _concluded(
    target: an.Target, seen: list[Glance], absent: Absent, incidents: list[dict[str, object]]
) -> DiagnosisResult:
    """The last two looks judged, or, where no ranks run, what the supervisor says of the moment."""
    last = seen[-1]
    if len(seen) < 2 or last.state.phase is not Phase.RUNNING or last.state.attempt is None:
        return DiagnosisResult(conclude_phase(target, last, incidents), [])
    case = make_case(target, seen, absent, incidents)
    diagnosis = conclude(case)
    tell_unseen(diagnosis, seen, absent)
    return DiagnosisResult(diagnosis, case.looks)


# Processes -----------------------------------------------------------------------------------------------


def _processes(call: Call) -> DiagnosisResult:
    pids = list(dict.fromkeys(call.arguments.pid))
    node = this_node(call.environ)
    try:
        ranks = find_ranks(pids, node)
    except NoRanks as error:
        raise CtlError(str(error)) from None
    looker = DirectLooker(ranks.found, world_size=ranks.world_size)
    target = an.Target(kind="processes", source="guardctl", node=node, world_size=ranks.world_size, pids=pids)
    environ = ranks.found[0].environ
    target.run_id = environ.get("GUARDRUN_RUN_ID") or None
    try:
        seen = observe(looker.look, call.arguments.gap)
    finally:
        looker.close()
    if len(seen) < 2:
        raise CtlError(f"every rank below {', '.join(map(str, pids))} ended before it could be looked at twice")
    told = _concluded(target, seen, _absent(ranks), [])
    told.diagnosis.unseen += [an.Unseen(what="--pid", why=note) for note in ranks.notes]
    told.diagnosis.next += next_steps(told.diagnosis, run=None, is_held=True)
    return told


def _absent(ranks: Ranks) -> Absent:
    return Absent(tuple(ranks.elsewhere), tuple(ranks.not_alive))


VERB = Verb("diagnose", "what holds a job up: a run, live or over, or processes of any launcher", _add_arguments, _run)
