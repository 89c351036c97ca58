"""The pre-flight of a run of guardrun: a process beside the import of torch, so that the run need not wait for it.

1. guardrun starts it at once; it runs the checks that need to know nothing of the run, and says in a line of JSON which
   of them refuse.
2. guardrun, when it knows what it is to run, says so in a line: the other checks follow, with level `full` the trial of
   the devices, too; a second line says which of these refuse.
3. A third line names the run directory: what was found goes there (preflight.json).

Warnings are said on stderr, like everything of guardrun's. Where guardrun has gone on by then, a refusal is a warning.
The process ends with its input, and with guardrun.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import SECRET, write_own
from guardrun.supervisor.base.printable import encode_json, make_harmless
from guardrun.supervisor.preflight.base.remark import (
    Assignment,
    Refusals,
    Remark,
    Report,
    Severity,
    Subject,
    run_checks,
    subject_here,
)
from guardrun.supervisor.preflight.check_table import QUICK
from guardrun.supervisor.preflight.checks import ports, quarantined

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
NICENESS = 10
"""torch is being imported beside it, and ranks are about to."""
ASIDE_S = 0.5
"""Ranks are being started at that moment; what is left to look at refuses nothing, and can wait."""
FILE = "preflight.json"
ASKED_BY_GUARDRUN = (quarantined.NAME, ports.NAME)
"""Before it starts anything: that takes no time, and later the port is its own."""


def main(source: IO[bytes] | None = None, target: IO[bytes] | None = None) -> int:
    """Serve one guardrun. source, target: standard input and output where they are not given."""
    _settle()
    source, target = source or sys.stdin.buffer, target or sys.stdout.buffer
    here = subject_here(os.uname().nodename)
    checks = [check for check in QUICK if check.name not in ASKED_BY_GUARDRUN]
    first = run_checks([check for check in checks if not check.needs_run], here)
    _send_refusals(target, first)
    line = source.readline()
    if not line:
        return 0
    assignment = msgspec.json.decode(line, type=known_type(Assignment))
    if assignment.level == "quick":
        time.sleep(ASIDE_S)
    subject = msgspec.structs.replace(assignment.subject, environ=here.environ)
    reports = [first, run_checks([check for check in checks if check.needs_run], subject)]
    if assignment.level == "full":
        reports.append(_full(subject))
    report = Report([remark for one in reports for remark in one.remarks], sum(one.took_s for one in reports))
    for remark in report.remarks:
        _print_remark(remark)
    _send_refusals(target, Report(report.remarks[len(first.remarks) :], 0.0))
    _record(source.readline(), assignment.level, report)
    return 0


def leave() -> None:
    """Run main and end at once: a thread that is stuck in a file system holds up nobody."""
    try:
        status = main()
    except Exception as error:
        print(
            f"guardrun: warning: the pre-flight failed: {type(error).__name__}: {make_harmless(str(error))}",
            file=sys.stderr,
            flush=True,
        )
        status = 1
    os._exit(status)


def _settle() -> None:
    """End with the parent; yield to it; leave the terminal's signals to it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)


def _full(subject: Subject) -> Report:
    from guardrun.supervisor.preflight.full_preflight import timed

    return Report(*timed(subject))


def _send_refusals(target: IO[bytes], report: Report) -> None:
    """Say what refuses. A guardrun that has gone on meanwhile listens no more, and is to have the rest all the same."""
    refused = [f"{one.summary} {one.advice}".strip() for one in report.remarks if one.severity is Severity.REFUSE]
    with suppress(OSError):
        target.write(msgspec.json.encode(Refusals(refused=refused)) + b"\n")
        target.flush()


def _print_remark(remark: Remark) -> None:
    if remark.severity.rank >= Severity.WARN.rank:
        print(
            f"guardrun: pre-flight: {make_harmless(f'{remark.summary} {remark.advice}'.strip())}",
            file=sys.stderr,
            flush=True,
        )


def _record(line: bytes, level: str, report: Report) -> None:
    run_dir = os.fsdecode(line).rstrip("\n")
    if run_dir:
        found = {"schema": 1, "level": level, "took_s": round(report.took_s, 3), "remarks": report.remarks}
        try:
            write_own(Path(run_dir) / FILE, msgspec.json.format(encode_json(found)), SECRET)
        except OSError:
            pass  # A run without a record is a run all the same.
