"""What a person sees of a run, folded so that it fits whatever the number of ranks: the view, without any layout. Pure.

Every list in it has its bound, so that who draws it has bounded work, too. Strings are as the run has them: who shows
them makes them harmless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from guardrun.supervisor.watch.rank_view import Ranks, fold_ranks
from guardrun.supervisor.watch.run_series import RunSeries, Span
from guardrun.supervisor.watch.run_status import RunStatus

MAX_USES = 8
MAX_INCIDENTS = 100
MAX_LOG = 200
MAX_NOTES = 8
MAX_HOT = 8


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One value of a series."""

    at_s: float
    """Since the run was created."""
    value: float


class Use(msgspec.Struct, frozen=True):
    """A part of a whole. seconds: of all ranks together, or of the run."""

    name: str
    seconds: float
    share: float


class Most(msgspec.Struct, frozen=True, kw_only=True):
    """A size in bytes over ranks: of the median one, and of the one with most."""

    name: str
    median: int
    most: int
    rank: int
    """The one with most."""
    limit: int | None
    """What there is for it at most."""


class Hot(msgspec.Struct, frozen=True, kw_only=True):
    """A device and its temperature."""

    device: str
    node: str
    rank: int | None
    temp_c: float
    at_s: float


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One line on an incident."""

    id: str
    kind: str
    cause: str
    summary: str
    action: str


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log."""

    time: str
    level: str
    text: str


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run."""

    run_id: str
    state: str
    source: str
    """supervisor or directory."""
    why: str
    """Why it is not from the supervisor."""
    is_over: bool
    outcome: str
    """Of a run that is over, in words."""
    reason: str
    attempt: int | None
    world_size: int
    node: str
    uptime_s: float
    restarts: int
    is_held: bool
    step: int | None
    """Of the rank that is furthest."""
    checkpoint_step: int | None
    stall: str
    outlook: str
    goodput: float | None
    lost: list[Use]
    """Seconds of the run that were no training, largest first."""
    now_s: float
    """Of the newest that the journal has, since the run was created."""
    step_times: list[Point]
    losses: list[Point]
    step_time_s: float | None
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    time: list[Use]
    """Where the time of ordinary steps went, of all ranks, in the window."""
    memory: list[Most]
    heat: list[Hot]
    ranks: Ranks
    incidents: list[Incident]
    """The newest first."""
    log: list[Log]
    """The newest last."""
    notes: list[str]


def make_view(
    status: RunStatus,
    series: RunSeries,
    *,
    source: str,
    why: str,
    window_s: float = math.inf,
    notes: Sequence[str] = (),
) -> RunView:
    """window_s: how far back curves and shares of time go."""
    summary = status.summary or {}
    now_s = series.last_s
    from_s = now_s - window_s
    spans = [span for span in series.spans if span.until_s >= from_s]
    steps = [rank.step for rank in status.ranks if rank.step is not None]
    checkpoint = (status.checkpoint or {}).get("step")
    stall = status.stall or {}
    return RunView(
        run_id=status.run_id,
        state=status.state,
        source=source,
        why=why,
        is_over=status.state in ("ended", "unfinished"),
        outcome=f"{summary.get('outcome')}, exit code {summary.get('exit_code')}" if summary else "",
        reason=str(summary.get("reason") or ""),
        attempt=status.attempt,
        world_size=status.world_size,
        node=status.node,
        uptime_s=status.uptime_s,
        restarts=status.restarts,
        is_held=status.held,
        step=max(steps, default=None),
        checkpoint_step=checkpoint if isinstance(checkpoint, int) else None,
        stall=str(stall.get("summary") or ""),
        outlook=str(stall.get("outlook") or ""),
        goodput=status.goodput,
        lost=_lost(status, summary.get("lost_s")),
        now_s=now_s,
        step_times=[Point(span.at_s, value) for span in spans if (value := span.step_time_s()) is not None],
        losses=[Point(span.at_s, span.loss) for span in spans if span.loss is not None],
        step_time_s=median_known([rank.step_time_s for rank in status.ranks]) or _last_step_time(spans),
        loss=_or(median_known([rank.loss for rank in status.ranks]), _last_loss(series.spans)),
        grad_norm=_or(median_known([rank.grad_norm for rank in status.ranks]), series.grad_norm),
        learning_rate=_or(median_known([rank.learning_rate for rank in status.ranks]), series.learning_rate),
        time=_time(spans),
        memory=_memory(series),
        heat=_heat(series),
        ranks=fold_ranks(status, series),
        incidents=[
            Incident(id=one.id, kind=one.kind, cause=one.cause, summary=one.summary, action=one.action or "")
            for one in status.incidents[: -MAX_INCIDENTS - 1 : -1]
        ],
        log=[Log(time=line.time, level=line.level, text=line.text) for line in list(series.log)[-MAX_LOG:]],
        notes=_notes(status, series, notes),
    )


def _or(first: float | None, second: float | None) -> float | None:
    return second if first is None else first


def median_known(values: Sequence[float | None]) -> float | None:
    """Of those that are numbers; None: none is."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return median(known) if known else None


