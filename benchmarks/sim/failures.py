"""What befalls the cluster, drawn beforehand: the same seed gives the same, whoever has to cope with it.

Shares are ByteRobust's (45,783 failures). How a share splits into what is really wrong is not published: `TRUTHS` has
what is assumed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from benchmarks.sim.parameters import DAY_S, GPUS_A_NODE, STOPS_A_GPU_DAY, Parameters


class Truth(str, Enum):
    """What is really the matter."""

    GPU_GONE = "a GPU fell off the bus"
    """The node is bad, and every attempt there ends within minutes."""
    GPU_BAD = "a GPU computes errors now and then"
    """The node is bad: attempts end after a while, with CUDA errors; sensors mostly know."""
    GPU_HICCUP = "a CUDA error that does not come back"
    KERNEL_BUG = "a CUDA error of the script's own"
    KILLED = "a rank killed on a busy host"
    OOM = "a rank killed for want of memory"
    HANG = "a rank blocked in its own code"
    SPIN = "a rank in a loop of its own"
    ALL_WAIT = "a collective that never completes"
    STORAGE_HANG = "a rank that waits for storage"
    STORAGE_ERROR = "an error of the file system"
    DISK_FULL = "no room for checkpoints"
    LINK_FLAP = "a link that was gone for a moment"
    NIC_BAD = "a bad NIC"
    """The node is bad: collectives fail after a while."""
    CONTAINER = "a container that ended, and comes back"
    NODE_DEAD = "a node without power"
    SLOW = "a slow node"
    NAN = "a loss that is no number"
    OUTAGE = "a switch that is down"
    CONTACT = "a node that is not heard for a while"
    FREEZE = "a node that does not run for a while"
    SUSPEND = "a job that is suspended for a while"
    PAUSE = "a rank that waits for long, and goes on"


TRUTHS: dict[Truth, float] = {
    # CUDA error 44%
    Truth.GPU_GONE: 17.6,
    Truth.GPU_BAD: 8.8,
    Truth.GPU_HICCUP: 11.0,
    Truth.KERNEL_BUG: 6.6,
    # CPU overload 13%, host OOM 12%
    Truth.KILLED: 13.0,
    Truth.OOM: 12.0,
    # hang 12%
    Truth.HANG: 6.0,
    Truth.SPIN: 1.2,
    Truth.ALL_WAIT: 3.0,
    Truth.STORAGE_HANG: 1.8,
    # disk full 6%, InfiniBand 3.5%, file system 5%, container 1.7%, slow-down 1%, NaN 0.3%
    Truth.DISK_FULL: 6.0,
    Truth.LINK_FLAP: 1.75,
    Truth.NIC_BAD: 1.75,
    Truth.STORAGE_ERROR: 5.0,
    Truth.CONTAINER: 1.7,
    Truth.SLOW: 1.0,
    Truth.NAN: 0.3,
    # what the published shares leave: 1.5%
    Truth.NODE_DEAD: 1.5,
}
"""Per cent of the failures."""

OWN = frozenset({Truth.GPU_GONE, Truth.GPU_BAD, Truth.NIC_BAD, Truth.CONTAINER, Truth.NODE_DEAD})
"""A node's own."""
AGAIN_S: dict[Truth, float] = {Truth.GPU_GONE: 30.0, Truth.GPU_BAD: 1800.0, Truth.NIC_BAD: 1800.0}
"""A bad node's next failure after an attempt has started there: mean."""
SENSED: dict[Truth, float] = {Truth.GPU_GONE: 0.9, Truth.GPU_BAD: 0.8, Truth.NIC_BAD: 0.5}
"""Share of bad nodes whose sensors tell (an Xid, a link's errors)."""


@dataclass(frozen=True)
class Failure:
    """One thing that befalls one node (or, where it is the script's doing, whoever trains in its place)."""

    at_s: float
    truth: Truth
    node: int
    lasts_s: float = 0.0
    luck: float = 0.0
    """0 to 1, for whatever else has to be drawn: the same in every comparison."""
    place: int = 0
    """In which function of the script, where it is the script's."""


def draw(parameters: Parameters) -> list[Failure]:
    """All that happens in the time, in order."""
    chance = random.Random(f"failures {parameters.seed}")
    a_day = parameters.rate * STOPS_A_GPU_DAY * GPUS_A_NODE * parameters.pool
    kinds, shares = list(TRUTHS), list(TRUTHS.values())
    found = [
        _one(parameters, chance, at_s, chance.choices(kinds, shares)[0])
        for at_s in _times(chance, a_day, parameters.wall_s)
    ]
    switches = parameters.pool / parameters.switch_nodes
    outages_a_day = parameters.rate * parameters.outages_a_switch_year * switches / 365
    found += [_one(parameters, chance, t, Truth.OUTAGE) for t in _times(chance, outages_a_day, parameters.wall_s)]
    losses_a_day = parameters.rate * parameters.contact_losses_a_node_day * parameters.pool
    found += [_one(parameters, chance, t, Truth.CONTACT) for t in _times(chance, losses_a_day, parameters.wall_s)]
    freezes_a_day = parameters.freezes_a_node_year * parameters.pool / 365
    found += [_one(parameters, chance, t, Truth.FREEZE) for t in _times(chance, freezes_a_day, parameters.wall_s)]
    suspends = _times(chance, parameters.suspends_a_day, parameters.wall_s)
    found += [_one(parameters, chance, t, Truth.SUSPEND) for t in suspends]
    return sorted(found, key=lambda failure: failure.at_s)


def _times(chance: random.Random, a_day: float, until_s: float) -> list[float]:
    times, at_s = [], 0.0
    while a_day > 0:
        at_s += chance.expovariate(a_day / DAY_S)
        if at_s >= until_s:
            break
        times.append(round(at_s, 3))
    return times


def _one(parameters: Parameters, chance: random.Random, at_s: float, truth: Truth) -> Failure:
    means = {
        Truth.NODE_DEAD: parameters.repair_s,
        Truth.OUTAGE: parameters.outage_s,
        Truth.SLOW: 7200.0,
    }
    lasts_s = chance.expovariate(1 / means[truth]) if truth in means else 0.0
    if truth is Truth.CONTACT:
        lasts_s = chance.uniform(6.0, 60.0)
    elif truth is Truth.CONTAINER:
        lasts_s = chance.uniform(30.0, 300.0)
    elif truth is Truth.FREEZE:
        lasts_s = chance.uniform(1.0, 60.0)
    elif truth is Truth.SUSPEND:
        lasts_s = chance.uniform(1.0, 3600.0)
    # Never the first node: that the head itself dies is not simulated.
    return Failure(at_s, truth, chance.randrange(1, parameters.pool), round(lasts_s, 3), chance.random())
