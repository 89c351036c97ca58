"""Issued by all, completed by none: what sensors say of whose device or link it is.

Only what has broken counts (its judge asks for a restart, or for the node's isolation), only if that was told as the
silence began or since, and only if most ranks have nothing of the kind: who trained on with a link that went down
yesterday is not held up by it today.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.model.run_view import RunView, attempt_of, findings_on, silence_began_s
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.health.base.findings import Response

CAUSES = frozenset({"gpu_ecc", "gpu_link", "gpu_lost", "gpu_remap", "gpu_xid", "network"})
BEFORE_S = 60.0
"""So long before the last progress: judges want three readings, and ranks issue for a while after a device is stuck."""
CONFIDENCE = 0.75


def with_sensors(view: RunView, found: Finding) -> Finding:
    """A finding on devices that names nobody, with the ranks whose device, or node's network, has broken meanwhile."""
    broken = _broken(view, found.waiting)
    if not broken or len(broken) * 2 >= len(found.waiting):
        return found
    texts = dict.fromkeys(text.rstrip(".") for said in broken.values() for text in said)
    return msgspec.structs.replace(
        found,
        culprits=sorted(broken),
        waiting=[rank for rank in found.waiting if rank not in broken],
        confidence=CONFIDENCE,
        why_nobody="",
        sensors="; ".join(texts),
    )


def _broken(view: RunView, waiting: list[int]) -> dict[int, list[str]]:
    """By rank: what has broken under it."""
    since_s = silence_began_s(attempt_of(view)) - BEFORE_S
    broken: dict[int, list[str]] = {}
    for finding, ranks in findings_on(view, waiting):
        if finding.cause not in CAUSES or finding.response is Response.NOTE or finding.told_s < since_s:
            continue
        for rank in ranks:
            broken.setdefault(rank, []).append(finding.summary)
    return broken
