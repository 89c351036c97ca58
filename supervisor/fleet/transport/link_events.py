"""What a link tells its caller of the coordinator."""

from __future__ import annotations

from typing import NamedTuple


class Body(NamedTuple):
    """What the coordinator has sent, in order, once."""

    body: bytes
    seq: int


class Welcomed(NamedTuple):
    """A connection stands."""

    is_new_hub: bool
    """The coordinator is a new process (or the first): it may have lost what it had not journalled."""
    term_s: float


class Refused(NamedTuple):
    """The coordinator does not want us; it is asked again after a while, until the link is closed."""

    reason: str


class Lost(NamedTuple):
    """The connection is gone; the next one is under way."""

    why: str
    is_closed: bool = False
    """By the other end; else nothing came any more."""


class Missed(NamedTuple):
    """The coordinator says that it had to drop this many more orders."""

    packets: int


What = Body | Welcomed | Refused | Lost | Missed
