"""What a run's journal tells over time, folded: step times, losses, where time goes, memory, heat, what was said.

Pure: fed with entries, one after the other. Its memory is bounded whatever the length of the run: sums over some
seconds each, the older ones coarser, and a few numbers of each rank.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.query.journal_reader import Entry

SPAN_S = 2.0
MAX_SPANS = 2048
MAX_RANKS = 200_000
MAX_GAUGES = 8192
MAX_FINDINGS = 256
MAX_LOG = 1000
MAX_MARKS = 512
MAX_TEXT = 1000
MARKED = ("attempt_started", "checkpoint_saved", "run_continued", "supervisor_restarted")
SHOWN_GAUGES = ("temperature_c",)
_STRANGE = (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError)
"""What a line that is none of ours may raise; msgspec's errors are ValueErrors."""


class Span(msgspec.Struct):
    """What was reported within some seconds."""

    at_s: float
    until_s: float
    steps: int = 0
    """Of all ranks together, as are the seconds."""
    took_s: float = 0.0
    waited_s: float = 0.0
    data_s: float = 0.0
    gc_s: float = 0.0
    loss: float | None = None
    """Of each report the median of its ranks, and of these the last; likewise those that follow, …"""
    grad_norm: float | None = None
    learning_rate: float | None = None
    resident: int | None = None
    """… but memory: bytes, of the rank that has most, on the host …"""
    allocated: int | None = None
    """… and on its device."""

    def step_time_s(self) -> float | None:
        """Of a step, on average over ranks."""
        return self.took_s / self.steps if self.steps else None

    def add(self, other: Span) -> None:
        """Take in the one after it."""
        self.until_s = other.until_s
        self.steps += other.steps
        self.took_s += other.took_s
        self.waited_s += other.waited_s
        self.data_s += other.data_s
        self.gc_s += other.gc_s
        self.loss = self.loss if other.loss is None else other.loss
        self.grad_norm = self.grad_norm if other.grad_norm is None else other.grad_norm
        self.learning_rate = self.learning_rate if other.learning_rate is None else other.learning_rate
        self.resident = _most([other.resident], self.resident)
        self.allocated = _most([other.allocated], self.allocated)


class Mark(NamedTuple):
    """A moment of a run that a person looks for on a curve."""

    at_s: float
    kind: str
    """As the journal calls it: attempt_started, checkpoint_saved, run_continued, supervisor_restarted."""
    text: str


class RankSteps(NamedTuple):
    """What a rank's steps went to between its last two reports; seconds a step."""

    step_s: float
    work_s: float
    waited_s: float


class RankMemory(NamedTuple):
    """The last that was read, in bytes; None: not known."""

    resident: int | None = None
    """Of its own process and of those below it."""
    used: int | None = None
    limit: int | None = None
    """What all use of the limit with least room, and that limit."""
    allocated: int | None = None
    reserved: int | None = None
    device_limit: int | None = None


class Heat(NamedTuple):
    """A device's temperature."""

    node: str
    device: str
    at_s: float
    temp_c: float


class LogLine(NamedTuple):
    """What guardrun said, or what happened."""

    time: str
    """`HH:MM:SS`, UTC."""
    level: str
    """info, good, warn, bad; as actions.Say has them."""
    text: str


