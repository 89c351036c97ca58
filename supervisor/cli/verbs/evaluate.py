"""`guardctl eval RANK 'code'`: run code in a rank of this node, with the names that its script uses."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from guardrun.hooks.wire.examinations import MAX_CODE_BYTES, MAX_EVALUATED_S, MAX_SECONDS
from guardrun.supervisor.base.own_files import name_user
from guardrun.supervisor.cli.base.asking import EXAMINED_S, find_living, not_understood, who_asks
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import (
    NO,
    OK,
    USAGE,
    Call,
    CtlError,
    Verb,
    add_run_option,
    seconds_up_to,
    this_node,
)
from guardrun.supervisor.client.live_client import LiveRefused, find_ranks, run_code
from guardrun.supervisor.client.supervisor_client import Unreachable, ask
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.rundir.run_directory import RunFile

TIMEOUT_S = WAIT_S = 10.0
FILE = "<guardctl eval>"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rank", metavar="RANK", type=int, help="the global rank, one of this node")
    code = parser.add_argument("code", metavar="CODE", help="statements; the value of the last one is the answer")
    code.required = False  # -f stands for it; with nargs="?" it may not come after an option (before Python 3.13)
    parser.add_argument("-f", "--file", metavar="FILE", help="read the code from there (-: standard input)")
    add_run_option(parser)
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds_up_to(MAX_EVALUATED_S),
        default=TIMEOUT_S,
        help=f"interrupt it after so many seconds (default: {TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--wait",
        metavar="S",
        type=seconds_up_to(MAX_SECONDS),
        default=WAIT_S,
        help=f"wait so long for the end of a step, and run it beside training then (default: {WAIT_S:g})",
    )
    parser.add_argument("--only-at-step", action="store_true", help="never run it beside training")


def _run(call: Call) -> int:
    given = call.arguments
    if (given.code is None) == (given.file is None):
        call.out.error("either CODE or -f FILE")
        return USAGE
    code = given.code if given.file is None else _read(given.file, call.cwd)
    if why := _why_not(code):
        call.out.error(why)
        return USAGE
    run, run_dir = find_living(call)
    owner = run_dir.stat().st_uid
    if owner != os.geteuid():
        raise CtlError(
            f"run {run.run_id} is {name_user(owner)}'s, and code is run for its own user alone: as {name_user(owner)}, "
            f"sudo -u {name_user(owner)} guardctl eval {given.rank} …"
        )
    folder = _find(run, run_dir, given.rank)
    asked = {
        "rank": given.rank,
        "code": code,
        "timeout_s": given.timeout,
        "wait_s": given.wait,
        "only_at_step": given.only_at_step,
        "who": who_asks(call),
    }
    try:
        answer = run_code(folder, asked, given.timeout + given.wait + EXAMINED_S)
    except LiveRefused as error:
        raise CtlError(f"run {run.run_id}, rank {given.rank}: {error}") from None
    told = answer.get("told")
    if not isinstance(told, dict):
        raise CtlError(f"rank {given.rank}: {answer.get('error', 'its answer is none')}")
    try:
        if call.out.is_json:
            call.out.json({"rank": given.rank, "node": answer.get("node"), **told})
        else:
            _print(call.out, given.rank, str(answer.get("node", "?")), told)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise not_understood(error) from None
    return OK if told.get("outcome") == "done" else NO


def _read(name: str, cwd: Path) -> str:
    try:
        if name == "-":
            return sys.stdin.read(MAX_CODE_BYTES + 1)
        with open(cwd / name, encoding="utf-8") as file:
            return file.read(MAX_CODE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise CtlError(f"{name} can't be read: {error}") from None


def _why_not(code: str) -> str:
    """Why it can't be run; empty: it can. The rank is not asked for what is no Python."""
    if len(code.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
        return f"code of up to {MAX_CODE_BYTES >> 10} KB can be run"
    try:
        compile(code, FILE, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").rstrip("\n")
        marked = f"\n  {line}\n  {' ' * ((error.offset or 1) - 1)}^" if line else ""
        return f"line {error.lineno}: {error.msg}{marked}"
    except Exception as error:
        return f"it can't be compiled: {type(error).__name__}: {error}"
    return ""


def _find(run: RunFile, run_dir: Path, number: int) -> Path:
    """The folder of sockets of the rank's supervisor. Raises CtlError: that it lives elsewhere, and where."""
    ranks = find_ranks(run.run_id)
    if number not in ranks:
        here = f"ranks {rank_list(sorted(ranks))} are here" if ranks else "no rank of it is here"
        node = _node_of(run, run_dir, number)
        host = this_node(os.environ)
        if node and node != host:
            raise CtlError(
                f"rank {number} is on {node}, and code is run on the rank's own node only, never over the network: "
                f"there, guardctl eval {number} … --run {run_dir} ({here})"
            )
        raise CtlError(f"run {run.run_id} has no rank {number} on this node: {here}")
    folder, is_allowed = ranks[number]
    if not is_allowed:
        raise CtlError(
            f"run {run.run_id} was started with [live] eval = false: nobody can run code in its ranks until its end"
        )
    return folder


def _node_of(run: RunFile, run_dir: Path, number: int) -> str:
    """As the run's supervisor knows it; empty where it can't be asked from here, or there is no such rank."""
    try:
        answer = ask(run, run_dir, "status")
    except Unreachable:
        return ""
    rows = answer.data.get("ranks", []) if answer.is_ok else []
    return next((str(row["node"]) for row in rows if row.get("global_rank") == number), "")


def _print(out: Output, number: int, node: str, told: dict[str, Any]) -> None:
    place = f", in {told['frame']}" if told.get("frame") else ""
    if told["where"] == "step":
        where = f"at the end of step {told.get('step', '?')}, on the thread that trains{place}"
    else:
        at = f"training is at step {told.get('step', '?')}{place}"
        where = f"on a thread of its own beside training ({told['why_beside']}); {at}"
    out.line(f"Rank {number} on {node}, {where}, {told['took_s']:g} s", "bold")
    for text, left_out in ((told["output"], told["output_left_out"]), (told["result"], told["result_left_out"])):
        if text:
            out.line(text.removesuffix("\n"))
        if left_out:
            out.line(f"… {left_out:,} characters more", "dim")
    if told["error"]:
        out.line(told["error"], "red")
    if (said := _outcome(told)) is not None:
        out.line(said, "yellow")
    for change in told.get("changes") or []:
        out.line(f"changed: {change}", "bold")
    if told.get("changes") and told.get("ranks", 1) > 1:
        out.line(
            "on this rank only: guardctl set lr and scale lr change the learning rate on all, after the same step",
            "yellow",
        )
    if assigned := told.get("assigned"):
        names = ", ".join(assigned)
        out.line(
            f"assigned here only: {names}. The script's own are as they were (import __main__ for its globals)", "dim"
        )
    for trouble in (told.get("names_trouble"), told.get("trouble")):
        if trouble:
            out.line(trouble, "yellow")


def _outcome(told: dict[str, Any]) -> str | None:
    if told["outcome"] == "interrupted":
        return f"interrupted: it had not ended after {told['took_s']:g} s (--timeout). Training goes on"
    if told["outcome"] == "held":
        held = "training stands until then" if told["where"] == "step" else "training does not wait for it"
        return f"it can't be interrupted: it is in C code, or catches everything. It ends when it returns, and {held}"
    return None


VERB = Verb("eval", "run code in a rank of this node, between two steps, with its script's names", _add_arguments, _run)
