"""The table of responses: what the policy makes of a finding, by its key where it has one, else by its cause. Pure.

`[policy] responses` overrides it. Reasons for the defaults:

- What only makes a node slow is a note: slow does not mean evict.
- What is the job's own doing, or everybody's (a full disk, a file server that does not answer), blames no node.
- What the next attempt on this node would meet again is isolated: a link that is gone or comes and goes, a disk that
  loses data.
- `machine`, `memory`, `clock` and `sensor` are no causes of incidents (the contract has none); they are there for
  `guardctl node`, and for whoever wants a node with machine checks isolated.
- GPUs' judges say themselves what follows: it depends on the Xid and on how often (xid_catalogue.py, device_memory.py,
  …).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from guardrun.supervisor.health.base.findings import Finding, Response

DEFAULTS: dict[str, Response] = {
    "thermal": Response.NOTE,
    "cpu_starved": Response.NOTE,
    "network": Response.NOTE,
    "network_down": Response.ISOLATE,
    "network_flapping": Response.ISOLATE,
    "network_errors": Response.NOTE,
    "network_preflight": Response.ISOLATE,
    "disk": Response.NOTE,
    "disk_full": Response.NOTE,
    "disk_read_only": Response.ISOLATE,
    "disk_io": Response.ISOLATE,
    "disk_lost": Response.ISOLATE,
    "disk_reset": Response.NOTE,
    "disk_stuck": Response.NOTE,
    "mount_silent": Response.NOTE,
    "machine": Response.NOTE,
    "machine_check": Response.NOTE,
    "memory_failure": Response.NOTE,
    "lockup": Response.NOTE,
    "memory": Response.NOTE,
    "clock": Response.NOTE,
    "sensor": Response.NOTE,
}
"""Causes, and finer keys, of what is wrong with a host."""
GPU_CAUSES = (
    "throttle",
    "gpu_ecc",
    "gpu_ecc_uncorrected",
    "gpu_ecc_corrected",
    "gpu_ecc_sram",
    "gpu_xid",
    "gpu_remap",
    "gpu_remap_pending",
    "gpu_remap_failed",
    "gpu_link",
    "gpu_link_down",
    "gpu_link_errors",
    "gpu_link_pcie",
    "gpu_lost",
    "gpu_driver_silent",
)
"""Causes, and finer keys, of what is wrong with GPUs; their judges give each its response."""
INCIDENT_CAUSES = ("thermal_throttle", "straggler")
"""Causes of incidents that go by another name than their findings, or have none (engine/detectors/straggler.py)."""
KEYS = (*DEFAULTS, *GPU_CAUSES, *INCIDENT_CAUSES)
"""What the policy can be told something for, besides single Xids (`gpu_xid_79`)."""
_XID = re.compile(r"gpu_xid_\d{1,3}")


def is_key(text: str) -> bool:
    """Whether the policy can be told something for this."""
    return text in KEYS or _XID.fullmatch(text) is not None


def said_for(finding: Finding, responses: Mapping[str, str], cause: str = "") -> Response | None:
    """What the user's table says for a finding, the finest key first; None where it says nothing.

    cause: of the incident, where that is another than the finding's.
    """
    for name in (finding.key, _xid_key(finding), cause, finding.cause):
        said = responses.get(name) if name else None
        if said:
            return Response(said)
    return None


def respond(finding: Finding, responses: Mapping[str, str]) -> Finding:
    """The finding with the response that the user's table, else its judge, gives it."""
    said = said_for(finding, responses)
    return finding if said is None else msgspec.structs.replace(finding, response=said)


def _xid_key(finding: Finding) -> str:
    number = finding.evidence.get("xid")
    return f"gpu_xid_{number}" if finding.cause == "gpu_xid" and isinstance(number, int) else ""


def host_finding(
    cause: str,
    subject: str,
    what: str,
    *,
    since_s: float,
    told_s: float,
    summary: str,
    evidence: dict[str, Any],
    advice: str = "",
    key: str = "",
) -> Finding:
    """A finding with the response that the table gives it. what: of several things wrong with a subject, which."""
    return Finding(
        id=finding_id(cause, subject, what),
        cause=cause,
        key=key,
        subject=subject,
        since_s=min(since_s, told_s),
        told_s=told_s,
        summary=summary if summary.endswith((".", "?", "!")) else f"{summary}.",
        evidence=evidence,
        advice=advice,
        response=DEFAULTS.get(key) or DEFAULTS.get(cause, Response.NOTE),
    )


def finding_id(cause: str, subject: str, what: str = "") -> str:
    """`CAUSE/SUBJECT`, and what of it."""
    return f"{cause}/{subject}/{what}" if what else f"{cause}/{subject}"
