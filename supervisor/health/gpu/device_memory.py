"""A device's memory: its errors, and the rows (before Ampere: pages) that it takes out of use. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from guardrun.supervisor.health.base.findings import Finding, Held, Response
from guardrun.supervisor.health.base.persistence import WindowedCounter
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.gpu.gpu_inventory import SENSOR, GpuBook, number

# ECC errors ---------------------------------------------------------------------------------------------------------
# Memory errors of a device.
#
# What NVIDIA says of them ("GPU Memory Error Management"): an application that meets an uncorrected error has to be
# started again; the device then goes on, unless its Xid or recovery action asks for a reset; one whose SRAM is worn
# (the threshold flag) is replaced. An uncorrected error that comes twice in a day is one too many for us.


ECC_CAUSE = "gpu_ecc"
DAY_S = 86400.0
APART_S = 60.0
"""Errors closer together are one event."""
STORM_WINDOW_S = 600.0
STORM = 1000.0
"""Corrected errors within that window: ours, NVIDIA gives no figure for its own line (Xid 92)."""
STORM_OVER = 100.0


class EccJudge:
    """`gpu_ecc`: uncorrected errors, many corrected ones, worn SRAM."""

    sensors = frozenset({SENSOR})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()
        self._uncorrected: dict[str, WindowedCounter] = defaultdict(lambda: WindowedCounter(DAY_S))
        self._corrected: dict[str, WindowedCounter] = defaultdict(lambda: WindowedCounter(STORM_WINDOW_S))
        self._grew_s: dict[str, list[float]] = defaultdict(list)

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges each device's ECC counters and its SRAM threshold flag."""
        told: list[Finding] = []
        for subject, values in self._book.update(readout).items():
            told += self._judge_uncorrected(subject, values, readout.at_s, now_s)
            told += self._judge_corrected(subject, values, readout.at_s, now_s)
            if values.get("ecc_sram_threshold_exceeded"):
                told += self._judge_sram(subject, readout.at_s, now_s)
        return told

    def _judge_uncorrected(
        self, subject: str, values: dict[str, Value | None], at_s: float, now_s: float
    ) -> list[Finding]:
        count = number(values, "ecc_volatile_uncorrected")
        if count is None:
            return []
        finding_id = f"{ECC_CAUSE}/{subject}/uncorrected"
        grown = self._uncorrected[subject].add(count, at_s)
        times = self._grew_s[subject]
        if grown and (not times or at_s - times[-1] >= APART_S):
            times.append(at_s)
        times[:] = [time_s for time_s in times if time_s > at_s - DAY_S]
        held = self._held.holds(finding_id)
        if count == 0 or (held is not None and not times and held.response is not Response.NOTE):
            return self._held.end(finding_id, now_s)
        response = (Response.NOTE, Response.RESTART)[bool(times)] if len(times) < 2 else Response.ISOLATE
        return self._held.hold(
            Finding(
                id=finding_id,
                cause=ECC_CAUSE,
                key="gpu_ecc_uncorrected",
                subject=subject,
                since_s=at_s,
                told_s=now_s,
                summary=self._uncorrected_summary(subject, int(count), len(times)),
                evidence={"uncorrected": int(count), "times_s": list(times), **self._aggregate(values)},
                advice="If it comes back, run `dcgmi diag -r 3` and reset the device.",
                response=response,
            ),
            news=str(len(times)),
        )

    def _uncorrected_summary(self, subject: str, count: int, times: int) -> str:
        label, errors = self._book.label(subject), "error" if count == 1 else "errors"
        if not times:
            return f"{label} has had {count} memory {errors} that ECC could not correct since its driver was loaded."
        often = "" if times == 1 else f", for the {times}th time in a day" if times > 2 else ", twice in a day"
        return (
            f"{label} has met a memory error that ECC could not correct{often} ({count} since its driver was loaded)."
        )

    def _judge_corrected(
        self, subject: str, values: dict[str, Value | None], at_s: float, now_s: float
    ) -> list[Finding]:
        count = number(values, "ecc_volatile_corrected")
        if count is None:
            return []
        counter = self._corrected[subject]
        counter.add(count, at_s)
        finding_id = f"{ECC_CAUSE}/{subject}/corrected"
        if counter.growth() < (STORM if self._held.holds(finding_id) is None else STORM_OVER):
            return self._held.end(finding_id, now_s)
        minutes = max(1, round(counter.spent_s() / 60))
        label = self._book.label(subject)
        return self._held.hold(
            Finding(
                id=finding_id,
                cause=ECC_CAUSE,
                key="gpu_ecc_corrected",
                subject=subject,
                since_s=at_s,
                told_s=now_s,
                summary=f"{label} has corrected {counter.growth():.0f} memory errors in {minutes} min.",
                evidence={"corrected": int(count), "growth": counter.growth(), "spent_s": counter.spent_s()},
                advice="Its memory may be wearing out: watch its remapped rows.",
            )
        )

    def _judge_sram(self, subject: str, at_s: float, now_s: float) -> list[Finding]:
        return self._held.hold(
            Finding(
                id=f"{ECC_CAUSE}/{subject}/sram",
                cause=ECC_CAUSE,
                key="gpu_ecc_sram",
                subject=subject,
                since_s=at_s,
                told_s=now_s,
                summary=f"{self._book.label(subject)} has passed NVIDIA's threshold of uncorrected errors in its SRAM.",
                advice="Have it replaced: NVIDIA's field diagnostic confirms it.",
                response=Response.ISOLATE,
            )
        )

    def _aggregate(self, values: dict[str, Value | None]) -> dict[str, float]:
        total = number(values, "ecc_aggregate_uncorrected")
        return {} if total is None else {"uncorrected_in_its_life": total}


