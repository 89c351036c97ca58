"""What the GPU sensor and its NVML process say to each other: msgpack structs, each after its length, over a socket.

Both ends are ours and of one version: they start and end together.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.base import framing
from guardrun.supervisor.health.base.readings import Happening, Sample

MAX_FRAME_BYTES = 4 * 1024 * 1024


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


# Sensor → process ------------------------------------------------------------------------------------------------


class Turn(_Frame, frozen=True, kw_only=True, tag="turn"):
    """Read once."""

    seq: int
    tiers: list[str]
    """Which of FAST, MEDIUM, SLOW; or MEMORY."""


class Where(_Frame, frozen=True, kw_only=True, tag="where"):
    """Which call are you in? Answered although that call does not return."""


# Process → sensor ------------------------------------------------------------------------------------------------


class Ready(_Frame, frozen=True, kw_only=True, tag="ready"):
    """NVML is initialised."""


class TurnAnswer(_Frame, frozen=True, kw_only=True, tag="told"):
    """Answer to Turn, with its seq. trouble: why there are fewer samples than there should be."""

    seq: int
    samples: list[Sample]
    trouble: str = ""


class Happened(_Frame, frozen=True, kw_only=True, tag="happened"):
    """Something happened between two turns: an Xid, say."""

    happening: Happening


class Here(_Frame, frozen=True, kw_only=True, tag="here"):
    """What is being asked of whom; empty when nothing is."""

    doing: str = ""


class Over(_Frame, frozen=True, kw_only=True, tag="over"):
    """The process ends by itself: NVML is of no use here as things are."""

    reason: str
    is_absent: bool = False
    """There is no driver to ask, rather than one in trouble."""


FAST = "fast"
MEDIUM = "medium"
SLOW = "slow"
TIERS = (FAST, MEDIUM, SLOW)
MEMORY = "memory"
"""Memory in use and who holds it, and nothing else: for whoever waits until it is freed."""

ToProcess = Turn | Where
ToSensor = Ready | TurnAnswer | Happened | Here | Over

_encoder = msgspec.msgpack.Encoder()


def encode(frame: ToProcess | ToSensor) -> bytes:
    """One frame with its length before it. Raises ValueError where it is too long."""
    body = _encoder.encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes")
    return framing.frame(body)
