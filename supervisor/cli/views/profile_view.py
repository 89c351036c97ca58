"""Profiles of ranks on a terminal: shares, the slowest rank beside the median one, what changed, top operators."""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.cli.base.asking import print_missing
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.report.profile_comparison import (
    NAMES,
    PARTS,
    Change,
    Shown,
    describe,
    describe_beside,
    describe_since,
    milliseconds,
    signed,
    where_is_trace,
)
from guardrun.supervisor.rundir.profiles import ProfileSummary

WIDE = 100
"""Columns, from which on names of kernels stand beside their kinds and callers."""
SHORT = {"matmul": "matmul", "other": "other", "communication": "comm", "memory": "memory", "idle": "idle"}


def print_profiles(out: Output, shown: Shown, top: int) -> None:
    """Print one request's."""
    summaries, beside, since, missing = shown
    _print_shares(out, summaries)
    if beside is not None:
        out.line(describe_beside(beside), "bold" if beside.is_slower else "")
        if beside.is_slower:
            _print_changes(out, f"rank {beside.median}", f"rank {beside.slowest}", beside.parts, beside.operators)
    if since is not None:
        out.line(describe_since(since), "bold")
        _print_changes(out, f"profile {since.number}", "now", since.parts, since.operators)
    for summary in summaries:
        _print_rank(out, summary, top)
    out.line()
    print_missing(out, missing)


def _print_shares(out: Output, summaries: Sequence[ProfileSummary]) -> None:
    rows = []
    for one in summaries:
        found = one.breakdown
        cells = [f"{found.parts.get(part, 0.0) / found.window_s:.0%}" for part in PARTS]
        hidden = f"{found.hidden_s / found.communication_s:.0%}" if found.communication_s > 0 else ""
        rows.append([str(one.rank), milliseconds(one.step_s), *cells, hidden])
    out.table(["Rank", "Step", *(SHORT[part] for part in PARTS), "hidden"], rows)
    out.line("comm: communication that nothing hides; hidden: of all communication, what ran behind computing", "dim")


def _print_rank(out: Output, summary: ProfileSummary, top: int) -> None:
    first, *others = describe(summary)
    out.line()
    out.line(f"Rank {summary.rank} on {summary.node or '?'}: {first}", "bold")
    for sentence in others:
        out.line(sentence)
    shown = summary.breakdown.operators[:top]
    is_wide = out.console.width >= WIDE
    rows = [
        [
            milliseconds(summary.per_step(one.total_s)),
            f"{one.total_s / summary.breakdown.window_s:.0%}",
            f"{one.calls / len(summary.steps):,.4g}",
            SHORT.get(one.kind, one.kind),
            one.name,
            one.under if is_wide else "",
        ]
        for one in shown
    ]
    out.table(["A step", "Share", "Calls", "Kind", "Operator", "Launched by"], rows)
    left_out = len(summary.breakdown.operators) - len(shown) + summary.breakdown.operators_left_out
    if left_out:
        out.line(f"and {left_out:,} that took less (--top)", "dim")
    out.line(f"trace: {where_is_trace(summary)}")


def _print_changes(out: Output, before: str, after: str, parts: Sequence[Change], operators: Sequence[Change]) -> None:
    rows = [
        [milliseconds(one.before_s), milliseconds(one.after_s), signed(one.difference_s), NAMES.get(one.name, one.name)]
        for one in (*parts, *operators)
    ]
    out.table([before, after, "more", "a step"], rows)