def _last_step_time(spans: Sequence[Span]) -> float | None:
    return next((value for span in reversed(spans) if (value := span.step_time_s()) is not None), None)


def _last_loss(spans: Sequence[Span]) -> float | None:
    return next((span.loss for span in reversed(spans) if span.loss is not None), None)


def _lost(status: RunStatus, of_summary: object) -> list[Use]:
    lost = of_summary if isinstance(of_summary, dict) else status.lost_s
    known = {str(use): float(seconds) for use, seconds in lost.items() if isinstance(seconds, (int, float))}
    whole_s = max(status.uptime_s, sum(known.values()), 1e-9)
    used = [Use(use, seconds, seconds / whole_s) for use, seconds in known.items() if seconds >= 0.05]
    return sorted(used, key=lambda use: -use.seconds)[:MAX_USES]


def _time(spans: Sequence[Span]) -> list[Use]:
    took_s = sum(span.took_s for span in spans)
    if took_s <= 0:
        return []
    waited_s, data_s = sum(span.waited_s for span in spans), sum(span.data_s for span in spans)
    gc_s = sum(span.gc_s for span in spans)
    work_s = max(0.0, took_s - waited_s - data_s - gc_s)
    parts = (("work", work_s), ("waiting", waited_s), ("data", data_s), ("gc", gc_s))
    return [Use(name, seconds, seconds / took_s) for name, seconds in parts]


def _memory(series: RunSeries) -> list[Most]:
    found = []
    host = [(one.resident, rank, one.limit) for rank, one in series.memory.items()]
    device = [(one.allocated, rank, one.device_limit) for rank, one in series.memory.items()]
    for name, each in (("host", host), ("device", device)):
        sizes = [(size, -rank, limit) for size, rank, limit in each if size is not None]
        if sizes:
            most, rank, limit = max(sizes, key=lambda one: one[:2])
            middle = int(median(size for size, _, _ in sizes))
            found.append(Most(name=name, median=middle, most=most, rank=-rank, limit=limit))
    return found


def _heat(series: RunSeries) -> list[Hot]:
    hottest = sorted(series.heat.values(), key=lambda one: -one.temp_c)[:MAX_HOT]
    return [
        Hot(device=one.device, node=one.node, rank=series.devices.get(one.device), temp_c=one.temp_c, at_s=one.at_s)
        for one in hottest
    ]


def _notes(status: RunStatus, series: RunSeries, others: Sequence[str]) -> list[str]:
    """What nodes have, what hooks say (each thing once, with how many ranks say it), and what else there is to say."""
    away = [one for one in status.nodes if one.standing not in ("ready", "") or one.why]
    of_nodes = [f"{one.node} is {one.standing}{f': {one.why}' if one.why else ''}" for one in away[:MAX_NOTES]]
    found = [finding.summary for finding in series.findings.values()]
    said: dict[str, set[str]] = {}
    for line in status.notes:
        who, _, text = line.partition(": ")
        said.setdefault(text, set()).add(who)
    hooks = [f"{text} ({next(iter(who)) if len(who) == 1 else f'{len(who)} ranks'})" for text, who in said.items()]
    return [*others, *of_nodes, *found[:MAX_NOTES], *hooks[-3:]][:MAX_NOTES]
