"""`guardctl profile`: what some steps of ranks go to, by torch's profiler: a table, a page and traces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from guardrun.hooks.wire.examinations import MAX_PROFILED_S, MAX_PROFILED_STEPS, PROFILE
from guardrun.supervisor.cli.base.asking import ALL, examine, print_missing
from guardrun.supervisor.cli.base.some_steps import add_step_arguments, begin, call_off
from guardrun.supervisor.cli.base.verb import (
    NO,
    OK,
    USAGE,
    Call,
    CtlError,
    Verb,
    add_run_option,
    is_anybodys,
    named_run,
    whose_else,
    write_page,
)
from guardrun.supervisor.cli.views.profile_view import print_profiles
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.report.profile_comparison import Shown, Since, compare_since, put_beside
from guardrun.supervisor.rundir.profiles import PAGE, ProfileSummary, folder_of, list_profiles, read_summaries

TOP = 12
READ_S = 30.0
"""Beyond the time in which steps are profiled: for what a rank takes to write its trace, and its node to read it."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["on", "off", "show"], nargs="?", default="on",
        help="off: end one that goes on; show: what was found out before (default: on)",
    )  # fmt: skip
    add_run_option(parser)
    add_step_arguments(parser)
    parser.add_argument("--number", metavar="N", type=int, help="which one is shown (default: the newest)")
    parser.add_argument("--top", metavar="N", type=int, default=TOP, help=f"operators of a rank (default: {TOP})")
    parser.add_argument("--output", metavar="FILE", help=f"where the page goes (default: RUN/profiles/NNN/{PAGE})")


def _run(call: Call) -> int:
    given = call.arguments
    if given.action == "show":
        return _show(call, given.number, {})
    if given.action == "off":
        told = "whoever asked for the profile is told what there is by now"
        return call_off(call, PROFILE, asked=told, nothing="nothing is being profiled")
    costs = (
        f"after two to begin with, for {given.seconds:g} s at most: steps are slower meanwhile, and ranks are held up "
        "for some seconds at the end, on GPUs at the beginning, too"
    )
    if not begin(call, "profiling", most_steps=MAX_PROFILED_STEPS, most_s=MAX_PROFILED_S, costs=costs):
        return USAGE
    arguments = {"steps": given.steps, "seconds": given.seconds}
    examined = examine(call, PROFILE, given.ranks or ALL, arguments, given.seconds + READ_S)
    number = examined.data.get("number")
    if not isinstance(number, int):
        return _nothing(call, examined.missing)
    return _show(call, number, examined.missing)


def _nothing(call: Call, missing: dict[int, str]) -> int:
    if call.out.is_json:
        call.out.json({"number": None, "ranks": {}, "missing": _by_text(missing)})
    else:
        print_missing(call.out, missing)
    return NO


def _show(call: Call, number: int | None, missing: dict[int, str]) -> int:
    """number: of the request; None: the newest of which there is anything."""
    run_dir = named_run(call)
    is_new = call.arguments.action == "on"
    kept = _read(run_dir, number)
    if not kept:
        if number is not None and is_new:
            return _nothing(call, missing)
        named = f"no profile {number}" if number is not None else "no profiles"
        raise CtlError(f"run {run_dir.name} has {named}: guardctl profile makes one while it trains")
    wanted = call.arguments.ranks
    shown = [one for one in kept if wanted is None or one.rank in wanted]
    if not shown:
        raise CtlError(f"that profile has none of these ranks: it is of rank {rank_list([one.rank for one in kept])}")
    found = Shown(shown, put_beside(shown), _since(run_dir, shown), missing)
    page = _write_page(call, run_dir, found) if is_new or call.arguments.output else None
    if call.out.is_json:
        call.out.json(
            {
                "number": kept[0].number,
                "ranks": {str(one.rank): _data(one) for one in shown},
                "missing": _by_text(missing),
                "beside": msgspec.to_builtins(found.beside),
                "since": msgspec.to_builtins(found.since),
                "page": str(page) if page else None,
            }
        )
    else:
        print_profiles(call.out, found, max(1, call.arguments.top))
        if page is not None:
            call.out.line(f"page: {page}")
    return OK


def _since(run_dir: Path, shown: list[ProfileSummary]) -> Since | None:
    """What is different from the newest of the earlier ones that has some of these ranks."""
    for number in reversed(list_profiles(run_dir)):
        before = list(read_summaries(run_dir, number, is_anybodys())) if number < shown[0].number else []
        if before and (since := compare_since(before, shown)) is not None:
            return since
    return None


def _read(run_dir: Path, number: int | None) -> list[ProfileSummary]:
    numbers = [number] if number is not None else reversed(list_profiles(run_dir))
    for one in numbers:
        if found := list(read_summaries(run_dir, one, is_anybodys())):
            return found
    return []


def _write_page(call: Call, run_dir: Path, shown: Shown) -> Path | None:
    """Where the page is; None where root may not write it into somebody else's run."""
    from guardrun.supervisor.report.profile_page import profile_html

    if call.arguments.output:
        path = Path(call.cwd, call.arguments.output)
    else:
        path = folder_of(run_dir, shown.summaries[0].number) / PAGE
        if whose := whose_else(run_dir):
            call.out.aside(f"{run_dir} is {whose}'s: root writes no page there (--output FILE)")
            return None
    write_page(path, lambda: profile_html(run_dir.name, shown))
    return path


def _data(one: ProfileSummary) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(one)
    return {**told, "step_s": one.step_s}


def _by_text(missing: dict[int, str]) -> dict[str, str]:
    return {str(rank): why for rank, why in sorted(missing.items())}


VERB = Verb(
    "profile", "what some steps of ranks go to, by torch's profiler: a table, a page, traces", _add_arguments, _run
)