# Row remapping ------------------------------------------------------------------------------------------------------
# Memory rows (before Ampere: pages) that a device takes out of use.
#
# NVIDIA's rule ("GPU Memory Error Management": response flags, RMA policy): a pending remapping takes effect at the
# next reset, and until then running and new work is safe, since the bad page is kept out of use; a remapping that
# failed makes the device one to replace. So the first is a note, the second isolates.


REMAP_CAUSE = "gpu_remap"
MAX_RETIRED_PAGES = 60
"""DCGM's line for retired pages (DCGM_LIMIT_MAX_RETIRED_PAGES); 64 is the most that there can be."""
SHOWN = (
    "remapped_rows_corrected",
    "remapped_rows_uncorrected",
    "retired_pages_corrected",
    "retired_pages_uncorrected",
)
REPLACE = "Have it replaced: NVIDIA's field diagnostic confirms it."


class Flag(NamedTuple):
    """One thing that a device says of its memory."""

    name: str
    sample: str
    key: str
    text: str
    advice: str
    response: Response = Response.NOTE


FLAGS = (
    Flag(
        "failed",
        "remap_failed",
        "gpu_remap_failed",
        "could not take a bad memory row out of use",
        REPLACE,
        Response.ISOLATE,
    ),
    Flag(
        "pending",
        "remap_pending",
        "gpu_remap_pending",
        "has a bad memory row that goes out of use at its next reset",
        "Reset it when the node is idle (`nvidia-smi --gpu-reset`); until then it may be used.",
    ),
    Flag(
        "retiring",
        "retired_pages_pending",
        "gpu_remap_pending",
        "has a bad memory page that goes out of use when its driver is loaded anew",
        "Reboot the node, or load the driver anew, when it is idle.",
    ),
)
RETIRED = Flag("retired", "", "gpu_remap_failed", "has {pages} memory pages out of use, of at most 64", REPLACE)


class RemapJudge:
    """`gpu_remap`: pending, failed."""

    sensors = frozenset({SENSOR})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges FLAGS and retired pages; what a readout does not have leaves its finding as it was."""
        told: list[Finding] = []
        for subject, values in self._book.update(readout).items():
            for flag, is_set, text in _flags(values):
                finding = Finding(
                    id=f"{REMAP_CAUSE}/{subject}/{flag.name}",
                    cause=REMAP_CAUSE,
                    key=flag.key,
                    subject=subject,
                    since_s=readout.at_s,
                    told_s=now_s,
                    summary=f"{self._book.label(subject)} {text}.",
                    evidence={name: values[name] for name in SHOWN if values.get(name) is not None},
                    advice=flag.advice,
                    response=flag.response,
                )
                told += self._held.hold(finding) if is_set else self._held.end(finding.id, now_s)
        return told


def _flags(values: dict[str, Value | None]) -> Iterator[tuple[Flag, bool, str]]:
    """The flags that are told, whether each is set, and what that means in words."""
    for flag in FLAGS:
        if (is_set := values.get(flag.sample)) is not None:
            yield flag, bool(is_set), flag.text
    corrected, uncorrected = (number(values, f"retired_pages_{kind}") for kind in ("corrected", "uncorrected"))
    if corrected is not None and uncorrected is not None:
        pages = corrected + uncorrected
        yield RETIRED, pages >= MAX_RETIRED_PAGES, RETIRED.text.format(pages=int(pages))
