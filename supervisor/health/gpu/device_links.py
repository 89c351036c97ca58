"""A device's links: NVLinks that are down or err, PCIe that is below what it could be or repeats itself. Pure.

A link that was up and is down for three readings isolates: collectives over it fail, or crawl, at every restart. The
rest is a note: slow is no reason to lose a node. Idle devices lower their PCIe generation to save power, so only a busy
one is judged.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from guardrun.supervisor.health.base.findings import Finding, Held, Response
from guardrun.supervisor.health.base.persistence import WindowedCounter
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.gpu.gpu_inventory import SENSOR, GpuBook, number

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

RESEAT = "Reset the device; if it comes back, check its seat and the NVSwitches (fabric manager's log)."
CHECK_SLOT = "Check its seat and its slot's bifurcation in the firmware; look for PCIe errors in the kernel log."

Values = dict[str, Value | None]


class Turn(NamedTuple):
    """What one device tells at one turn."""

    subject: str
    label: str
    values: Values
    at_s: float
    now_s: float

    def id(self, name: str) -> str:
        """The finding's id: one a device and kind of trouble."""
        return f"{CAUSE}/{self.subject}/{name}"

    def finding(self, name: str, key: str, text: str, advice: str, response: Response = Response.NOTE) -> Finding:
        """A finding of this device, with all of its link counters as evidence. text: follows the device's label."""
        shown = ("nvlink_", "pcie_")
        evidence = {name: value for name, value in self.values.items() if name.startswith(shown) and value is not None}
        return Finding(
            id=self.id(name),
            cause=CAUSE,
            key=f"{CAUSE}_{key}",
            subject=self.subject,
            since_s=self.at_s,
            told_s=self.now_s,
            summary=f"{self.label}: {text}",
            evidence=evidence,
            advice=advice,
            response=response,
        )


class LinkJudge:
    """`gpu_link`: NVLink state and errors, PCIe width, generation and replays."""

    sensors = frozenset({SENSOR})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()
        self._most: dict[str, float] = {}
        self._down: dict[str, int] = defaultdict(int)
        self._below: dict[str, int] = defaultdict(int)
        self._counters: dict[str, WindowedCounter] = defaultdict(lambda: WindowedCounter(60.0))
        self._jumps: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2))

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges each device's links; the number of its NVLinks also against other devices of its model."""
        told: list[Finding] = []
        all_values = self._book.update(readout)
        for subject, values in all_values.items():
            turn = Turn(subject, self._book.label(subject), values, readout.at_s, now_s)
            for finding, is_held in self._look(turn, all_values):
                told += self._held.hold(finding) if is_held else self._held.end(finding.id, now_s)
        return told

    def _look(self, turn: Turn, others: dict[str, Values]) -> Iterator[tuple[Finding, bool]]:
        """Everything that there could be to tell of a device, and whether it holds."""
        active = number(turn.values, "nvlink_active")
        if active is not None:
            most = self._most[turn.subject] = max(active, self._most.get(turn.subject, 0))
            self._down[turn.subject] = self._down[turn.subject] + 1 if active < most else 0
            which = turn.values.get("nvlink_inactive")
            text = f"{most - active:.0f} of {most:.0f} NVLinks went down (link {which})."
            is_down = self._down[turn.subject] >= READINGS_DOWN
            yield turn.finding("nvlink_down", "down", text, RESEAT, Response.ISOLATE), is_down
            usual = max(number(other, "nvlink_active") or 0 for other in self._alike(turn, others))
            text = f"{active:.0f} NVLinks are up; others of its model here have {usual:.0f}."
            yield turn.finding("nvlink_fewer", "errors", text, RESEAT), most < usual
        for name, is_held in self._nvlink_errors(turn):
            text = f"its NVLinks err again and again ({name.replace('_', ' ')}: {number(turn.values, name) or 0:.0f})."
            yield turn.finding(name, "errors", text, "`nvidia-smi nvlink -e` says which link; check its seat."), is_held
        yield from self._pcie(turn)

    def _alike(self, turn: Turn, others: dict[str, Values]) -> list[Values]:
        """What devices of its model tell, itself among them."""
        model = self._book.model(turn.subject)
        alike = [of for other, of in others.items() if model and self._book.model(other) == model]
        return [turn.values, *alike]

    def _nvlink_errors(self, turn: Turn) -> Iterator[tuple[str, bool]]:
        """Recoveries count one by one, CRC errors by their rate, replays not at all: they are what mends those."""
        for name in ("nvlink_recovery_errors", "nvlink_crc_flit_errors", "nvlink_crc_data_errors"):
            count = number(turn.values, name)
            if count is None:
                continue
            counter = self._counters[f"{turn.subject}/{name}"]
            grown = counter.add(count, turn.at_s)
            is_jump = grown > 0 and (name == "nvlink_recovery_errors" or counter.rate() >= CRC_A_SECOND)
            yield name, self._is_twice(turn.id(name), is_jump, turn.at_s)

    def _pcie(self, turn: Turn) -> Iterator[tuple[Finding, bool]]:
        is_below, text = _below_most(turn.values)
        utilization = number(turn.values, "utilization_ratio")
        if is_below is not None and utilization is not None and utilization >= BUSY_RATIO:
            self._below[turn.subject] = self._below[turn.subject] + 1 if is_below else 0
            yield turn.finding("pcie", "pcie", text, CHECK_SLOT), self._below[turn.subject] >= READINGS_PCIE
        replays = number(turn.values, "pcie_replays")
        if replays is not None:
            counter = self._counters[f"{turn.subject}/pcie_replays"]
            grown = counter.add(replays, turn.at_s)
            is_jump = grown > 0 and counter.growth() > REPLAYS_A_MINUTE * max(1.0, counter.spent_s() / 60)
            text = f"its PCIe link repeats itself: {counter.growth():.0f} replays in the last minute."
            is_held = self._is_twice(turn.id("replays"), is_jump, turn.at_s, apart_s=60.0)
            yield turn.finding("replays", "pcie", text, CHECK_SLOT), is_held

    def _is_twice(self, finding_id: str, is_jump: bool, at_s: float, apart_s: float = 0.0) -> bool:
        """Say whether something came twice within TWICE_S; what came so holds until it was quiet for QUIET_S."""
        jumps = self._jumps[finding_id]
        if is_jump and (not jumps or at_s - jumps[-1] >= apart_s):
            jumps.append(at_s)
        is_quiet = not jumps or at_s - jumps[-1] > QUIET_S
        if self._held.holds(finding_id) is not None:
            return not is_quiet
        return len(jumps) == 2 and jumps[1] - jumps[0] <= TWICE_S and not is_quiet


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
