"""What is wrong with a part of a node, for as long as it is: the answer of the judges. Pure."""

from __future__ import annotations

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
