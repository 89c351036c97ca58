"""Tables of what the journal has over time, of every rank: steps, metrics, memory; and of devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.query.journal_reader import Entry
from guardrun.supervisor.query.table import INTEGER, REAL, TEXT, Row, Table, columns

_WHO = (
    ("rank", INTEGER, "global rank"),
    ("node", TEXT, "where it runs"),
    ("attempt", INTEGER, "of the run, from 0"),
    ("at_s", REAL, "seconds since the run was created"),
)
_REPORTED = "hooks report it every {}; a run without hooks, or a shorter one, has none"

STEPS = Table(
    "steps",
    "What the steps of each rank went to: a row for the steps between two reports, every four seconds or so. "
    "Evaluations and saves are left out.",
    columns(
        *_WHO,
        ("step", INTEGER, "the rank's step at the end"),
        ("steps", INTEGER, "how many steps the sums are of"),
        ("time_s", REAL, "all of them took"),
        ("work_s", REAL, "of that: its own work, what is not one of the following"),
        ("waiting_s", REAL, "of that: waiting for other ranks in collectives, as far as it can be seen"),
        ("data_s", REAL, "of that: waiting for data"),
        ("gc_s", REAL, "of that: in garbage collections"),
    ),
    "no step times are in the journal: " + _REPORTED.format("four seconds or so"),
)
METRICS = Table(
    "metrics",
    "What training computes: a row for the steps since the rank last reported it, every four seconds or so.",
    columns(
        *_WHO,
        ("first_step", INTEGER, "the first of these steps"),
        ("step", INTEGER, "the last of them"),
        ("loss", REAL, "median of those that are finite"),
        ("grad_norm", REAL, "likewise, of the gradients; a rank's own part where parameters are sharded"),
        ("learning_rate", REAL, "of the first parameter group, at the last step"),
        ("usual_loss", REAL, "median of the steps before"),
        ("usual_norm", REAL, "likewise"),
        ("skipped", INTEGER, "steps of the attempt so far that a GradScaler left out"),
        ("nonfinite", INTEGER, "steps of the attempt so far with a loss or a norm that is not finite"),
        ("left_out", INTEGER, "steps of the attempt so far that guardrun left out"),
        ("odd", INTEGER, "how many of these steps are not finite, or far from those before (8 at most are told)"),
        ("odd_step", INTEGER, "the first of those"),
        ("odd_loss", REAL, "its loss; NULL: not finite, or not seen"),
        ("odd_norm", REAL, "its gradient norm; likewise"),
    ),
    "no loss, gradient norm or learning rate was seen: " + _REPORTED.format("four seconds or so"),
)
MEMORY = Table(
    "memory",
    "Memory of each rank, in bytes, every half minute or so: the host's, and what its device's allocator says.",
    columns(
        *_WHO,
        ("step", INTEGER, "the rank's step by then"),
        ("resident", INTEGER, "anonymous and swapped-out memory of the rank's own process"),
        ("below", INTEGER, "what processes below it have come to hold of their own"),
        ("processes", INTEGER, "how many live below it"),
        ("shared", INTEGER, "shared memory of the one of them that has most of it"),
        ("used", INTEGER, "what all use of the limit with least room"),
        ("host_limit", INTEGER, "that limit; NULL: none is known"),
        ("allocated", INTEGER, "in tensors, after a step"),
        ("peak", INTEGER, "the most that it has been, or since the script reset that"),
        ("reserved", INTEGER, "what the allocator has got of the device"),
        ("inactive", INTEGER, "of that: free, and can't be given back (fragmentation)"),
        ("segments", INTEGER, "of the allocator"),
        ("retries", INTEGER, "how often so far unused memory had to be given back first"),
        ("ooms", INTEGER, "how often there was none even then"),
        ("device_limit", INTEGER, "what it could reserve at most; NULL: not known"),
        ("device_total", INTEGER, "the device's; NULL: not known"),
    ),
    "no memory was read: it is every half minute or so, and a shorter run has none",
)
GPU = Table(
    "gpu",
    "Readings of devices of which something was told, from a while before that on, and how busy each was at a look.",
    columns(
        ("at_s", REAL, "seconds since the run was created"),
        ("node", TEXT, "where it is"),
        ("device", TEXT, "`gpu:UUID`; empty: not known"),
        ("rank", INTEGER, "the global rank that trains on it"),
        ("name", TEXT, "`temperature_c`, `sm_clock_hz`, `busy_share`, …"),
        ("value", REAL, "in the unit that the name has"),
    ),
    "no readings of devices are in the journal: they are kept once something is found of a device "
    "(`guardctl node` has the present ones)",
)


class Builder(Protocol):
    """Makes a table's rows of the journal's events."""

    kinds: frozenset[str]
    """Of events that it looks at; empty: all."""

    def rows(self, entry: Entry) -> Iterator[Row]:
        """What an event adds. Raises msgspec.DecodeError and others, where it is not what it should be."""

    def last(self) -> Iterator[Row]:
        """What is left when all have been seen."""


class _Reports:
    """Of what ranks report."""

    kinds = frozenset({"node_report"})

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event: ev.NodeReport = entry.event
        for report in event.ranks:
            for own in self.of_rank(report):
                yield (report.global_rank, event.node, event.attempt, entry.at_s, *own)

    def of_rank(self, report: ev.RankReport) -> Iterator[Row]:
        """What one report adds, without who and when."""
        raise NotImplementedError

    def last(self) -> Iterator[Row]:
        """As Builder has it."""
        return iter(())


class Steps(_Reports):
    """Ranks report sums since the attempt began: differences tell."""

    kinds = frozenset({"node_report", "attempt_started"})

    def __init__(self) -> None:
        self._before: dict[int, ev.StepBreakdown] = {}
        self._zero: ev.StepBreakdown | None = None
        """Where the beginning of the attempt is not kept, the first report is of steps from nobody knows when."""
        self._attempt: int | None = None

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event = entry.event
        if entry.kind == "attempt_started" or event.attempt != self._attempt:
            self._before, self._attempt = {}, event.attempt
            self._zero = ev.StepBreakdown(0, 0.0, 0.0, 0.0, 0.0) if entry.kind == "attempt_started" else None
        if entry.kind == "node_report":
            yield from super().rows(entry)

    def of_rank(self, report: ev.RankReport) -> Iterator[Row]:
        """Of one."""
        now, before = report.spent, self._before.get(report.global_rank, self._zero)
        if now is None:
            return
        self._before[report.global_rank] = now
        if before is None or now.steps <= before.steps:
            return
        took_s, waited_s = now.took_s - before.took_s, now.waited_s - before.waited_s
        data_s, gc_s = now.data_s - before.data_s, now.gc_s - before.gc_s
        work_s = max(0.0, took_s - waited_s - data_s - gc_s)
        yield (report.step or None, now.steps - before.steps, took_s, work_s, waited_s, data_s, gc_s)


class Metrics(_Reports):
    """As reported."""

    def of_rank(self, report: ev.RankReport) -> Iterator[Row]:
        """Of one."""
        one = report.metrics
        if one is None:
            return
        odd: tuple[Any, ...] = (one.odd[0].step, one.odd[0].loss, one.odd[0].grad_norm) if one.odd else (None,) * 3
        told = (one.first, one.last, one.loss, one.grad_norm, one.learning_rate, one.usual_loss, one.usual_norm)
        yield (*told, one.skipped, one.nonfinite, one.left_out, len(one.odd), *odd)


class Memory(_Reports):
    """As reported; host and device come at times of their own."""

    def of_rank(self, report: ev.RankReport) -> Iterator[Row]:
        """Of one."""
        host, device = report.memory, report.device_memory
        if host is None and device is None:
            return
        of_host: Row = (None,) * 6
        if host is not None:
            limit = host.limit or None
            used = host.used if host.limit else None
            of_host = (host.own, host.below, host.processes, host.shared, used, limit)
        of_device: Row = (None,) * 9
        if device is not None:
            sizes = (device.allocated, device.peak, device.reserved, device.inactive, device.segments)
            of_device = (*sizes, device.retries, device.ooms, device.limit or None, device.total or None)
        yield (report.step or None, *of_host, *of_device)


class Gpu:
    """Gauges, and looks."""

    kinds = frozenset({"node_told", "look_taken", "attempt_started"})

    def __init__(self) -> None:
        self._devices: dict[int, str] = {}
        self._nodes: dict[int, str] = {}

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event = entry.event
        if isinstance(event, ev.AttemptStarted):
            self._nodes = {rank.global_rank: rank.node for rank in event.ranks}
        elif isinstance(event, ev.LookTaken):
            for look in event.ranks:
                if look.gpu_busy >= 0:
                    rank = look.global_rank
                    who = (self._nodes.get(rank), self._devices.get(rank, ""), rank)
                    yield (look.at_s, *who, "busy_share", look.gpu_busy)
        else:
            for rank, device in event.devices.items():
                self._devices[rank] = device.subject if device is not None else ""
            ranks = {device: rank for rank, device in self._devices.items() if device}
            for gauge in event.gauges:
                if gauge.subject.startswith("gpu:"):
                    subject = gauge.subject
                    yield (gauge.at_s, event.node, subject, ranks.get(subject), gauge.name, gauge.value)

    def last(self) -> Iterator[Row]:
        """As Builder has it."""
        return iter(())
