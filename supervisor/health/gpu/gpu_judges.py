"""What there is for GPUs: their judges, and what a person calls them. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Judge
from guardrun.supervisor.health.gpu.device_links import LinkJudge
from guardrun.supervisor.health.gpu.device_memory import EccJudge, RemapJudge
from guardrun.supervisor.health.gpu.gpu_inventory import LostJudge
from guardrun.supervisor.health.gpu.thermal import ThrottleJudge
from guardrun.supervisor.health.gpu.xid_judge import XidJudge


def gpu_judges() -> list[Judge]:
    """All judges of GPUs, new: they know nothing yet."""
    return [ThrottleJudge(), EccJudge(), RemapJudge(), XidJudge(), LinkJudge(), LostJudge()]
