"""What Slurm starts on a node before and after each job: the prolog and the epilog. Told in the node's history.

Prolog: is the node quarantined, and are its devices fit for any run? One that fails drains the node and puts the job
back into the queue: right where no job should run there, and far too much for anything else. So it refuses a
quarantined node, and one whose quick pre-flight refuses (devices that are lost or unusable); whatever else happens,
guardrun's own failure above all, lets the job start. It has seconds, and what may hang (drivers, shared folders) hangs
in a process that nobody waits for.

Epilog: what is left of a job of guardrun's is found, ended and told; it never fails. Slurm ends a job's processes by
itself where it tracks them well (proctrack/cgroup); elsewhere some escape. Ended is only what bears both marks in the
environment it was started with, guardrun's own and this job's number, and belongs to the job's user: never another
job's, nor what a person has started on the node.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from guardrun.launcher.base.terminal_lines import NOT_FIT, QUARANTINED
from guardrun.launcher.run.preflight import CODE
from guardrun.slurm.client.commands import Slurm
from guardrun.slurm.client.drain import REASON_PREFIX, drain
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.node_state import SYSTEM_FOLDER
from guardrun.supervisor.client.agent_client import RefusedError, Unreachable, ask
from guardrun.supervisor.collect.host.process_table import (
    MARK_NAME,
    ProcessTable,
    end_processes,
    parse_environ,
    read_environ,
)
from guardrun.supervisor.collect.host.procfs import read_cmdline
from guardrun.supervisor.config import Config, ConfigError, load_config
from guardrun.supervisor.health.quarantine_rules import headline
from guardrun.supervisor.preflight.base.remark import Refusals
from guardrun.supervisor.quarantine.record_places import find_places, names_here
from guardrun.supervisor.quarantine.records import read_holding
from guardrun.systemd.journal import Journal

AGENT_PATIENCE_S = 1.0

CHECKS_S = 6.0
"""For the checks' process: Python's start, and the two seconds that the checks have together."""
SLURM_S = 8.0
PROLOG = "prolog"
ROOT = Path("/")
"""Never the job's folder: its user's configuration is not for root to read."""

SWEEP_S = 10.0
SWEEP_ROUND_S = 2.0
EPILOG = "epilog"


def log_line(part: str, text: str, level: str = "info", **fields: str) -> None:
    """One line for whoever reads logs; slurmd keeps a script's stderr where it is configured to."""
    try:
        sys.stderr.write(f"guardrun {part}: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass
    journal = Journal(f"guardrun-{part}")
    journal.send(text, level, {f"GUARDRUN_{name.upper()}": value for name, value in fields.items()})
    journal.close()


def note(job: str, name: str, text: str, data: dict[str, Any] | None = None) -> str:
    """Put a line into the node's history, where an agent keeps one; why it could not, empty where it could."""
    arguments = {"subject": f"slurm:{job}", "name": name, "text": text, "data": data or {}}
    try:
        ask("note", arguments, timeout_s=AGENT_PATIENCE_S)
    except (Unreachable, RefusedError, OSError) as error:
        return str(error)
    return ""


class Refusal(NamedTuple):
    """Why no job should start here."""

    text: str
    exit_status: int


def run_prolog(environ: Mapping[str, str]) -> int:
    """Answer the exit status: 0, or QUARANTINED or NOT_FIT, which prolog.sh turns into a prolog that fails."""
    job = environ.get("SLURM_JOB_ID", "")
    try:
        refusal = find_refusal(environ)
    except Exception as error:  # a broken guardrun must not take the cluster down
        log_line(PROLOG, f"not done, the job starts all the same: {type(error).__name__}: {error}", "warning")
        return 0
    if refusal is None:
        return 0
    node = names_here(environ)[0]
    log_line(PROLOG, f"job {job} may not start on {node}: {refusal.text}", "error", job=job)
    with suppress(Exception):
        # Slurm would drain it, too, but only say "Prolog error".
        if "SLURMD_NODENAME" in environ:
            log_line(PROLOG, drain(node, f"{REASON_PREFIX} {refusal.text}"[:240], Slurm(environ, SLURM_S)).text)
        note(job, "prolog_refused", f"Slurm job {job} was not started: {refusal.text}")
    return refusal.exit_status


def find_refusal(environ: Mapping[str, str]) -> Refusal | None:
    """Why no job should start on this node; None: it may."""
    try:
        config = load_config(None, {}, _own_settings(environ), ROOT)
    except ConfigError as error:
        log_line(
            PROLOG, f"the configuration could not be read, the defaults hold: {'; '.join(error.problems)}", "warning"
        )
        config = Config()
    for node in names_here(environ):
        places = find_places(config.node.state_dir or str(SYSTEM_FOLDER), config.node.shared_dir, environ, node)
        isolations, troubles = read_holding(places, node, time.time())
        for trouble in troubles:
            log_line(PROLOG, trouble, "warning")
        if isolations:
            return Refusal(f"quarantined, {headline(isolations)}", QUARANTINED)
    if config.preflight.level == "off":
        return None
    refused = ask_checks()
    return Refusal("; ".join(refused), NOT_FIT) if refused else None


def _own_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Only what Slurm's own daemon was started with names settings of guardrun's: never a job's environment."""
    return {name: value for name, value in environ.items() if not name.startswith("SLURM")}


def ask_checks(timeout_s: float = CHECKS_S) -> list[str]:
    """What the quick checks that need to know nothing of a run refuse; nothing where they do not answer in time."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "guardrun-preflight"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        line = _read_line(process.stdout, time.monotonic() + timeout_s)
        return list(msgspec.json.decode(line, type=known_type(Refusals)).refused) if line else []
    except msgspec.DecodeError:
        return []
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):  # stuck in a driver: nobody waits for it
            process.wait(0.5)


def _read_line(source: IO[bytes], deadline_s: float) -> bytes:
    """The first line; empty where none comes in time."""
    data = b""
    while b"\n" not in data:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([source], [], [], left_s)[0]:
            log_line(PROLOG, "the checks did not answer in time: the job starts without their word", "warning")
            return b""
        chunk = source.read1(65536) if hasattr(source, "read1") else source.read(1)
        if not chunk:
            return b""
        data += chunk
    return data.partition(b"\n")[0]


class Left(NamedTuple):
    """A process of a job that is over."""

    pid: int
    start: int
    command: str


class Swept(NamedTuple):
    """What the epilog found."""

    ended: list[Left]
    remaining: list[Left]
    """Not even SIGKILL ended these."""


def run_epilog(environ: Mapping[str, str]) -> int:
    """Answer 0, always: an epilog that fails drains its node."""
    job, user = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_UID", "") or environ.get("SLURM_UID", "")
    try:
        if not (job.isdigit() and user.isdigit()):
            log_line(EPILOG, "nothing done: SLURM_JOB_ID and SLURM_JOB_UID are not set", "warning")
            return 0
        swept = sweep(job, int(user), environ.get("SLURMD_NODENAME", ""))
        if swept.ended or swept.remaining:
            _report_swept(job, swept)
    except Exception as error:
        log_line(EPILOG, f"not done: {type(error).__name__}: {error}", "warning")
    return 0


def sweep(job: str, uid: int, node: str, timeout_s: float = SWEEP_S) -> Swept:
    """End what is left of a job here, until nothing is, or time is up."""
    deadline_s = time.monotonic() + timeout_s
    ended: dict[tuple[int, int], Left] = {}
    while left := find_left(job, uid, node):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        ended |= {(one.pid, one.start): one for one in left}
        end_processes([(one.pid, one.start) for one in left], min(SWEEP_ROUND_S, left_s))
    still = {(one.pid, one.start) for one in left}
    return Swept([one for key, one in ended.items() if key not in still], left)


def find_left(job: str, uid: int, node: str) -> list[Left]:
    """Live processes of a user that guardrun started in this job. node: Slurm's name for it; empty: any."""
    found: list[Left] = []
    for stat in ProcessTable.read().stats.values():
        try:
            owner = os.stat(f"/proc/{stat.pid}").st_uid
        except OSError:
            continue
        if stat.is_dead or stat.ppid == 0 or owner != uid or stat.pid == os.getpid():
            continue
        marks = parse_environ(read_environ(stat))
        is_here = not node or marks.get("SLURMD_NODENAME", node) == node
        if MARK_NAME in marks and marks.get("SLURM_JOB_ID") == job and is_here:
            # The memory map of one in D may be locked for as long as it waits.
            command = [stat.comm] if stat.state == "D" else read_cmdline(stat.pid, 400) or [stat.comm]
            found.append(Left(stat.pid, stat.start, " ".join(command)[:200]))
    return found


def _report_swept(job: str, swept: Swept) -> None:
    parts = []
    if swept.ended:
        parts.append(f"ended {_names(swept.ended)}")
    if swept.remaining:
        parts.append(f"could not end {_names(swept.remaining)}")
    text = f"Slurm job {job} is over here and had left processes behind: {'; '.join(parts)}."
    log_line(EPILOG, text, "warning" if swept.remaining else "info", job=job)
    data = {"ended": [one.pid for one in swept.ended], "remaining": [one.pid for one in swept.remaining]}
    if why := note(job, "epilog_swept", text, data):
        log_line(EPILOG, f"not in the node's history: {why}")


def _names(left: list[Left]) -> str:
    names = ", ".join(f"{one.pid} ({one.command[:60]})" for one in left[:4])
    return names + (f" and {len(left) - 4} more" if len(left) > 4 else "")
