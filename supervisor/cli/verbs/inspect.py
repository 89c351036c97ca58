"""`guardctl inspect [RANK…]`: what ranks train with, and in what they differ: read, and nothing changed."""

from __future__ import annotations

import argparse

from guardrun.hooks.wire.examinations import MAX_SECONDS
from guardrun.supervisor.cli.base.asking import ALL, Examined, examine, not_understood, print_missing
from guardrun.supervisor.cli.base.verb import NO, OK, USAGE, Call, Verb, add_run_option
from guardrun.supervisor.report.rank_state import difference_lines, differences, sections

SECONDS = 10.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ranks", metavar="RANK", nargs="*", type=int, help="global ranks (default: the first one, and what differs)"
    )
    add_run_option(parser)
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=SECONDS, help=f"wait for a step's end (default: {SECONDS:g})"
    )


def _run(call: Call) -> int:
    ranks, seconds = sorted(set(call.arguments.ranks)), call.arguments.seconds
    if not 0 < seconds <= MAX_SECONDS:
        call.out.error(f"--seconds is up to {MAX_SECONDS:g}")
        return USAGE
    examined = examine(call, "state", ranks or ALL, {"seconds": seconds}, seconds)
    try:
        if call.out.is_json:
            call.out.json({**examined.data, "differences": differences(examined.ranks)})
        else:
            _print(call, examined, ranks or sorted(examined.ranks)[:1])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise not_understood(error) from None
    return OK if examined.ranks else NO


def _print(call: Call, examined: Examined, ranks: list[int]) -> None:
    """ranks: which of them are shown whole."""
    out, told = call.out, examined.ranks
    for rank in ranks:
        if rank not in told:
            continue
        out.line(f"{examined.heading(rank)}, at step {told[rank].get('step', '?')}", "bold")
        for heading, lines in sections(told[rank]):
            out.line(f"{heading}:")
            for line in lines:
                out.line(f"  {line}")
        out.line()
    if len(told) > 1:
        lines = difference_lines(told)
        out.line(f"In what {len(told)} ranks differ:" if lines else f"{len(told)} ranks are alike in all of that.")
        for line in lines:
            out.line(f"  {line}")
    print_missing(out, examined.missing)


VERB = Verb(
    "inspect", "what a rank trains with: optimizers, gradients, model, data loaders, and more", _add_arguments, _run
)
