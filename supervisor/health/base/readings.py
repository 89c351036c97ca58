"""What sensors tell of a node: samples (how it is) and happenings (what has happened); and what judges it. Pure.

A sensor's turn is a `Readout`. What could not be read is in it, too, with the reason: an unknown value is never zero,
and a sensor that does not answer is a fact of its own.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from guardrun.supervisor.health.base.findings import Finding

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


# Health judge -------------------------------------------------------------------------------------------------------
# What every judge of node parts is.


class Judge(Protocol):
    """Turns the readouts of some sensors into findings. Pure: what it remembers is its own."""

    @property
    def sensors(self) -> frozenset[str]:
        """Names of the sensors whose readouts it takes."""

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """What begins, changes or is over, now that this is known. now_s: CLOCK_MONOTONIC."""


# Memory holders -----------------------------------------------------------------------------------------------------
# Processes that hold device memory, as one value of a sample: `4242=512000000 4243=?`.


MAX_HOLDERS = 256
"""Of one device; with MPS there are tens."""


def write_holders(held: dict[int, int | None]) -> str:
    """Bytes by pid; None where the driver does not say how many. Beyond MAX_HOLDERS the smallest are left out."""
    by_size = sorted(held.items(), key=lambda pair: -(pair[1] or 0))[:MAX_HOLDERS]
    return " ".join(f"{pid}={'?' if used is None else used}" for pid, used in sorted(by_size))


def parse_holders(text: str) -> dict[int, int | None]:
    """Bytes by pid, of what write_holders wrote. Raises ValueError at anything else."""
    held: dict[int, int | None] = {}
    for pair in text.split():
        pid, sign, used = pair.partition("=")
        if not sign:
            raise ValueError(f"not a pid with its bytes: {pair!r}")
        held[int(pid)] = None if used == "?" else int(used)
    return held
