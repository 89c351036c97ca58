"""A profile as a page: where steps of each rank go, the slowest beside the median one, what changed, top operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from guardrun.supervisor.report.elements.html_page import Guard, Table, make_table, render
from guardrun.supervisor.report.profile_comparison import (
    NAMES,
    PARTS,
    Beside,
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

MAX_RANKS = 64
TOP = 20


def profile_html(run_id: str, shown: Shown) -> str:
    """The page."""
    summaries, beside, since, missing = shown
    parts: dict[str, Callable[[], Any]] = {
        "bars": lambda: [_bar(one) for one in summaries[:MAX_RANKS]],
        "shares": lambda: _shares(summaries[:MAX_RANKS]),
        "beside": lambda: _changes(beside.parts, beside.operators, *_beside_names(beside)) if beside else None,
        "since": lambda: _changes(since.parts, since.operators, f"profile {since.number}", "now") if since else None,
        "ranks": lambda: [(_heading(one), describe(one), _operators(one)) for one in summaries[:MAX_RANKS]],
        "traces": lambda: [f"{_heading(one)}: {where_is_trace(one)}" for one in summaries],
        "missing": lambda: [f"Rank {rank}: {why}" for rank, why in sorted(missing.items())],
    }
    first = summaries[0]
    return render(
        "profile.html",
        title=f"{run_id}: profile {first.number}",
        where=f"guardrun · {run_id} · profile {first.number}",
        headline=headline(summaries, beside),
        kinds=[(part, NAMES[part]) for part in PARTS],
        beside_words=describe_beside(beside) if beside else "",
        since_words=describe_since(since) if since else "",
        left_out=max(0, len(summaries) - MAX_RANKS),
        guard=Guard(),
        parts=parts,
    )


def headline(summaries: Sequence[ProfileSummary], beside: Beside | None) -> str:
    """All of it in a sentence or two."""
    step_s = sum(one.step_s for one in summaries) / len(summaries)
    parts = {
        part: sum(one.breakdown.parts.get(part, 0.0) for one in summaries)
        / (sum(one.breakdown.window_s for one in summaries) or 1.0)
        for part in PARTS
    }
    most = sorted(parts, key=lambda part: -parts[part])[:2]
    told = ", ".join(f"{parts[part]:.0%} {NAMES[part]}" for part in most)
    words = f"A step takes {milliseconds(step_s)}: {told}."
    return f"{words} {describe_beside(beside)}" if beside and beside.is_slower else words


def _heading(summary: ProfileSummary) -> str:
    return f"Rank {summary.rank} on {summary.node or '?'}"


def _bar(summary: ProfileSummary) -> tuple[str, list[tuple[str, float, float, str]]]:
    """(rank, (kind, from, width, words) each), both in per cent of the window."""
    window_s, left, bars = summary.breakdown.window_s or 1.0, 0.0, []
    for part in PARTS:
        share = 100 * summary.breakdown.parts.get(part, 0.0) / window_s
        words = f"{NAMES[part]}: {milliseconds(summary.per_step(summary.breakdown.parts.get(part, 0.0)))} a step"
        bars.append((part, left, share, words))
        left += share
    return f"rank {summary.rank}", bars


def _shares(summaries: Sequence[ProfileSummary]) -> Table | None:
    headings = ["Rank", "Step", "Matmul", "Other", "Comm.", "Memory", "Idle", "Hidden"]
    rows = []
    for one in summaries:
        found = one.breakdown
        cells = [_share(found.parts.get(part, 0.0), found.window_s) for part in PARTS]
        hidden = _share(found.hidden_s, found.communication_s) if found.communication_s > 0 else ""
        rows.append(("", [str(one.rank), milliseconds(one.step_s), *cells, hidden]))
    return make_table(headings, rows)


def _operators(summary: ProfileSummary) -> Table | None:
    rows = [
        (
            "",
            [
                one.name,
                NAMES.get(one.kind, one.kind).partition(",")[0],
                f"{one.calls / len(summary.steps):,.4g}",
                milliseconds(summary.per_step(one.total_s)),
                _share(one.total_s, summary.breakdown.window_s),
                one.under,
            ],
        )
        for one in summary.breakdown.operators[:TOP]
    ]
    headings = ["Operator", "Kind", "Calls a step", "A step", "Share", "Launched by"]
    return make_table(headings, rows, wide=("Operator", "Launched by"))


def _beside_names(found: Beside) -> tuple[str, str]:
    return f"rank {found.median}, the median", f"rank {found.slowest}, the slowest"


def _changes(parts: Sequence[Change], operators: Sequence[Change], before: str, after: str) -> Table | None:
    rows = [
        (kind, [one.name, milliseconds(one.before_s), milliseconds(one.after_s), signed(one.difference_s)])
        for kind, found in (("", parts), ("", operators))
        for one in found
    ]
    return make_table(
        ["A step", before[:1].upper() + before[1:], after[:1].upper() + after[1:], "More"], rows, wide=("A step",)
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else ""
