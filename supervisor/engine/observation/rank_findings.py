"""Which findings of nodes' sensors concern which ranks."""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.engine.model.run_view import RunView
from guardrun.supervisor.health.base.findings import Finding

DEVICE = "gpu:"


def wrong_with(view: RunView, ranks: Sequence[int]) -> list[str]:
    """What is wrong right now with the devices of these ranks, and with their nodes as a whole: a sentence each."""
    assert view.attempt is not None
    known = view.attempt.ranks
    nodes = {known[rank].rank.node for rank in ranks if rank in known}
    return [
        finding.summary
        for key, finding in view.detectors.node_health.findings.items()
        if set(ranks_on(view, key, finding)).intersection(ranks)
        or (not finding.subject.startswith(DEVICE) and key.split("/", 1)[0] in nodes)
    ]


def ranks_on(view: RunView, key: str, finding: Finding) -> list[int]:
    """Who trains on the part in question; nobody in particular where it is the whole node's. key: `NODE/ID`."""
    if not finding.subject.startswith(DEVICE):
        return []
    assert view.attempt is not None
    node, ranks, devices = key.split("/", 1)[0], view.attempt.ranks, view.detectors.node_health.devices
    on_it = [r for r, device in devices.items() if device.subject == finding.subject and r in ranks]
    # A rank may have moved to another node since: it is not the one that had the device.
    return sorted(r for r in on_it if ranks[r].rank.node == node)
