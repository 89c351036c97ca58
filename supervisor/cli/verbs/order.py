"""`guardctl hold`, `unhold`, `restart`, `checkpoint`, `stacks`: asking a run's supervisor to do or tell something."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.cli.base.asking import ask_run, who_asks
from guardrun.supervisor.cli.base.verb import NO, OK, Call, CtlError, Verb, add_run_argument, add_run_option
from guardrun.supervisor.cli.views.diagnosis_view import print_each, print_stacks
from guardrun.supervisor.client.supervisor_client import STACKS_TIMEOUT_S
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.stack_grouping import group_data, group_looks, stacks_of


def _order(verb: str, done: str) -> Verb:
    def run(call: Call) -> int:
        data = ask_run(call, verb, {"who": who_asks(call)})
        if call.out.is_json:
            call.out.json({"ok": True, **data})
        else:
            call.out.line(str(data.get("text") or done))
        return OK

    return Verb(verb, _HELP[verb], add_run_argument, run)


_HELP = {
    "hold": "hands off: watch and explain, but stop and restart nothing, until unhold",
    "unhold": "act again",
    "restart": "end this attempt now and go on from the newest checkpoint",
    "checkpoint": "ask the ranks to save at their next should_checkpoint()",
}

HOLD = _order("hold", "held: guardrun watches and changes nothing until guardctl unhold")
UNHOLD = _order("unhold", "no longer held: guardrun acts again")
RESTART = _order("restart", "asked: this attempt ends, and the next goes on from the newest checkpoint")
CHECKPOINT = _order("checkpoint", "asked: each rank's next should_checkpoint() says yes")


# Stacks -------------------------------------------------------------------------------------------------------------
# `guardctl stacks`: what every rank, or one, is doing right now.


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rank", metavar="RANK", nargs="?", type=int, help="a global rank (default: all)")
    add_run_option(parser)
    parser.add_argument("--all", action="store_true", help="each rank by itself, even where ranks do the same")
    parser.add_argument("--full", action="store_true", help="library frames too")


def _run(call: Call) -> int:
    data, looks = ask_stacks(call)
    if call.out.is_json:
        call.out.json({**data, "groups": [group_data(group) for group in group_looks(looks)]})
    else:
        print_looks(call, data, looks)
    return OK if looks else NO


def ask_stacks(call: Call) -> tuple[dict[str, Any], list[RankLook]]:
    """The supervisor's answer, and the looks in it. Raises CtlError."""
    rank: int | None = call.arguments.rank
    data = ask_run(call, "stacks", {"rank": rank}, STACKS_TIMEOUT_S)
    looks = _looks(data)
    if rank is not None and rank not in {look.global_rank for look in looks} and not data.get("missing"):
        raise CtlError(f"no rank {rank} is running")
    return data, looks


def print_looks(call: Call, data: dict[str, Any], looks: list[RankLook]) -> None:
    """Print what `ask_stacks` has answered."""
    stacks = [stack for look in looks for stack in stacks_of(look)]
    show = print_each if call.arguments.all or call.arguments.rank is not None else print_stacks
    show(call.out, stacks, is_full=call.arguments.full, nodes=_nodes(data))
    for missing, reason in sorted(data.get("missing", {}).items(), key=lambda item: int(item[0])):
        call.out.line(f"Rank {missing}: {reason}", "yellow")


def _nodes(data: dict[str, Any]) -> dict[int, str]:
    """The node of each rank, where there are several."""
    told = data.get("nodes", {})
    return {int(rank): str(node) for rank, node in told.items()} if len(set(told.values())) > 1 else {}


def _looks(data: dict[str, Any]) -> list[RankLook]:
    try:
        return msgspec.convert(data.get("ranks", []), known_type(list[RankLook]))
    except msgspec.ValidationError as error:
        raise CtlError(f"the supervisor's answer is not one of this version of guardrun: {error}") from None


STACKS = Verb("stacks", "what every rank is doing right now: stacks of its whole process tree", _add_arguments, _run)
