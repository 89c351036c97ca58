"""Failures for which no cause was found, node by node: when they are one node's, and not chance.

In a job of thousands of nodes such failures meet the same node twice by chance, sooner or later. What is held against
a node is therefore how it compares with the others: of the run's last failures without a cause, k were its own, and m
came after the first of these. Where failures meet n nodes at random, that has a chance of no more than
C(m, k-1) / n^(k-1) each time a node fails. Older than MEMORY_S is nothing: a node that is bad fails again within hours.

Two in a row of a kind that no script raises are held against a node of a job of any size: a job of four nodes could not
wait until chance is excluded, and a doubt costs it no more than a spare. An error of CUDA may be the script's own,
which then meets other nodes, too, or comes back at the same step: it counts only where chance is excluded, and not at a
step at which there was one before.
"""

from __future__ import annotations

from math import comb

import msgspec

from guardrun.supervisor.engine.model.actions import Incident

UNCLEAR = frozenset(
    {"killed", "segfault", "abort", "bus_error", "nccl_error", "collective_timeout", "io_blocked", "unknown"}
)
"""No cause in the script, and none found elsewhere."""
DEVICE_HINTS = frozenset({"illegal_access", "launch_failure"})
"""An error of CUDA that sensors do not explain (engine/failures/failure_patterns.py): the script's, or a device that
fails silently."""
CHANCE = 0.001
"""Of so few failures one may swap a node for nothing. Ten thousand nodes meet a thousand such failures in two weeks, at
ten times the rate of Llama 3's (docs/simulation.md): one of them."""
MEMORY_S = 7 * 86400.0
STEPS_APART = 2
"""Kernels run behind the script: the same bad batch may be told a step later."""


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One failure without a cause on a node."""

    incident: str
    at_s: float
    number: int
    """Among the run's failures without a cause, counted from 1."""
    is_device: bool = False
    """An error of CUDA: it may be the script's."""
    step: int | None = None


def is_doubt(incident: Incident) -> bool:
    """Whether no cause was found."""
    return incident.cause in UNCLEAR or is_device_error(incident)


def is_device_error(incident: Incident) -> bool:
    """Whether it is an error of CUDA; one that ends in SIGABRT is no less the script's."""
    return incident.evidence.get("hint") in DEVICE_HINTS and incident.cause in ("exception", "abort")


def kept(strikes: list[Strike], now_s: float) -> list[Strike]:
    """Those that are not too old."""
    return [strike for strike in strikes if now_s - strike.at_s <= MEMORY_S]


def strike_for(incident: Incident, before: list[Strike], number: int) -> Strike | None:
    """What an incident is to its node; None: it shows that it is not the node. before: the node's."""
    is_device, step = is_device_error(incident), incident.step
    if is_device and step and any(s.is_device and s.step and abs(s.step - step) < STEPS_APART for s in before):
        return None
    return Strike(incident=incident.id, at_s=incident.detected_s, number=number, is_device=is_device, step=step)


def attributed_failures(strikes: list[Strike], nodes: int) -> int:
    """How many of a node's strikes, counted from the last, are more than chance; 0: none. nodes: that train."""
    last = strikes[-1].number if strikes else 0
    for count in range(2, len(strikes) + 1):
        others = last - strikes[-count].number
        if count == 2 and others == 1 and not any(strike.is_device for strike in strikes[-2:]):
            return count
        if comb(others, count - 1) <= CHANCE * nodes ** (count - 1):
            return count
    return 0
