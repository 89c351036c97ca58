"""`guardctl check`: is this node fit for a run?"""

from __future__ import annotations

import argparse
import time
from typing import Any

import msgspec

from guardrun.supervisor.base.node_state import state_folder
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import NO, OK, Call, Verb, guard_dir, read_config, this_node
from guardrun.supervisor.preflight.base.remark import Remark, Severity, Subject, worst
from guardrun.supervisor.quarantine.record_places import absolute_folders

_STYLES = {Severity.OK: "green", Severity.NOTE: "", Severity.WARN: "yellow", Severity.REFUSE: "red"}
_WORDS = {
    Severity.OK: "This node is fit for a run.",
    Severity.NOTE: "This node is fit for a run.",
    Severity.WARN: "A run may start here; something may hurt it.",
    Severity.REFUSE: "guardrun would start nothing here.",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="also have every device compute, remember, copy and sum")
    parser.add_argument(
        "--keep-quarantine", action="store_true", help="lift no quarantine, also where what it was for is well again"
    )
    parser.add_argument("--nproc-per-node", metavar="N", type=int, default=1, help="ranks on this node (default: 1)")
    parser.add_argument("--master-port", metavar="PORT", type=int, help="the port that a run would be given")
    parser.add_argument("--guard-config", metavar="FILE", help="as for guardrun")


def _subject(call: Call) -> Subject:
    config = read_config(call)
    folders = absolute_folders(config.node.state_dir, config.node.shared_dir, call.cwd)
    return Subject(
        node=this_node(call.environ),
        cwd=str(call.cwd),
        environ=dict(call.environ),
        ranks=max(1, call.arguments.nproc_per_node),
        run_folder=str(guard_dir(call.arguments.guard_dir, call.environ, call.cwd)),
        checkpoint_format=config.checkpoint.format,
        port=call.arguments.master_port,
        checkpoint_dir=str(call.cwd / config.checkpoint.dir) if config.checkpoint.dir else "",
        state_folder=str(state_folder(folders.state_dir, call.environ) or ""),
        state_dir=folders.state_dir,
        shared_dir=folders.shared_dir,
    )


def _run(call: Call) -> int:
    # The checks' modules would slow every other verb down.
    from guardrun.supervisor.preflight.base.remark import run_checks
    from guardrun.supervisor.preflight.check_table import QUICK
    from guardrun.supervisor.preflight.full_preflight import run_full
    from guardrun.supervisor.preflight.quarantine_release import release_mended

    subject = _subject(call)
    began_s = time.monotonic()
    remarks = run_checks(QUICK, subject).remarks
    if call.arguments.full:
        remarks += run_full(subject)
    if not call.arguments.keep_quarantine:
        remarks = release_mended(subject, remarks, is_full=call.arguments.full)
    verdict = worst(remarks)
    if call.out.is_json:
        call.out.json(_as_data(subject, remarks, verdict, time.monotonic() - began_s, call.arguments.full))
    else:
        _print(call.out, remarks, verdict)
    return NO if verdict is Severity.REFUSE else OK


def _as_data(
    subject: Subject, remarks: list[Remark], verdict: Severity, took_s: float, is_full: bool
) -> dict[str, Any]:
    shown = [
        {
            "check": one.check,
            "severity": one.severity.value,
            "summary": one.summary,
            "advice": one.advice,
            "evidence": msgspec.to_builtins(one.evidence),
        }
        for one in remarks
    ]
    level = "full" if is_full else "quick"
    return {
        "node": subject.node,
        "level": level,
        "verdict": verdict.value,
        "took_s": round(took_s, 3),
        "remarks": shown,
    }


def _print(out: Output, remarks: list[Remark], verdict: Severity) -> None:
    """The worst first, what to do under each."""
    ordered = sorted(remarks, key=lambda one: -one.severity.rank)
    rows = [[one.severity.value, one.check, f"{one.summary}{_advice(one)}"] for one in ordered]
    out.table(("", "Check", "What"), rows, [_STYLES[one.severity] for one in ordered])
    out.line(_WORDS[verdict], f"bold {_STYLES[verdict]}".strip())


def _advice(remark: Remark) -> str:
    return f" → {remark.advice}" if remark.advice else ""


VERB = Verb("check", "is this node fit for a run?", _add_arguments, _run)
