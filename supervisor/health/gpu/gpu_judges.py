"""What there is for GPUs: their judges, and what a person calls them. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.health_judge import Judge
from guardrun.supervisor.health.base.readings import Part, Readout
from guardrun.supervisor.health.gpu.device_links import LinkJudge
from guardrun.supervisor.health.gpu.ecc_errors import EccJudge
from guardrun.supervisor.health.gpu.gpu_inventory import GpuBook
from guardrun.supervisor.health.gpu.lost_devices import LostJudge
from guardrun.supervisor.health.gpu.row_remapping import RemapJudge
from guardrun.supervisor.health.gpu.thermal import ThrottleJudge
from guardrun.supervisor.health.gpu.xid_judge import XidJudge


def gpu_judges() -> list[Judge]:
    """All judges of GPUs, new: they know nothing yet."""
    return [ThrottleJudge(), EccJudge(), RemapJudge(), XidJudge(), LinkJudge(), LostJudge()]


def gpu_parts(readout: Readout) -> list[Part]:
    """The GPUs that a readout tells of, by index; empty where it does not tell their names (not every turn does)."""
    book = GpuBook()
    subjects = [subject for subject in book.take(readout) if book.index(subject) >= 0]
    return [
        Part(
            subject=subject,
            kind="gpu",
            name=book.model(subject),
            index=book.index(subject),
            bus=book.bus(subject),
        )
        for subject in sorted(subjects, key=book.index)
    ]
