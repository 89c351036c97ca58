"""What sensors tell of a node: samples (how it is) and happenings (what has happened). Pure.

A sensor's turn is a `Readout`. What could not be read is in it, too, with the reason: an unknown value is never zero,
and a sensor that does not answer is a fact of its own.
"""

from __future__ import annotations

import msgspec

Value = float | int | str | bool


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One quantity of one part of the node at the time of its readout."""

    subject: str
    """What it is of: `gpu:UUID`, `disk:/scratch`, `net:eth0`, `ib:mlx5_0/1`, `mount:/data`, `cpu`, `memory`, `node`."""
    name: str
    """Standard name with its unit as suffix: `temperature_c`, `sm_clock_hz`, `power_w`, `ecc_volatile_uncorrected`."""
    value: Value | None = None
    """None: unknown."""
    trouble: str = ""
    """Why it is unknown, in words."""


class Happening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened at a moment: an Xid, a link that went down, a line of the kernel log."""

    subject: str
    name: str
    """`xid`, `link_down`, `link_up`, `oom_kill`, `mce`, `lockup`, `io_error`, `sensor_silent`, …"""
    at_s: float
    """CLOCK_MONOTONIC."""
    text: str = ""
    """As its source put it, bounded."""
    data: dict[str, Value] = {}


class Readout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one sensor told at one turn."""

    sensor: str
    at_s: float
    """CLOCK_MONOTONIC, when it began."""
    took_s: float = 0.0
    samples: list[Sample] = []
    happenings: list[Happening] = []
    trouble: str = ""
    """Why it told nothing, or less than it should: its library is missing, its call did not return within N s, …"""
    is_partial: bool = False
    """What it does not tell was not its turn, and is as it was; otherwise what it does not tell is not there."""
    is_silent: bool = False
    """Its call has not returned in the time it has; samples are none."""
