"""Is a device as fast as it was? Bandwidths of each full pre-flight, kept, and judged against their median."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from guardrun.supervisor.base.node_state import write_durably
from guardrun.supervisor.preflight.base.remark import Remark, note, ok, plural, warn

NAME = "bandwidth"
FILE = "bandwidth.json"
KEPT = 20
LEAST_PAST = 3
"""Fewer say nothing of what is usual."""
SLOW = 0.7
"""Of the median: less than that is no noise on PCIe and NVLink."""
MEANINGS = {
    "to_device": "from the host to it",
    "from_device": "from it to the host",
    "to_neighbour": "to its neighbour",
    "memory": "within the host's memory",
    "bus": "in an all-reduce among all devices",
}

Past = dict[str, dict[str, list[float]]]
"""Device → measure → bytes a second, the oldest first."""


class _File(msgspec.Struct):
    schema: int = 1
    speeds: Past = {}


def judge(device: str, measure: str, speed: float, past: list[float]) -> Remark:
    """device: as a person knows it; speed, past: bytes a second."""
    text = f"{device}: {speed / 1e9:.3g} GB/s {MEANINGS.get(measure, measure)}"
    data: dict[str, Any] = {"device": device, "measure": measure, "bytes_per_s": round(speed), "past": len(past)}
    if len(past) < LEAST_PAST:
        missing = plural(LEAST_PAST - len(past), "more check")
        return note(NAME, f"{text}; after {missing} there is something to compare with.", "", **data)
    usual = median(past)
    if speed < SLOW * usual:
        return warn(
            NAME,
            f"{text}, which is {speed / usual:.0%} of the {usual / 1e9:.3g} GB/s that are usual here.",
            "If nothing else was running: look at its PCIe width (nvidia-smi -q), NVLinks, clocks and temperature.",
            **data,
            usual_bytes_per_s=round(usual),
        )
    return ok(NAME, f"{text} ({speed / usual:.0%} of what is usual).", **data)


def read_past(folder: str) -> Past:
    """What was measured before; nothing where there is no file, or none that can be read."""
    try:
        return msgspec.json.decode((Path(folder) / FILE).read_bytes(), type=_File).speeds
    except (OSError, msgspec.DecodeError, ValueError):
        return {}


def keep(folder: str, past: Past, new: Mapping[str, Mapping[str, float]]) -> None:
    """Add to what is known. A folder that cannot be written keeps nothing: the next check will say so again."""
    for device, measures in new.items():
        known = past.setdefault(device, {})
        for measure, speed in measures.items():
            known[measure] = [*known.get(measure, []), speed][-KEPT:]
    with suppress(OSError):
        write_durably(Path(folder) / FILE, msgspec.json.encode(_File(speeds=past)))
