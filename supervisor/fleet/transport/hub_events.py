"""What a hub tells its caller of the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Joined(NamedTuple):
    """A deputy that is new, or in a new life. What the last one has sent and was not read is lost."""

    info: dict[str, Any]
    slot: int
    incarnation: int
    is_replacement: bool
    """In the place of an earlier incarnation."""


class Body(NamedTuple):
    """What a deputy has sent, in order, once."""

    body: bytes
    incarnation: int
    seq: int


class Dropped(NamedTuple):
    """A deputy's connection was closed: it ended, or was killed, or will be Back."""

    at_s: float
    why: str = ""


class Back(NamedTuple):
    """The same incarnation, on a new connection; nothing of its packets is missing but what `lost` counts."""

    info: dict[str, Any]
    away_s: float
    """Since its last frame."""


class Missed(NamedTuple):
    """A deputy says that it had to drop this many more packets: they were too many while nobody took them."""

    packets: int


What = Joined | Body | Dropped | Back | Missed


class Known(NamedTuple):
    """What an earlier life of the coordinator has dealt with."""

    incarnation: int
    seq: int


@dataclass
class Counters:
    """Since this coordinator began."""

    accepted: int = 0
    """Connections."""
    handshakes: int = 0
    """That succeeded."""
    strangers: int = 0
    """Connections that have gone without one: no CURVE, a wrong key, garbage, silence."""
    keys_refused: int = 0
    joins_refused: int = 0
    malformed: int = 0
    strays: int = 0
    """Frames of connections that have not joined, or were replaced."""
    unsent: int = 0
    """Frames that a deputy's connection did not take; packets among them are sent again."""
    sent_away: int = 0
    """Connections that had not joined when there were too many of them."""
