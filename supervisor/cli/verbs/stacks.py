"""`guardctl stacks`: what every rank, or one, is doing right now."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from guardrun.supervisor.cli.base.verb import NO, OK, Call, CtlError, Verb, add_run_option
from guardrun.supervisor.cli.verbs.order import ask_run
from guardrun.supervisor.cli.views.stack_view import print_each, print_stacks
from guardrun.supervisor.client.supervisor_client import STACKS_TIMEOUT_S
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.stack_grouping import group_data, group_looks
from guardrun.supervisor.engine.observation.stacks import stacks_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rank", metavar="RANK", nargs="?", type=int, help="a global rank (default: all)")
    add_run_option(parser)
    parser.add_argument("--all", action="store_true", help="each rank by itself, even where ranks do the same")
    parser.add_argument("--full", action="store_true", help="library frames too")


def _run(call: Call) -> int:
    rank: int | None = call.arguments.rank
    data = ask_run(call, "stacks", {"rank": rank}, STACKS_TIMEOUT_S)
    looks = _looks(data)
    if rank is not None and rank not in {look.global_rank for look in looks} and not data.get("missing"):
        raise CtlError(f"no rank {rank} is running")
    if call.out.is_json:
        call.out.json({**data, "groups": [group_data(group) for group in group_looks(looks)]})
    else:
        stacks = [stack for look in looks for stack in stacks_of(look)]
        show = print_each if call.arguments.all or rank is not None else print_stacks
        show(call.out, stacks, is_full=call.arguments.full, nodes=_nodes(data))
        for missing, reason in sorted(data.get("missing", {}).items(), key=lambda item: int(item[0])):
            call.out.line(f"Rank {missing}: {reason}", "yellow")
    return OK if looks else NO


def _nodes(data: dict[str, Any]) -> dict[int, str]:
    """The node of each rank, where there are several."""
    told = data.get("nodes", {})
    return {int(rank): str(node) for rank, node in told.items()} if len(set(told.values())) > 1 else {}


def _looks(data: dict[str, Any]) -> list[RankLook]:
    try:
        return msgspec.convert(data.get("ranks", []), list[RankLook])
    except msgspec.ValidationError as error:
        raise CtlError(f"the supervisor's answer is not one of this version of guardrun: {error}") from None


VERB = Verb("stacks", "what every rank is doing right now: stacks of its whole process tree", _add_arguments, _run)
