"""`guardctl set lr VALUE` and `guardctl scale lr FACTOR`: learning rates, changed on all ranks after the same step."""

from __future__ import annotations

import argparse
import math
from typing import Any

from guardrun.hooks.wire.examinations import MAX_FACTOR, MAX_SECONDS, RATE
from guardrun.supervisor.cli.base.asking import ALL, Examined, examine, find_living, not_understood, print_missing
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import NO, OK, Call, Verb, add_run_option, seconds_up_to
from guardrun.supervisor.engine.observation.frames import rank_list

SET, SCALE = "set", "scale"


def _value(text: str) -> float:
    """Raises argparse.ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not found:
        raise argparse.ArgumentTypeError("it is more than 0: a schedule of zeros can't be scaled back")
    if not 0 < found <= MAX_FACTOR:
        raise argparse.ArgumentTypeError(f"expected a number above 0, up to {MAX_FACTOR:g}, not {text!r}")
    return found


def _make(mode: str, metavar: str, help_text: str) -> Verb:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", choices=["lr"], help="the learning rate")
        parser.add_argument("value", metavar=metavar, type=_value)
        add_run_option(parser)
        parser.add_argument(
            "--optimizer", metavar="N", type=int, help="of this one alone, as inspect lists them, from 0"
        )
        parser.add_argument("--group", metavar="N", type=int, help="of this group of parameters alone, from 0")
        parser.add_argument(
            "--timeout",
            metavar="S",
            type=seconds_up_to(MAX_SECONDS),
            default=0.0,
            help="how long the step may take to come at which it is done (default: by the time of steps)",
        )

    def run(call: Call) -> int:
        given = call.arguments
        find_living(call)
        arguments = {"mode": mode, "value": given.value, "optimizer": given.optimizer, "group": given.group}
        examined = examine(call, RATE, ALL, arguments, given.timeout)
        try:
            if call.out.is_json:
                call.out.json(examined.data)
            else:
                _print(call.out, examined)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise not_understood(error) from None
        return OK if examined.ranks and not examined.missing else NO

    return Verb(mode, help_text, add_arguments, run)


def _print(out: Output, examined: Examined) -> None:
    told, missing = examined.ranks, examined.missing
    if not told:
        out.line("nothing was changed, on no rank", "yellow")
        print_missing(out, missing)
        return
    first = told[min(told)]
    if missing:
        out.line("these ranks did not answer; what they have changed is not known:", "red")
        print_missing(out, missing)
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, one in sorted(told.items()):
        alike.setdefault(tuple(one["changes"]), []).append(rank)
    for changes, ranks in sorted(alike.items(), key=lambda each: each[1]):
        where = f"{len(ranks)} ranks" if len(ranks) == len(told) > 1 else f"rank {rank_list(ranks)}"
        for change in changes or ("nothing: it was so before",):
            out.line(f"{change}, on {where}, at the end of step {first['step']}", "bold")
    undone = [rank for rank, one in sorted(told.items()) if one.get("lasting") is False]
    for line in _about_schedule(told[undone[0]] if undone else first, undone):
        out.line(*line)


def _about_schedule(told: dict[str, Any], undone: list[int]) -> list[tuple[str, str]]:
    """undone: ranks on which the next step had another rate."""
    lines = []
    names = ", ".join(told.get("schedulers", []))
    lasting, later = told.get("lasting"), told.get("later") or {}
    if lasting is False:
        rates = ", ".join(f"{rate:.6g}" for rate in dict.fromkeys(later["lr"]))
        step = f"at the end of step {later['step']}"
        way_out = "It has to be changed where it is computed (guardctl eval can do that)"
        cause = "something sets it itself, at each step"
        lines.append((f"but on rank {rank_list(undone)} it is {rates} {step}: {cause}. {way_out}", "red"))
    elif names:
        lines.append((f"the schedule ({names}) goes on from there, scaled alike", ""))
    if lasting is None:
        lines.append(("whether the next step leaves it so was not seen in time", "yellow"))
    lines += [(note, "yellow") for note in told.get("notes", [])]
    return lines


SET_VERB = _make(SET, "RATE", "set the learning rate, on all ranks after the same step")
SCALE_VERB = _make(SCALE, "FACTOR", "multiply learning rates, on all ranks after the same step")
