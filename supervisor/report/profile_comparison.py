"""Profiles of a run's ranks side by side, and beside those that were made before. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

import msgspec

from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.rundir.profiles import ProfileSummary

PARTS = ("matmul", "other", "communication", "memory", "idle")
NAMES = {
    "matmul": "matrix multiplication",
    "other": "other operators",
    "communication": "communication, not hidden",
    "memory": "memory operations",
    "idle": "idle",
}
"""For people; attention and convolutions are among the first."""
LEAST_SHARE, LEAST_CHANGE = 0.01, 0.1
"""Of a step: what is worth telling of an operator; and of itself: by how much it has to differ."""
TOP = 8
LEAST_SLOWER = 0.03
"""Of a step, by which the slowest rank does more itself than the median one; less is chance."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two profiles, in seconds a step."""

    name: str
    kind: str
    before_s: float
    after_s: float

    @property
    def difference_s(self) -> float:
        """Positive: more."""
        return self.after_s - self.before_s


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """The slowest rank's profile beside the median one's."""

    slowest: int
    median: int
    ranks: int
    """Of how many."""
    is_slower: bool
    """By more than chance makes."""
    parts: list[Change]
    """Before: the median rank's; after: the slowest one's."""
    operators: list[Change]


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """What is different from an earlier profile, over the ranks that both have."""

    number: int
    ranks: list[int]
    step: Change
    parts: list[Change]
    operators: list[Change]


class Shown(NamedTuple):
    """Profiles of one request, one at least, and what they are held against."""

    summaries: list[ProfileSummary]
    beside: Beside | None
    since: Since | None
    missing: dict[int, str]
    """Why ranks have none."""


def own_s(summary: ProfileSummary) -> float:
    """What a step takes a rank but for communication that nothing hides, which is waiting for others as well."""
    return summary.step_s - _part(summary, "communication")


def put_beside(summaries: Sequence[ProfileSummary]) -> Beside | None:
    """The rank that does most by itself in a step beside the median one; None of fewer than two.

    In step with others all ranks' steps take as long: it is those who wait for it that communicate longer.
    """
    alike = [one for one in summaries if one.breakdown.where == summaries[0].breakdown.where]
    if len(alike) < 2:
        return None
    slowest = max(alike, key=own_s)
    others = [one for one in alike if one is not slowest]
    middle_s = median_low(own_s(one) for one in others)
    middle = next(one for one in others if own_s(one) == middle_s)
    return Beside(
        slowest=slowest.rank,
        median=middle.rank,
        ranks=len(alike),
        is_slower=own_s(slowest) - middle_s > LEAST_SLOWER * middle.step_s,
        parts=_parts([middle], [slowest]),
        operators=_operators([middle], [slowest]),
    )


def compare_since(before: Sequence[ProfileSummary], after: Sequence[ProfileSummary]) -> Since | None:
    """What has changed between two requests; None where no rank has both, or not both of a device."""
    kinds = {one.rank: one.breakdown.where for one in before}
    ranks = sorted(one.rank for one in after if kinds.get(one.rank) == one.breakdown.where)
    if not ranks:
        return None
    old, new = ([one for one in found if one.rank in ranks] for found in (before, after))
    return Since(
        number=before[0].number,
        ranks=ranks,
        step=Change(name="a step", kind="", before_s=_mean(old), after_s=_mean(new)),
        parts=_parts(old, new),
        operators=_operators(old, new),
    )


def _parts(before: Sequence[ProfileSummary], after: Sequence[ProfileSummary]) -> list[Change]:
    found = []
    for part in PARTS:
        before_s, after_s = (sum(_part(one, part) for one in these) / len(these) for these in (before, after))
        found.append(Change(name=NAMES[part], kind=part, before_s=before_s, after_s=after_s))
    return found


def _operators(before: Sequence[ProfileSummary], after: Sequence[ProfileSummary]) -> list[Change]:
    """Those that take more, or less, by a share of the step that is worth telling; the most telling first.

    One that is among the top of one side alone may be just below it on the other: it is told where it is far above.
    """
    sides, least = [], []
    for these in (before, after):
        total: dict[tuple[str, str], float] = {}
        for one in these:
            for operator in one.breakdown.operators:
                key = operator.name, operator.kind
                total[key] = total.get(key, 0.0) + one.per_step(operator.total_s) / len(these)
        sides.append(total)
        left_out = any(one.breakdown.operators_left_out for one in these)
        least.append(min(total.values(), default=0.0) if left_out else 0.0)
    found = []
    for name, kind in {**sides[0], **sides[1]}:
        before_s, after_s = (side.get((name, kind), floor) for side, floor in zip(sides, least, strict=True))
        if abs(after_s - before_s) > max(LEAST_SHARE * _mean(after), LEAST_CHANGE * max(before_s, after_s)):
            found.append(Change(name=name, kind=kind, before_s=before_s, after_s=after_s))
    return sorted(found, key=lambda one: (-abs(one.difference_s), one.name))[:TOP]


