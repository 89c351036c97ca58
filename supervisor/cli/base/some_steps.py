"""What verbs share that have ranks look at some of their steps, and can be called off: `trace`, `profile`."""

from __future__ import annotations

import argparse

from guardrun.hooks.wire.examinations import STOP
from guardrun.supervisor.cli.base.asking import ALL, examine, find_living
from guardrun.supervisor.cli.base.verb import NO, OK, Call

STEPS, SECONDS = 5, 60.0


def parse_ranks(text: str) -> list[int]:
    """`0,3-5`. Raises argparse.ArgumentTypeError."""
    try:
        parts = [[int(bound) for bound in part.split("-")] for part in text.split(",")]
        if any(len(part) > 2 or part[0] < 0 or part[-1] - part[0] not in range(100_000) for part in parts):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} names no ranks: `0`, `0,2`, `0-3,6`") from None
    return sorted({rank for part in parts for rank in range(part[0], part[-1] + 1)})


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """`--steps`, `--seconds`, `--ranks`."""
    parser.add_argument("--steps", metavar="N", type=int, default=STEPS, help=f"how many (default: {STEPS})")
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=SECONDS, help=f"the longest that it takes (default: {SECONDS:g})"
    )
    parser.add_argument("--ranks", metavar="LIST", type=parse_ranks, help="`0,3-5` (default: all, 64 at most)")


def begin(call: Call, verb: str, *, most_steps: int, most_s: float, costs: str) -> bool:
    """Say what is going to be done, and what it costs; False: it can't be, which is said. Raises CtlError.

    verb: `tracing`. costs: what follows `tracing 5 steps, `.
    """
    given = call.arguments
    if not 1 <= given.steps <= most_steps or not 0 < given.seconds <= most_s:
        call.out.error(f"--steps is from 1 to {most_steps}, --seconds up to {most_s:g}")
        return False
    find_living(call)  # before it is said that something is being done
    if not call.out.is_json:
        steps = "1 step" if given.steps == 1 else f"{given.steps} steps"
        call.out.aside(f"{verb} {steps}, {costs}. It ends by itself, also without guardctl")
    return True


def call_off(call: Call, what: str, *, asked: str, nothing: str) -> int:
    """Have ranks end what they are at, and say `asked`; or `nothing` goes on. Raises CtlError."""
    examined = examine(call, STOP, call.arguments.ranks or ALL, {"what": what}, 0.0)
    if call.out.is_json:
        call.out.json(examined.data)
    else:
        call.out.line(f"asked: {asked}" if examined.ranks else nothing)
    return OK if examined.ranks else NO
