"""`guardctl memory RANK`: which lines of Python come to hold more and more memory, found out in the rank itself."""

from __future__ import annotations

import argparse

import msgspec

from guardrun.hooks.wire.examinations import MAX_SECONDS, MIN_TRACED_S
from guardrun.supervisor.cli.base.asking import examine, find_living, not_understood, print_missing
from guardrun.supervisor.cli.base.verb import NO, OK, USAGE, Call, Verb, add_run_option
from guardrun.supervisor.cli.views.memory_view import Allocations, print_allocations

SECONDS = 60.0


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
    examined = examine(call, "allocations", ranks, {"seconds": seconds}, seconds)
    try:
        told = {number: msgspec.convert(one, Allocations) for number, one in examined.ranks.items()}
    except msgspec.ValidationError as error:
        raise not_understood(error) from None
    if call.out.is_json:
        call.out.json(examined.data)
    else:
        for number, one in sorted(told.items()):
            print_allocations(call.out, examined.heading(number), one)
        print_missing(call.out, examined.missing)
    return OK if told else NO


VERB = Verb(
    "memory", "which lines of Python come to hold more memory in a rank, traced for a while", _add_arguments, _run
)
