"""Memory rows (before Ampere: pages) that a device takes out of use. Pure.

NVIDIA's rule ("GPU Memory Error Management": response flags, RMA policy): a pending remapping takes effect at the next
reset, and until then running and new work is safe, since the bad page is kept out of use; a remapping that failed makes
the device one to replace. So the first is a note, the second isolates.
"""

from __future__ import annotations

from guardrun.supervisor.core.node.facts import Readout
from guardrun.supervisor.core.node.finding import Finding, Response
from guardrun.supervisor.core.node.gpu_book import SENSOR, GpuBook, number
from guardrun.supervisor.core.node.held import Held

CAUSE = "gpu_remap"
MAX_RETIRED_PAGES = 60
"""DCGM's line for retired pages (DCGM_LIMIT_MAX_RETIRED_PAGES); 64 is the most that there can be."""


class RemapJudge:
    """`gpu_remap`: pending, failed."""

    sensors = frozenset({SENSOR})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        told: list[Finding] = []
        for subject, values in self._book.take(readout).items():
            label = self._book.label(subject)
            evidence = {
                name: values[name]
                for name in ("remapped_rows_corrected", "remapped_rows_uncorrected")
                if values.get(name) is not None
            }
            pages = sum(number(values, f"retired_pages_{kind}") or 0 for kind in ("corrected", "uncorrected"))
            flags = [
                (
                    "failed",
                    values.get("remap_failed"),
                    f"{label} could not take a bad memory row out of use.",
                    "Have it replaced: NVIDIA's field diagnostic confirms it.",
                    Response.ISOLATE,
                ),
                (
                    "pending",
                    values.get("remap_pending"),
                    f"{label} has a bad memory row that goes out of use at its next reset.",
                    "Reset it when the node is idle (`nvidia-smi --gpu-reset`); until then it may be used.",
                    Response.NOTE,
                ),
                (
                    "retiring",
                    values.get("retired_pages_pending"),
                    f"{label} has a bad memory page that goes out of use when its driver is loaded anew.",
                    "Reboot the node, or load the driver anew, when it is idle.",
                    Response.NOTE,
                ),
                (
                    "retired",
                    pages >= MAX_RETIRED_PAGES if "retired_pages_corrected" in values else None,
                    f"{label} has {pages:.0f} memory pages out of use, of at most 64.",
                    "Have it replaced: NVIDIA's field diagnostic confirms it.",
                    Response.NOTE,
                ),
            ]
            for name, flag, summary, advice, response in flags:
                finding = Finding(
                    id=f"{CAUSE}/{subject}/{name}",
                    cause=CAUSE,
                    subject=subject,
                    since_s=readout.at_s,
                    told_s=now_s,
                    summary=summary,
                    evidence=evidence,
                    advice=advice,
                    response=response,
                )
                if flag:
                    told += self._held.hold(finding)
                elif flag is not None:
                    told += self._held.end(finding.id, now_s)
        return told
