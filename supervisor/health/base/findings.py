"""What is wrong with a part of a node, for as long as it is, and what the policy makes of it. Pure.

A finding is the answer of the judges: told when it begins, when it says something new, and when it ends. The response
to it is found by its key where it has one, else by its cause; `[policy] responses` overrides the table. Reasons for the
defaults:

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
from enum import Enum
from typing import Any

import msgspec


class Response(str, Enum):
    """What the policy makes of a finding's cause; the higher wins."""

    NOTE = "note"
    RESTART = "restart"
    """Here, on the same node."""
    ISOLATE = "isolate"
    """The node takes no part in the next attempt, and no new run."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong; told when it begins, when it changes for a person, and when it is over."""

    id: str
    """The same as long as it lasts, and after a restart of who judges: `CAUSE/SUBJECT`, and more where that is not
    enough."""
    cause: str
    """As the contract lists them: `gpu_ecc`, `thermal`, `network`, …; `throttle` for throttling, before anybody knows
    whether training feels it."""
    key: str = ""
    """Finer than the cause, where the policy tells such apart (`disk_full`, `gpu_xid_79`); empty: the cause will do."""
    subject: str
    since_s: float
    """CLOCK_MONOTONIC."""
    told_s: float
    summary: str
    """One sentence for a person, naming node part and figures; without the node's name."""
    evidence: dict[str, Any] = {}
    advice: str = ""
    response: Response = Response.NOTE
    is_over: bool = False


# Open findings ------------------------------------------------------------------------------------------------------
# What a judge has found that is not over: told when it begins, when it says something new, and when it ends.

MAX_STANDING = 512


class Standing:
    """The findings of one judge that last, by id."""

    limit = MAX_STANDING
    keeps_latest = False
    """A finding is kept as it was last so, instead of as it was last told."""

    def __init__(self) -> None:
        self._findings: dict[str, tuple[Finding, str]] = {}

    def holds(self, finding_id: str) -> Finding | None:
        """The finding as it is kept; None where it does not hold."""
        held = self._findings.get(finding_id)
        return held[0] if held is not None else None

    def hold(self, finding: Finding, news: str = "") -> list[Finding]:
        """It is so. Told unless the last time had the same news: a person wants to hear changes, not figures.

        It keeps the time at which it began.
        """
        held = self._findings.get(finding.id)
        if held is None and len(self._findings) >= self.limit:
            return []
        is_news = held is None or held[1] != news or held[0].response is not finding.response
        if held is not None:
            finding = msgspec.structs.replace(finding, since_s=held[0].since_s)
        if is_news or self.keeps_latest:
            self._findings[finding.id] = (finding, news)
        return [finding] if is_news else []

    def end(self, finding_id: str, now_s: float, summary: str = "") -> list[Finding]:
        """It is not so any more; nothing where it was not said to be. summary: what to say instead of what it was."""
        held = self._findings.pop(finding_id, None)
        if held is None:
            return []
        text = summary or f"Over: {held[0].summary}"
        return [msgspec.structs.replace(held[0], told_s=now_s, is_over=True, summary=text)]

    def holding(self) -> list[Finding]:
        """All that hold."""
        return [finding for finding, _ in self._findings.values()]

    def end_gone(self, is_there: set[str], kinds: tuple[str, ...], now_s: float) -> list[Finding]:
        """Of subjects of these kinds (`net:`) that are not there any more, nothing is wrong."""
        gone = [f for f in self.holding() if f.subject.startswith(kinds) and f.subject not in is_there]
        return [over for f in gone for over in self.end(f.id, now_s, f"Over, since it is gone: {f.summary}")]


# Held findings ------------------------------------------------------------------------------------------------------
# The findings of a judge of GPUs that hold right now.


class Held(Standing):
    """Keeps the figures of the last time that it was so: those that are told when it is over."""

    limit = 1024
    keeps_latest = True


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
INCIDENT_CAUSES = ("thermal_throttle", "straggler", "replica_divergence")
"""Causes of incidents that go by another name than their findings, or have none (engine/detectors/straggler.py,
engine/detectors/numeric/replica_divergence.py)."""
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