class RunSeries:
    """Feed it every entry that there is, in order; read its fields."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.steps: dict[int, RankSteps] = {}
        self.memory: dict[int, RankMemory] = {}
        self.heat: dict[tuple[str, str], Heat] = {}
        self.devices: dict[str, int] = {}
        """Of a device the rank that trains on it."""
        self.findings: dict[str, Finding] = {}
        """That last, of nodes."""
        self.log: deque[LogLine] = deque(maxlen=MAX_LOG)
        self.marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.folds = 0
        """How often older spans have been put together."""
        self.last_s = 0.0
        self.learning_rate: float | None = None
        self.grad_norm: float | None = None
        self._before: dict[int, ev.StepBreakdown] = {}
        self._zero: ev.StepBreakdown | None = None
        """What the first report of an attempt is counted from; None where its beginning was not seen."""
        self._attempt: int | None = None
        self._saved: int | None = None

    def feed(self, entries: Iterable[Entry]) -> None:
        """Learn from these. Lines that are not what they should be are passed over."""
        for entry in entries:
            try:
                self._feed(entry)
            except _STRANGE:
                continue

    def _feed(self, entry: Entry) -> None:
        if math.isfinite(entry.at_s):
            self.last_s = max(self.last_s, entry.at_s)
        match entry.kind:
            case "node_report":
                self._report(entry.event)
            case "attempt_started":
                self._start(entry.event)
            case "node_told":
                self._nodes(entry.event)
        for text in _happened(entry):
            if entry.kind == "checkpoint_saved":  # every rank of a sharded save says so
                if self._saved == entry.event.step:
                    continue
                self._saved = entry.event.step
            self._log_line(entry, *text)
            if entry.kind in MARKED:
                self.marks.append(Mark(self.last_s, entry.kind, text[1][:MAX_TEXT]))
        for said in entry.actions_of("say"):
            self._log_line(entry, str(said.get("level", "info")), str(said.get("text", "")))

    def _log_line(self, entry: Entry, level: str, text: str) -> None:
        self.log.append(LogLine(entry.wall[11:19], level, text[:MAX_TEXT]))

    def _start(self, event: ev.AttemptStarted) -> None:
        self._attempt, self._before, self._zero = event.attempt, {}, ev.StepBreakdown(0, 0.0, 0.0, 0.0, 0.0)
        self.steps, self.memory = {}, {}

    def _report(self, event: ev.NodeReport) -> None:
        if event.attempt != self._attempt:
            self._attempt, self._before, self._zero = event.attempt, {}, None
            self.steps, self.memory = {}, {}
        span = self._span()
        losses: list[float | None] = []
        rates: list[float | None] = []
        norms: list[float | None] = []
        resident: list[int | None] = []
        allocated: list[int | None] = []
        for report in event.ranks:
            if report.spent is not None:
                self._take_steps(span, report.global_rank, report.spent)
            if report.metrics is not None:
                losses.append(report.metrics.loss)
                norms.append(report.metrics.grad_norm)
                rates.append(report.metrics.learning_rate)
            if report.memory is not None or report.device_memory is not None:
                self._take_memory(report)
                resident.append(report.memory.own + report.memory.below if report.memory is not None else None)
                allocated.append(report.device_memory.allocated if report.device_memory is not None else None)
        span.loss = _median(losses, span.loss)
        span.grad_norm = _median(norms, span.grad_norm)
        span.learning_rate = _median(rates, span.learning_rate)
        span.resident = _most(resident, span.resident)
        span.allocated = _most(allocated, span.allocated)
        self.grad_norm = _median(norms, self.grad_norm)
        self.learning_rate = _median(rates, self.learning_rate)

    def _span(self) -> Span:
        """The one that what is reported now belongs to."""
        if self.spans and self.last_s < self.spans[-1].at_s + SPAN_S:
            self.spans[-1].until_s = self.last_s
            return self.spans[-1]
        if len(self.spans) >= MAX_SPANS:
            older = self.spans[: MAX_SPANS // 2]
            for first, second in zip(older[::2], older[1::2], strict=True):
                first.add(second)
            self.spans[: MAX_SPANS // 2] = older[::2]
            self.folds += 1
        self.spans.append(Span(self.last_s, self.last_s))
        return self.spans[-1]

    def _take_steps(self, span: Span, rank: int, now: ev.StepBreakdown) -> None:
        before = self._before.get(rank, self._zero)
        if rank in self._before or len(self._before) < MAX_RANKS:
            self._before[rank] = now
        if before is None or now.steps <= before.steps:
            return
        steps, took_s, waited_s = now.steps - before.steps, now.took_s - before.took_s, now.waited_s - before.waited_s
        data_s, gc_s = now.data_s - before.data_s, now.gc_s - before.gc_s
        if not math.isfinite(took_s + waited_s + data_s + gc_s):
            return
        span.steps += steps
        span.took_s += took_s
        span.waited_s += waited_s
        span.data_s += data_s
        span.gc_s += gc_s
        work_s = max(0.0, took_s - waited_s - data_s - gc_s)
        self.steps[rank] = RankSteps(took_s / steps, work_s / steps, waited_s / steps)

    def _take_memory(self, report: ev.RankReport) -> None:
        rank, host, device = report.global_rank, report.memory, report.device_memory
        if rank not in self.memory and len(self.memory) >= MAX_RANKS:
            return
        one = self.memory.get(rank, RankMemory())
        if host is not None:
            used = (host.used, host.limit) if host.limit else (None, None)
            one = one._replace(resident=host.own + host.below, used=used[0], limit=used[1])
        if device is not None:
            limit = device.limit or device.total or None
            one = one._replace(allocated=device.allocated, reserved=device.reserved, device_limit=limit)
        self.memory[rank] = one

    def _nodes(self, event: ev.NodeFindingsReported) -> None:
        for rank, device in event.devices.items():
            if device is not None and (device.subject in self.devices or len(self.devices) < MAX_GAUGES):
                self.devices[device.subject] = rank
        for gauge in event.gauges:
            key = (event.node, gauge.subject)
            if gauge.name in SHOWN_GAUGES and (key in self.heat or len(self.heat) < MAX_GAUGES):
                self.heat[key] = Heat(event.node, gauge.subject, gauge.at_s, gauge.value)
        for finding in event.findings:
            key_of = f"{event.node}/{finding.id}"
            if finding.is_over:
                self.findings.pop(key_of, None)
            elif len(self.findings) < MAX_FINDINGS:
                self.findings[key_of] = finding


def _median(values: list[float | None], otherwise: float | None) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return median(known) if known else otherwise


def _most(values: Iterable[int | None], otherwise: int | None) -> int | None:
    return max((value for value in (*values, otherwise) if value is not None), default=None)


def _happened(entry: Entry) -> Iterable[tuple[str, str]]:
    """(level, text) of what guardrun does not say on the terminal, and a person who watches wants to see."""
    match entry.kind:
        case "attempt_started":
            ranks = len(entry.event.ranks)
            yield "info", f"attempt {entry.event.attempt} started: {ranks} rank{'s' if ranks != 1 else ''}"
        case "checkpoint_saved":
            yield "info", f"saved at step {entry.event.step}: {entry.event.path}"
        case "rank_exited":
            code = entry.event.exitcode
            if code:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
                yield "warn", f"rank {entry.event.global_rank} {how}"
        case "rank_raised":
            error = entry.event.error
            yield "warn", f"rank {entry.event.global_rank} raised {error.error}: {error.message}"
        case "run_opened":
            yield "info", "the run began"
        case "run_continued":
            yield "info", "the run was continued"
        case "supervisor_restarted":
            yield "info", "the supervisor was started again"
        case "node_told":
            for finding in entry.event.findings:
                if not finding.is_over:
                    yield "warn", f"{entry.event.node}: {finding.summary}"
