"""All sensors that there are, in one explicit list."""

from __future__ import annotations

from guardrun.supervisor.node.sensor import Sensor


def default_sensors(root: str = "/") -> list[Sensor]:
    """The sensors for this node.

    root: where to look instead of `/`; what is not read from files (mounts, links, the clock) is the machine's.
    """
    return []
