"""`guardctl memory RANK`: which lines of Python hold, or come to hold, memory: on the host, or of the device."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from guardrun.hooks.wire.examinations import MAX_SECONDS, MIN_TRACED_S, SNAPSHOT
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.cli.base.asking import Examined, examine, find_living, not_understood, print_missing
from guardrun.supervisor.cli.base.verb import NO, OK, USAGE, Call, Verb, add_run_option
from guardrun.supervisor.cli.views.memory_view import Allocations, print_allocations
from guardrun.supervisor.cli.views.snapshot_view import Snapshot, print_snapshot

SECONDS, DEVICE_SECONDS = 60.0, 10.0
LEAST_DEVICE_S = 1.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ranks", metavar="RANK", nargs="+", type=int, help="global ranks")
    add_run_option(parser)
    parser.add_argument(
        "--device",
        action="store_true",
        help="what the allocator of its device holds, and which lines asked for it; with a file for torch's viewer",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        help=f"how long to trace (default: {SECONDS:g}; with --device {DEVICE_SECONDS:g})",
    )


def _run(call: Call) -> int:
    given = call.arguments
    default, least = (DEVICE_SECONDS, LEAST_DEVICE_S) if given.device else (SECONDS, MIN_TRACED_S)
    ranks, seconds = sorted(set(given.ranks)), default if given.seconds is None else given.seconds
    if not least <= seconds <= MAX_SECONDS:
        call.out.error(f"--seconds is from {least:g} to {MAX_SECONDS:g}")
        return USAGE
    find_living(call)  # before it is said that something is being done
    if not call.out.is_json:
        slower = "each of its allocations takes" if given.device else "Python code runs"
        call.out.aside(
            f"tracing for {seconds:g} s: {slower}{' some microseconds more' if given.device else ' slower'} there "
            "meanwhile, and other ranks wait for it. It ends by itself, also without guardctl"
        )
    examined = examine(call, SNAPSHOT if given.device else "allocations", ranks, {"seconds": seconds}, seconds)
    try:
        told = {number: msgspec.convert(one, known_type(_kind(call))) for number, one in sorted(examined.ranks.items())}
    except msgspec.ValidationError as error:
        raise not_understood(error) from None
    if call.out.is_json:
        call.out.json(examined.data)
    else:
        _print(call, examined, told)
    return OK if told else NO


def _kind(call: Call) -> Any:
    return Snapshot if call.arguments.device else Allocations


def _print(call: Call, examined: Examined, told: dict[int, Any]) -> None:
    for number, one in told.items():
        if isinstance(one, Snapshot):
            print_snapshot(call.out, examined.heading(number), one)
        else:
            print_allocations(call.out, examined.heading(number), one)
    print_missing(call.out, examined.missing)


VERB = Verb(
    "memory", "which lines of Python come to hold memory in a rank, or of its device, for a while", _add_arguments, _run
)
