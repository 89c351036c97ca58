"""What there is for GPUs: their judges, and what a person calls them. Pure."""

from __future__ import annotations

from guardrun.supervisor.core.node.ecc import EccJudge
from guardrun.supervisor.core.node.facts import Part, Readout
from guardrun.supervisor.core.node.gpu_book import GpuBook
from guardrun.supervisor.core.node.judge_protocol import Judge
from guardrun.supervisor.core.node.links import LinkJudge
from guardrun.supervisor.core.node.lost import LostJudge
from guardrun.supervisor.core.node.remap import RemapJudge
from guardrun.supervisor.core.node.thermal import ThrottleJudge
from guardrun.supervisor.core.node.xid import XidJudge


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
