"""What a node is asked before a job of Slurm's starts there: is it quarantined, and are its devices fit for any run?

A prolog that fails drains the node and puts the job back into the queue: right where no job should run there, and far
too much for anything else. So it refuses a quarantined node, and one whose quick pre-flight refuses (devices that are
lost or unusable); whatever else happens, guardrun's own failure above all, lets the job start. It has seconds, and what
may hang (drivers, shared folders) hangs in a process that nobody waits for.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from guardrun.launcher.base.terminal_lines import NOT_FIT, QUARANTINED
from guardrun.launcher.run.preflight import CODE
from guardrun.slurm.client.commands import Slurm
from guardrun.slurm.client.drain import REASON_PREFIX, drain
from guardrun.slurm.node_hooks.node_log import log_line, note
from guardrun.supervisor.base.node_state import SYSTEM_FOLDER
from guardrun.supervisor.config import Config, ConfigError, load_config
from guardrun.supervisor.health.quarantine_rules import headline
from guardrun.supervisor.preflight.base.remark import Refusals
from guardrun.supervisor.quarantine.record_places import find_places, names_here
from guardrun.supervisor.quarantine.records import read_holding

CHECKS_S = 6.0
"""For the checks' process: Python's start, and the two seconds that the checks have together."""
SLURM_S = 3.0
PART = "prolog"
ROOT = Path("/")
"""Never the job's folder: its user's configuration is not for root to read."""


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
        log_line(PART, f"not done, the job starts all the same: {type(error).__name__}: {error}", "warning")
        return 0
    if refusal is None:
        return 0
    node = names_here(environ)[0]
    log_line(PART, f"job {job} may not start on {node}: {refusal.text}", "error", job=job)
    with suppress(Exception):
        # Slurm would drain it, too, but only say "Prolog error".
        if "SLURMD_NODENAME" in environ:
            log_line(PART, drain(node, f"{REASON_PREFIX} {refusal.text}"[:240], Slurm(environ, SLURM_S)).text)
        note(job, "prolog_refused", f"Slurm job {job} was not started: {refusal.text}")
    return refusal.exit_status


def find_refusal(environ: Mapping[str, str]) -> Refusal | None:
    """Why no job should start on this node; None: it may."""
    try:
        config = load_config(None, {}, _own_settings(environ), ROOT)
    except ConfigError as error:
        log_line(
            PART, f"the configuration could not be read, the defaults hold: {'; '.join(error.problems)}", "warning"
        )
        config = Config()
    for node in names_here(environ):
        places = find_places(config.node.state_dir or str(SYSTEM_FOLDER), config.node.shared_dir, environ, node)
        isolations, troubles = read_holding(places, node, time.time())
        for trouble in troubles:
            log_line(PART, trouble, "warning")
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
        return list(msgspec.json.decode(line, type=Refusals).refused) if line else []
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
            log_line(PART, "the checks did not answer in time: the job starts without their word", "warning")
            return b""
        chunk = source.read1(65536) if hasattr(source, "read1") else source.read(1)
        if not chunk:
            return b""
        data += chunk
    return data.partition(b"\n")[0]
