"""A device's links: NVLinks that are down or err, PCIe that is below what it could be or repeats itself. Pure.

A link that was up and is down for three readings isolates: collectives over it fail, or crawl, at every restart. The
rest is a note: slow is no reason to lose a node. Idle devices lower their PCIe generation to save power, so only a busy
one is judged.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from guardrun.supervisor.core.node.counters import Counter
from guardrun.supervisor.core.node.facts import Readout, Value
from guardrun.supervisor.core.node.finding import Finding, Response
from guardrun.supervisor.core.node.gpu_book import SENSOR, GpuBook, number
from guardrun.supervisor.core.node.held import Held

CAUSE = "gpu_link"
READINGS_DOWN = 3
READINGS_PCIE = 6
"""Health and links are read every ten seconds."""
BUSY_RATIO = 0.3
TWICE_S = 300.0
"""A counter that jumps twice within this time is a verdict; once is none."""
QUIET_S = 600.0
REPLAYS_A_MINUTE = 8.0
"""DCGM_LIMIT_MAX_PCIREPLAY_RATE: the most that NVIDIA's resource manager recommends."""
CRC_A_SECOND = 100.0
"""DCGM: CRC errors only matter from this rate on."""

Values = dict[str, Value | None]


class LinkJudge:
    """`gpu_link`: NVLink state and errors, PCIe width, generation and replays."""

    sensors = frozenset({SENSOR})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()
        self._most: dict[str, float] = {}
        self._down: dict[str, int] = defaultdict(int)
        self._below: dict[str, int] = defaultdict(int)
        self._counters: dict[str, Counter] = defaultdict(lambda: Counter(60.0))
        self._jumps: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2))

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        told: list[Finding] = []
        all_values = self._book.take(readout)
        for subject, values in all_values.items():
            for finding, holds in self._look(subject, values, all_values, readout.at_s, now_s):
                if holds:
                    told += self._held.hold(finding)
                else:
                    told += self._held.end(finding.id, now_s)
        return told

    def _look(
        self, subject: str, values: Values, others: dict[str, Values], at_s: float, now_s: float
    ) -> Iterator[tuple[Finding, bool]]:
        label = self._book.label(subject)

        def finding(name: str, summary: str, advice: str, response: Response = Response.NOTE) -> Finding:
            shown = ("nvlink_", "pcie_")
            evidence = {key: value for key, value in values.items() if key.startswith(shown) and value is not None}
            return Finding(
                id=f"{CAUSE}/{subject}/{name}",
                cause=CAUSE,
                subject=subject,
                since_s=at_s,
                told_s=now_s,
                summary=f"{label}: {summary}",
                evidence=evidence,
                advice=advice,
                response=response,
            )

        active = number(values, "nvlink_active")
        if active is not None:
            most = self._most[subject] = max(active, self._most.get(subject, 0))
            self._down[subject] = self._down[subject] + 1 if active < most else 0
            down = f"{most - active:.0f} of {most:.0f} NVLinks went down (link {values.get('nvlink_inactive')})."
            reseat = "Reset the device; if it comes back, check its seat and the NVSwitches (fabric manager's log)."
            yield finding("nvlink_down", down, reseat, Response.ISOLATE), self._down[subject] >= READINGS_DOWN
            usual = max((number(other, "nvlink_active") or 0 for other in self._alike(subject, others)), default=active)
            fewer = f"{active:.0f} NVLinks are up; others of its model here have {usual:.0f}."
            yield finding("nvlink_fewer", fewer, reseat), active < usual and most < usual
        for name, held in self._nvlink_errors(subject, values, at_s):
            errors = f"its NVLinks err again and again ({name.replace('_', ' ')}: {number(values, name) or 0:.0f})."
            yield finding(name, errors, "`nvidia-smi nvlink -e` says which link; check its seat."), held
        yield from self._pcie(subject, values, at_s, finding)

    def _alike(self, subject: str, others: dict[str, Values]) -> list[Values]:
        model = self._book.model(subject)
        return [values for other, values in others.items() if model and self._book.model(other) == model]

    def _nvlink_errors(self, subject: str, values: Values, at_s: float) -> Iterator[tuple[str, bool]]:
        """Recoveries count one by one, CRC errors by their rate, replays not at all: they are what mends those."""
        for name in ("nvlink_recovery_errors", "nvlink_crc_flit_errors", "nvlink_crc_data_errors"):
            count = number(values, name)
            if count is None:
                continue
            counter = self._counters[f"{subject}/{name}"]
            grown = counter.take(count, at_s)
            is_jump = grown > 0 if name == "nvlink_recovery_errors" else _rate(counter) >= CRC_A_SECOND and grown > 0
            yield name, self._is_twice(f"{CAUSE}/{subject}/{name}", is_jump, at_s)

    def _pcie(
        self, subject: str, values: Values, at_s: float, finding: Callable[[str, str, str], Finding]
    ) -> Iterator[tuple[Finding, bool]]:
        is_below, text = _below_most(values)
        utilization = number(values, "utilization_ratio")
        if is_below is not None and utilization is not None and utilization >= BUSY_RATIO:
            self._below[subject] = self._below[subject] + 1 if is_below else 0
            advice = (
                "Check its seat and its slot's bifurcation in the firmware; look for PCIe errors in the kernel log."
            )
            yield finding("pcie", text, advice), self._below[subject] >= READINGS_PCIE
        replays = number(values, "pcie_replays")
        if replays is not None:
            counter = self._counters[f"{subject}/pcie_replays"]
            grown = counter.take(replays, at_s)
            is_jump = counter.growth() > REPLAYS_A_MINUTE * max(1.0, counter.spent_s() / 60) and grown > 0
            text = f"its PCIe link repeats itself: {counter.growth():.0f} replays in the last minute."
            is_held = self._is_twice(f"{CAUSE}/{subject}/replays", is_jump, at_s, apart_s=60.0)
            yield finding("replays", text, "Check its seat; look for PCIe errors in the kernel log."), is_held

    def _is_twice(self, finding_id: str, is_jump: bool, at_s: float, apart_s: float = 0.0) -> bool:
        """Say whether something came twice within TWICE_S; what came so holds until it was quiet for QUIET_S."""
        jumps = self._jumps[finding_id]
        if is_jump and (not jumps or at_s - jumps[-1] >= apart_s):
            jumps.append(at_s)
        is_quiet = not jumps or at_s - jumps[-1] > QUIET_S
        if self._held.get(finding_id) is not None:
            return not is_quiet
        return len(jumps) == 2 and jumps[1] - jumps[0] <= TWICE_S and not is_quiet


def _rate(counter: Counter) -> float:
    return counter.growth() / counter.spent_s() if counter.spent_s() else 0.0


def _below_most(values: Values) -> tuple[bool | None, str]:
    """Whether PCIe is below what device and slot can do, and how, in words; None where that is not known."""
    known = [
        number(values, name) for name in ("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max")
    ]
    width, width_max, generation, generation_max = known
    if width is None or width_max is None or generation is None or generation_max is None:
        return None, ""
    text = (
        f"its PCIe link runs x{width:.0f} at generation {generation:.0f} under load; "
        f"it could x{width_max:.0f} at generation {generation_max:.0f}."
    )
    return width < width_max or generation < generation_max, text
