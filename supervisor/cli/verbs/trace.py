"""`guardctl trace on|off|show`: which modules a rank's steps go to, for some steps; and what was traced before."""

from __future__ import annotations

import argparse

import msgspec

from guardrun.hooks.wire.examinations import MAX_SECONDS, MAX_TRACED_STEPS
from guardrun.supervisor.cli.base.asking import ALL, examine, print_missing
from guardrun.supervisor.cli.base.some_steps import add_step_arguments, begin, call_off
from guardrun.supervisor.cli.base.verb import NO, OK, USAGE, Call, CtlError, Verb, add_run_option, named_run
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.report.module_table import describe, grown, sum_up
from guardrun.supervisor.rundir.traces import ModuleTrace, read_newest, read_traces

TOP = 20
WHAT = "modules"
HEADINGS = ["Module", "Stage", "Calls", "Mean", "Total", "Share", "Memory"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["on", "off", "show"], help="show: what the last request has found out")
    add_run_option(parser)
    add_step_arguments(parser)
    parser.add_argument("--top", metavar="N", type=int, default=TOP, help=f"lines of a table (default: {TOP})")


def _run(call: Call) -> int:
    given = call.arguments
    if given.action == "show":
        return _show(call, None, {})
    if given.action == "off":
        kept = "what was traced by now is kept (guardctl trace show)"
        return call_off(call, WHAT, asked=kept, nothing="nothing is being traced")
    costs = f"for {given.seconds:g} s at most: each call of a module takes some 30 µs more meanwhile"
    if not begin(call, "tracing", most_steps=MAX_TRACED_STEPS, most_s=MAX_SECONDS, costs=costs):
        return USAGE
    arguments = {"steps": given.steps, "seconds": given.seconds}
    examined = examine(call, WHAT, given.ranks or ALL, arguments, given.seconds)
    number = examined.data.get("number")
    return _show(call, number if isinstance(number, int) else 0, examined.missing)


def _show(call: Call, number: int | None, missing: dict[int, str]) -> int:
    """number: of the request; None: the last one."""
    run_dir = named_run(call)
    kept = read_newest(run_dir) if number is None else list(read_traces(run_dir, number))
    if number is None:
        if not kept:
            raise CtlError(f"run {run_dir.name} has no traces: guardctl trace on makes one while it trains")
        number = kept[0].number
    wanted = call.arguments.ranks
    traces = [trace for trace in kept if wanted is None or trace.rank in wanted]
    if not traces and not missing and kept:
        kept_ranks = rank_list([trace.rank for trace in kept])
        raise CtlError(f"the last trace of run {run_dir.name} has none of these ranks: it is of rank {kept_ranks}")
    if call.out.is_json:
        call.out.json(
            {
                "number": number,
                "ranks": {str(trace.rank): _data(trace) for trace in traces},
                "missing": {str(rank): why for rank, why in sorted(missing.items())},
            }
        )
    else:
        for trace in traces:
            _print(call, trace)
        print_missing(call.out, missing)
    return OK if traces else NO


def _data(trace: ModuleTrace) -> dict[str, object]:
    told = msgspec.to_builtins(trace)
    del told["rows"]
    return {**told, "modules": msgspec.to_builtins(sum_up(trace.rows, trace.steps))}


def _print(call: Call, trace: ModuleTrace) -> None:
    first, *others = describe(trace)
    call.out.line(f"Rank {trace.rank} on {trace.node or '?'}: {first}", "bold")
    for sentence in others:
        call.out.line(sentence)
    sums = sum_up(trace.rows, trace.steps)
    top = max(1, call.arguments.top)
    rows = [
        [
            one.module,
            one.stage,
            f"{one.count:,}",
            f"{one.mean_s * 1e3:.3f} ms",
            f"{one.total_s * 1e3:.1f} ms",
            f"{one.share:.0%}" if one.share is not None else "",
            grown(one),
        ]
        for one in sums[:top]
    ]
    call.out.table(HEADINGS, rows)
    if len(sums) > top:
        call.out.line(f"and {len(sums) - top:,} that took less (--top)", "dim")
    call.out.line()


VERB = Verb(
    "trace", "which modules the steps of ranks go to, and where memory grows, for some steps", _add_arguments, _run
)
