"""The node's figures for Prometheus: what the sensors say, what was found, and how the agent itself is doing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from guardrun import __version__
from guardrun.supervisor.agent.metric_names import LABELS, PREFIX, SHOWN, Shown, kind_of
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.metrics_endpoint import MetricsServer, Series, ask_loop
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Readout

MAX_OF_ONE = 4096
"""Label values of one metric; what is beyond is left out."""


@dataclass(frozen=True)
class AgentFigures:
    """What the agent knows at one moment."""

    node: str
    now_s: float
    """CLOCK_MONOTONIC."""
    wall_s: float
    """Seconds since 1970, at the same moment."""
    began_s: float
    """CLOCK_MONOTONIC, as the agent began."""
    readouts: Mapping[str, Readout]
    """The newest of each sensor, by its name."""
    findings: Collection[Finding]
    """What is wrong now."""
    happenings: Mapping[str, int]
    """How often each has happened since the agent's start, by its name."""
    is_quarantined: bool
    """No new run of anybody's starts here."""
    jobs: int
    """Those that run here."""
    leftovers: int
    """Processes of dead jobs that would not end."""
    ended_leftovers: int
    """Processes of dead jobs that the agent has ended."""
    clients: int
    """Who is connected to the agent."""
    has_history_trouble: bool
    """The history is not written."""


class Outlet:
    """Where the agent serves them, if anywhere."""

    def __init__(self, post: Callable[[Callable[[], object]], None], figures: Callable[[], AgentFigures]) -> None:
        """post: has the agent's loop make a call. figures: called there."""
        self._post, self._figures = post, figures
        self._server: MetricsServer | None = None

    @property
    def address(self) -> str:
        """`HOST:PORT` as it is served at; empty: nowhere."""
        return self._server.address if self._server else ""

    def serve(self, listen: str) -> None:
        """Serve where the configuration says, from now on; what can't be had is said, and missed."""
        if self._server is not None and listen == self._server.asked:
            return
        self.close()
        if not listen:
            return
        try:
            self._server = MetricsServer(listen, lambda: ask_loop(self._post, lambda: node_series(self._figures())))
        except (OSError, ValueError, ImportError) as error:
            log.warning("no_metrics", listen=listen, why=str(error))
        else:
            log.info("metrics", address=self.address)

    def close(self) -> None:
        """Stop serving; `serve` may begin again."""
        if self._server is not None:
            self._server.close()
            self._server = None


def node_series(figures: AgentFigures) -> list[Series]:
    """All of them."""
    readouts = list(figures.readouts.values())
    return [*sample_series(readouts), *reason_series(readouts), *_sensor_series(figures), *_agent_series(figures)]


def sample_series(readouts: list[Readout]) -> list[Series]:
    """What the sensors say, as SHOWN has it."""
    numbers = _gpu_numbers(readouts)
    found: dict[Shown, dict[tuple[str, ...], float]] = {}
    kinds: dict[Shown, str] = {}
    for readout in readouts:
        for sample in readout.samples:
            value = sample.value
            if value is None or isinstance(value, str) or not math.isfinite(value):
                continue
            kind, which = kind_of(sample.subject, sample.name)
            shown = SHOWN.get((kind, sample.name))
            if shown is None:
                continue
            values = found.setdefault(shown, {})
            kinds[shown] = kind
            if len(values) < MAX_OF_ONE:
                values[_label_values(kind, which, numbers)] = float(value) * shown.scale
    return [
        Series(PREFIX + shown.metric, shown.help, LABELS.get(kinds[shown], ()), values, shown.is_counter)
        for shown, values in found.items()
    ]


