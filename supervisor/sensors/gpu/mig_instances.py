"""Instances of a GPU that is divided (MIG): their UUIDs, and the processes that hold their memory.

Asked for its processes, a divided GPU answers administrators only; its instances answer everybody who may use them
(NVML API reference, nvmlDeviceGetComputeRunningProcesses). Temperatures, clocks and errors are the whole GPU's.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Sample
from guardrun.supervisor.sensors.gpu.nvml_calls import Asker, UnreadableError

MAX_INSTANCES = 16
"""No GPU has more than seven."""


def read_instances(ask: Asker) -> Sample:
    """`mig_instances`: UUIDs, with spaces between; empty where it is not divided."""
    name = "mig_instances"
    try:
        return ask.known(name, " ".join(str(each.call("nvmlDeviceGetUUID")) for each in open_instances(ask)))
    except UnreadableError as reason:
        return ask.unknown(name, reason)


def open_instances(ask: Asker) -> list[Asker]:
    """One to ask of each instance. Those that this process may not see are left out. Raises UnreadableError."""
    if not ask.is_mig:
        return []
    found = []
    for place in range(min(MAX_INSTANCES, int(ask.call("nvmlDeviceGetMaxMigDeviceCount")))):
        try:
            handle = ask.call("nvmlDeviceGetMigDeviceHandleByIndex", place)
        except UnreadableError:  # NVML_ERROR_NOT_FOUND: the places are not filled in a row.
            continue
        found.append(ask.part(handle, f"{ask.label}'s MIG instance {place}"))
    return found
