"""Asking a run's supervisor, for verbs: to do or tell something itself, or what its ranks find out about themselves."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import Call, CtlError, is_alive, named_run, read_run, this_node
from guardrun.supervisor.client.supervisor_client import TIMEOUT_S, Unreachable, ask
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.rundir.run_directory import RunFile

ALL = "all"
"""In place of ranks' numbers."""
EXAMINED_S = 110.0
"""Beyond the seconds that it takes there: how long a rank and its node may take to answer, and to be known not to."""


def find_living(call: Call) -> tuple[RunFile, Path]:
    """The run that the command line names, and its folder. Raises CtlError where there is none, or it is over."""
    run_dir = named_run(call)
    run = read_run(run_dir)
    if is_alive(run, this_node(call.environ)) is False:
        raise CtlError(f"run {run.run_id} is over: nobody is there to ask")
    return run, run_dir


def ask_run(call: Call, verb: str, arguments: dict[str, Any], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Ask the supervisor of the run that the command line names. Raises CtlError where it is over, or says no."""
    run, run_dir = find_living(call)
    try:
        answer = ask(run, run_dir, verb, arguments, timeout_s)
    except Unreachable as error:
        raise CtlError(f"run {run.run_id}: {error}") from None
    if not answer.is_ok:
        raise CtlError(f"run {run.run_id}: {answer.error}")
    return answer.data


def who_asks(call: Call) -> str:
    """The user's name, for the journal; and what asks in the user's place."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no name for this number, as in many containers
        name = "unknown"
    return f"{name}, {call.by}" if call.by else name


class Examined(NamedTuple):
    """What ranks have found out about themselves, because somebody asked."""

    data: dict[str, Any]
    """The whole answer."""
    ranks: dict[int, Any]
    """What each has told."""
    missing: dict[int, str]
    """Why others have not."""
    nodes: dict[int, str]

    def heading(self, rank: int) -> str:
        """`Rank 1 on node-a`."""
        return f"Rank {rank} on {self.nodes.get(rank, '?')}"


def examine(call: Call, what: str, ranks: list[int] | str, arguments: dict[str, Any], seconds: float) -> Examined:
    """Have ranks find something out about themselves.

    ranks: their numbers, or ALL. what, arguments: as supervisor/node/rank_examinations.py has them. seconds: how long
    it takes there. Raises CtlError.
    """
    asked = {"ranks": ranks, "what": what, "arguments": arguments, "seconds": seconds, "who": who_asks(call)}
    data = ask_run(call, "examine", asked, seconds + EXAMINED_S)
    left_out = data.get("left_out")
    if isinstance(left_out, int) and left_out > 0:
        call.out.aside(f"the first ranks were asked, and {left_out:,} more were not: name them to ask these")
    try:
        return Examined(
            data,
            ranks={int(rank): one for rank, one in data.get("ranks", {}).items()},
            missing={int(rank): str(why) for rank, why in data.get("missing", {}).items()},
            nodes={int(rank): str(node) for rank, node in data.get("nodes", {}).items()},
        )
    except ValueError as error:
        raise not_understood(error) from None


def print_missing(out: Output, missing: Mapping[int, str]) -> None:
    """Say of which ranks there is nothing, and why."""
    alike: dict[str, list[int]] = {}
    for rank, why in sorted(missing.items()):
        alike.setdefault(why, []).append(rank)
    for why, ranks in alike.items():
        out.line(f"Rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}: {why}", "yellow")


def not_understood(error: Exception) -> CtlError:
    """Why an answer is of no use."""
    return CtlError(f"the answer is not one of this version of guardrun: {error}")
