"""`guardctl inspect [RANK…]`: what ranks train with, and in what they differ: read, and nothing changed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from guardrun.hooks.wire.examinations import MAX_SECONDS
from guardrun.supervisor.cli.base.verb import NO, OK, USAGE, Call, CtlError, Verb, add_run_option
from guardrun.supervisor.cli.verbs.order import ask_run, who_asks
from guardrun.supervisor.report.rank_state import difference_lines, differences, sections

SECONDS = 10.0
MARGIN_S = 110.0
"""Beyond the seconds: how long a rank and its node may take to answer, and to be known not to."""


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
    asked = {"ranks": ranks or "all", "what": "state", "arguments": {"seconds": seconds}, "seconds": seconds}
    data = ask_run(call, "examine", {**asked, "who": who_asks()}, seconds + MARGIN_S)
    try:
        told: dict[int, dict[str, Any]] = {int(number): dict(one) for number, one in data.get("ranks", {}).items()}
        missing = {int(number): str(why) for number, why in data.get("missing", {}).items()}
        if call.out.is_json:
            call.out.json({**data, "differences": differences(told)})
        else:
            _print(call, told, missing, {int(n): str(node) for n, node in data.get("nodes", {}).items()}, ranks)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CtlError(f"the answer is not one of this version of guardrun: {error!r}") from None
    return OK if told else NO


def _print(
    call: Call, told: Mapping[int, Mapping[str, Any]], missing: dict[int, str], nodes: dict[int, str], ranks: list[int]
) -> None:
    out = call.out
    for rank in ranks or sorted(told)[:1]:
        if rank not in told:
            continue
        out.line(f"Rank {rank} on {nodes.get(rank, '?')}, at step {told[rank].get('step', '?')}", "bold")
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
    for rank, why in sorted(missing.items()):
        out.line(f"Rank {rank}: {why}", "yellow")


VERB = Verb(
    "inspect", "what a rank trains with: optimizers, gradients, model, data loaders, and more", _add_arguments, _run
)