def reason_series(readouts: list[Readout]) -> list[Series]:
    """Why devices clock lower than they could: a line for each reason that holds."""
    numbers = _gpu_numbers(readouts)
    values: dict[tuple[str, ...], float] = {}
    for readout in readouts:
        for sample in readout.samples:
            if sample.name == "clock_reasons" and isinstance(sample.value, str):
                _, which = kind_of(sample.subject, sample.name)
                for reason in sample.value.split(","):
                    if reason:
                        labels = (*_label_values("gpu", which, numbers), reason)
                        values[labels] = 1.0
    help = "1 for each reason that a device's clock is lower than it could be."
    return [Series(f"{PREFIX}gpu_clock_reason", help, (*LABELS["gpu"], "reason"), values)]


def _sensor_series(figures: AgentFigures) -> list[Series]:
    now_s, readouts = figures.now_s, figures.readouts
    return [
        Series(
            f"{PREFIX}sensor_read_age_seconds",
            "Since a sensor was last read.",
            ("sensor",),
            {(name,): now_s - readout.at_s for name, readout in readouts.items()},
        ),
        Series(
            f"{PREFIX}sensor_read_seconds",
            "What the last read took.",
            ("sensor",),
            {(name,): readout.took_s for name, readout in readouts.items()},
        ),
        Series(
            f"{PREFIX}sensor_silent",
            "1: a sensor's call does not return.",
            ("sensor",),
            {(name,): float(readout.is_silent) for name, readout in readouts.items()},
        ),
        Series(
            f"{PREFIX}sensor_trouble",
            "1: a sensor tells nothing, or less than it should.",
            ("sensor",),
            {(name,): float(bool(readout.trouble)) for name, readout in readouts.items()},
        ),
    ]


def _agent_series(figures: AgentFigures) -> list[Series]:
    findings: dict[tuple[str, ...], float] = {}
    for finding in figures.findings:
        key = (finding.cause, finding.response.value)
        findings[key] = findings.get(key, 0.0) + 1
    return [
        Series(f"{PREFIX}info", "The agent's version.", ("node", "version"), {(figures.node, __version__): 1.0}),
        Series(f"{PREFIX}findings", "What is wrong now, by cause and response.", ("cause", "response"), findings),
        Series(
            f"{PREFIX}happenings",
            "What has happened since the agent's start, by name.",
            ("name",),
            {(name,): float(count) for name, count in figures.happenings.items()},
            is_counter=True,
        ),
        Series(f"{PREFIX}quarantined", "1: no new run starts here.", (), {(): float(figures.is_quarantined)}),
        Series(f"{PREFIX}jobs", "Jobs that run here.", (), {(): float(figures.jobs)}),
        Series(
            f"{PREFIX}leftover_processes",
            "Processes of dead jobs that would not end.",
            (),
            {(): float(figures.leftovers)},
        ),
        Series(
            f"{PREFIX}leftover_ended_processes",
            "Processes of dead jobs that were ended.",
            (),
            {(): float(figures.ended_leftovers)},
            is_counter=True,
        ),
        Series(f"{PREFIX}agent_clients", "Who is connected to the agent.", (), {(): float(figures.clients)}),
        Series(f"{PREFIX}agent_cpu_seconds", "CPU time of the agent.", (), {(): time.process_time()}, is_counter=True),
        Series(
            f"{PREFIX}agent_start_time_seconds",
            "When the agent began.",
            (),
            {(): figures.wall_s - (figures.now_s - figures.began_s)},
        ),
        Series(
            f"{PREFIX}history_trouble",
            "1: the history is not written.",
            (),
            {(): float(figures.has_history_trouble)},
        ),
    ]


def _gpu_numbers(readouts: list[Readout]) -> dict[str, str]:
    """The driver's number of each device, by its UUID."""
    return {
        sample.subject.partition(":")[2]: str(sample.value)
        for readout in readouts
        for sample in readout.samples
        if sample.name == "index" and sample.subject.startswith("gpu:") and sample.value is not None
    }


def _label_values(kind: str, which: str, numbers: dict[str, str]) -> tuple[str, ...]:
    if kind not in LABELS:
        return ()
    return (numbers.get(which, ""), which) if kind == "gpu" else (which,)
