"""What is checked at the end of a story."""

from __future__ import annotations

from tests.sim import activity as act
from tests.sim.cluster import Cluster

WITHIN_S = {
    act.HANG: 32,
    act.SPIN: 125,
    act.STOPPED: 6,
    act.TRACED: 24,
    act.GIL_HELD: 65,
    act.IO_BLOCKED: 65,
    act.DATA_DEAD: 65,
}
"""From the fault to its verdict, with the default patience."""


def check(cluster: Cluster) -> None:
    """The cluster's end is as it must be, and its journal decides the same again."""
    cluster.check_end()
    cluster.replay()


def check_healthy(cluster: Cluster) -> None:
    """Nothing was told as a hang, and nothing stopped."""
    assert cluster.incidents == {}
    assert cluster.stops == []
    cluster.check_end()
    cluster.replay()