def _part(summary: ProfileSummary, part: str) -> float:
    return summary.per_step(summary.breakdown.parts.get(part, 0.0))


def _mean(summaries: Sequence[ProfileSummary]) -> float:
    return sum(one.step_s for one in summaries) / len(summaries)


# In words -----------------------------------------------------------------------------------------------------------


def describe(summary: ProfileSummary) -> list[str]:
    """What a rank's profile says, and what it does not, a sentence each; the first follows "Rank 1 on node-a"."""
    found = summary.breakdown
    first, last, count = summary.steps[0][0], summary.steps[-1][0], len(summary.steps)
    which = f"step {first}" if count == 1 else f"steps {first} to {last}"
    where = f"its device ({found.device})" if found.device else "its device"
    sentences = [
        f"{which}, {milliseconds(summary.step_s)} each ({milliseconds(summary.plain_s)} without the profiler); what "
        f"{where if found.where == 'device' else 'the host'} did."
    ]
    if found.communication_s > 0:
        share = found.hidden_s / found.communication_s
        sentences.append(
            f"Communication was under way for {milliseconds(summary.per_step(found.communication_s))} a step, waiting "
            f"for other ranks included; {share:.0%} of it was hidden behind computing."
        )
    if found.where == "host":
        sentences.append("Idle is when no operator ran: Python between them, autograd's own, data, waiting.")
    if summary.unrecorded:
        sentences.append(
            f"torch {summary.torch} can't record its device ({summary.unrecorded}): these are times in which the host "
            "launched work there, or waited for it."
        )
    if count < summary.wanted:
        sentences.append(
            f"{summary.wanted} steps were asked for. It ended earlier: "
            f"{summary.why or 'steps have so many events that there was no room for more'}."
        )
    if found.trouble:
        sentences.append(f"Not all of the trace was read: {found.trouble}.")
    start_s, stop_s, export_s = summary.held_s
    sentences.append(
        f"The rank was held up for {start_s + stop_s + export_s:.2g} s: {start_s:.2g} to put the profiler on, "
        f"{stop_s:.2g} to take it off, {export_s:.2g} to write {found.events:,} events."
    )
    return sentences


def where_is_trace(summary: ProfileSummary) -> str:
    """The trace's path on its rank's node, and its size; or why there is none."""
    if summary.trace:
        return f"{os.path.join(summary.trace_folder, summary.trace)} ({size(summary.trace_bytes)})"
    return f"no trace was kept: {summary.trace_trouble}"


def describe_beside(found: Beside) -> str:
    """One sentence."""
    if not found.is_slower:
        return f"No rank stands out: rank {found.slowest} does hardly more by itself than rank {found.median}."
    own = [one for one in found.parts if one.kind != "communication"]
    more = max(own, key=lambda one: one.difference_s)
    return (
        f"Rank {found.slowest} does more by itself than rank {found.median}{', the median one' * (found.ranks > 2)}: "
        f"{signed(sum(one.difference_s for one in own))} a step, above all {more.name} ({signed(more.difference_s)})."
    )


def describe_since(found: Since) -> str:
    """One sentence."""
    step = found.step
    change = step.difference_s / step.before_s if step.before_s > 0 else 0.0
    if abs(change) < LEAST_SLOWER:
        return f"A step takes as long as in profile {found.number}: {milliseconds(step.after_s)}."
    most = max(found.parts, key=lambda one: one.difference_s * (1 if change > 0 else -1))
    return (
        f"A step takes {abs(change):.0%} {'longer' if change > 0 else 'less'} than in profile {found.number} "
        f"({milliseconds(step.before_s)}, now {milliseconds(step.after_s)}), above all {most.name} "
        f"({signed(most.difference_s)})."
    )


def milliseconds(seconds: float) -> str:
    """`12.3 ms`; `120 µs`."""
    value = seconds * 1e3
    if value >= 1000:
        return f"{value:,.0f} ms"
    return f"{value:.3g} ms" if value >= 1 or not value else f"{1e3 * value:.3g} µs"


def signed(seconds: float) -> str:
    """`+1.2 ms`."""
    return f"{'-' if seconds < 0 else '+'}{milliseconds(abs(seconds))}"
