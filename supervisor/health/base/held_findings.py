"""The findings of a judge of GPUs that hold right now. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.open_findings import Standing


class Held(Standing):
    """Keeps the figures of the last time that it was so: those that are told when it is over."""

    limit = 1024
    keeps_latest = True
