"""What Slurm says of a partition: its nodes, its longest time, and how it treats jobs that are preempted."""

from __future__ import annotations

import re
from typing import NamedTuple

from guardrun.slurm.client.commands import Failure, FailureKind, Slurm, parse_fields

NO_LIMITS = ("UNLIMITED", "INFINITE", "-1")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")


class SlurmPartition(NamedTuple):
    """A partition."""

    name: str
    is_default: bool
    is_up: bool
    node_count: int
    max_nodes: int | None
    max_time_s: float | None
    """None: no limit."""
    grace_s: float
    """From the signal to the end of a job that is preempted."""
    preempt_mode: str
    """REQUEUE, CANCEL, GANG,SUSPEND, OFF, …"""


def read_partitions(slurm: Slurm | None = None) -> list[SlurmPartition] | Failure:
    """All partitions that this user may see. Blocks for the time limit at most."""
    answer = (slurm or Slurm.here()).run("scontrol", "show", "partition", "-o")
    if isinstance(answer, Failure):
        return answer
    return [parse_partition(line) for line in answer.splitlines() if line.startswith("PartitionName=")]


def choose_partition(partitions: list[SlurmPartition], name: str) -> SlurmPartition | Failure:
    """The one of this name; empty: the default one."""
    for one in partitions:
        if one.name == name or (not name and one.is_default):
            return one
    names = ", ".join(one.name for one in partitions) or "none"
    what = f"partition {name}" if name else "default partition"
    return Failure(FailureKind.UNKNOWN, f"there is no {what}; there are: {names}")


def parse_partition(line: str) -> SlurmPartition:
    """One line of `scontrol show partition -o`."""
    fields = parse_fields(line)
    return SlurmPartition(
        name=fields.get("PartitionName", ""),
        is_default=fields.get("Default") == "YES",
        is_up=fields.get("State", "UP") == "UP",
        node_count=_number(fields.get("TotalNodes", "")) or 0,
        max_nodes=_number(fields.get("MaxNodes", "")),
        max_time_s=parse_time(fields.get("MaxTime", "")),
        grace_s=float(_number(fields.get("GraceTime", "")) or 0),
        preempt_mode=fields.get("PreemptMode", ""),
    )


def is_time(text: str) -> bool:
    """Say whether Slurm takes it for a time limit."""
    return text.upper() in NO_LIMITS or _TIME.fullmatch(text.strip()) is not None


def parse_time(text: str) -> float | None:
    """Slurm's times in seconds: `90` (minutes), `90:00`, `1:30:00`, `1-12`; None for UNLIMITED and no time."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return float(((int(match["days"]) * 24 + hours) * 60 + minutes) * 60 + seconds)
    if len(parts) == 1:
        return parts[0] * 60.0
    if len(parts) == 2:
        return parts[0] * 60.0 + parts[1]
    return parts[0] * 3600.0 + parts[1] * 60 + parts[2]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None
