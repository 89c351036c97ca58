"""`guardctl memory RANK`: which lines of Python come to hold more and more memory, found out in the rank itself."""

from __future__ import annotations

import argparse

import msgspec

from guardrun.hooks.wire.examinations import MAX_SECONDS, MIN_TRACED_S
from guardrun.supervisor.cli.base.verb import NO, OK, USAGE, Call, CtlError, Verb, add_run_option
from guardrun.supervisor.cli.verbs.order import ask_run, find_living, who_asks
from guardrun.supervisor.cli.views.memory_view import Allocations, print_allocations

SECONDS = 60.0
MARGIN_S = 110.0
"""Beyond the seconds: how long a rank and its node may take to answer, and to be known not to."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ranks", metavar="RANK", nargs="+", type=int, help="global ranks")
    add_run_option(parser)
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=SECONDS, help=f"how long to trace (default: {SECONDS:g})"
    )


def _run(call: Call) -> int:
    ranks, seconds = sorted(set(call.arguments.ranks)), call.arguments.seconds
    if not MIN_TRACED_S <= seconds <= MAX_SECONDS:
        call.out.error(f"--seconds is from {MIN_TRACED_S:g} to {MAX_SECONDS:g}")
        return USAGE
    find_living(call)  # before it is said that something is being done
    if not call.out.is_json:
        call.out.aside(
            f"tracing for {seconds:g} s: Python code runs slower there meanwhile, and other ranks wait for it. It ends "
            "by itself, also without guardctl"
        )
    asked = {"ranks": ranks, "what": "allocations", "arguments": {"seconds": seconds}, "seconds": seconds}
    data = ask_run(call, "examine", {**asked, "who": who_asks()}, seconds + MARGIN_S)
    try:
        told = {int(number): msgspec.convert(one, Allocations) for number, one in data.get("ranks", {}).items()}
    except (msgspec.ValidationError, ValueError) as error:
        raise CtlError(f"the answer is not one of this version of guardrun: {error}") from None
    missing = {int(number): str(why) for number, why in data.get("missing", {}).items()}
    if call.out.is_json:
        call.out.json(data)
    else:
        for number, one in sorted(told.items()):
            print_allocations(call.out, number, str(data.get("nodes", {}).get(str(number), "?")), one)
        for number, why in sorted(missing.items()):
            call.out.line(f"Rank {number}: {why}", "yellow")
    return OK if told else NO


VERB = Verb(
    "memory", "which lines of Python come to hold more memory in a rank, traced for a while", _add_arguments, _run
)
