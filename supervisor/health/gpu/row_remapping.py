"""Memory rows (before Ampere: pages) that a device takes out of use. Pure.

NVIDIA's rule ("GPU Memory Error Management": response flags, RMA policy): a pending remapping takes effect at the next
reset, and until then running and new work is safe, since the bad page is kept out of use; a remapping that failed makes
the device one to replace. So the first is a note, the second isolates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.held_findings import Held
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.gpu.gpu_inventory import SENSOR, GpuBook, number

CAUSE = "gpu_remap"
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

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges FLAGS and retired pages; what a readout does not have leaves its finding as it was."""
        told: list[Finding] = []
        for subject, values in self._book.take(readout).items():
            for flag, is_set, text in _flags(values):
                finding = Finding(
                    id=f"{CAUSE}/{subject}/{flag.name}",
                    cause=CAUSE,
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
