"""What ends a quarantine without a person: which parts can be shown to be well again, and how. Pure.

Only what guardrun itself isolated, and only where a look at the part, or having it work, shows what was wrong: a link
that is up, a file system with room, devices that compute without throttling. Memory that met errors, an Xid, a device
that was lost, a disk that lost data look well until they fail the next time: those wait for a person.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from guardrun.supervisor.health.quarantine_rules import Isolation

CALM_S = 600.0
"""So long nothing may have been wrong with the part: a link that flaps is up most of the time."""


class Proof(str, Enum):
    """What shows that a part is well."""

    LOOK = "look"
    """Reading it will do: the node agent and `guardctl check` release."""
    TRIAL = "trial"
    """It must work, as in `guardctl check --full`: at rest nothing throttles."""


class Part(NamedTuple):
    """What a node was isolated for."""

    subject: str
    """`net:eth0`, `mount:/data`, `gpu:UUID`."""
    proof: Proof


def part_of(isolation: Isolation) -> Part | None:
    """The part that may end an isolation by being well; None where only a person may."""
    finding = isolation.evidence.get("finding")
    if not isolation.is_automatic or not isinstance(finding, str):
        return None
    cause, _, rest = finding.partition("/")
    subject, _, what = rest.rpartition("/")
    if cause == "network" and subject.startswith("net:") and what in ("down", "flapping"):
        return Part(subject, Proof.LOOK)
    if cause == "disk" and subject.startswith("mount:") and what == "full":
        return Part(subject, Proof.LOOK)
    if cause == "throttle" and rest.startswith("gpu:"):
        return Part(rest, Proof.TRIAL)
    if cause == "gpu_link" and rest.startswith("gpu:"):
        return Part(rest.partition("/")[0], Proof.TRIAL)
    return None


def calm_s(isolation: Isolation, now_wall_s: float) -> float:
    """Seconds since the newest of the evidence was seen."""
    return now_wall_s - max(isolation.newest_evidence_wall_s, isolation.since_wall_s)
