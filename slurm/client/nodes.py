"""What Slurm says of a node and of a partition: states, drains and their reasons; nodes, longest time, preemption."""

from __future__ import annotations

import re
from typing import NamedTuple

from guardrun.slurm.client.commands import Failure, FailureKind, Slurm, parse_fields

_REASON = re.compile(r" Reason=(?P<text>.*?)(?: \[(?P<who>\S+)@(?P<when>\S+)\])?(?: (?:Comment|Extra)=.*)?$", re.DOTALL)
_DRAIN_FLAGS = frozenset({"DRAIN", "DRAINED", "DRAINING"})


class SlurmNode(NamedTuple):
    """A node."""

    name: str
    states: frozenset[str]
    """As IDLE, ALLOCATED, MIXED, DOWN, and DRAIN, MAINT, NOT_RESPONDING, … beside it."""
    reason: str
    """Empty for none."""
    reason_by: str
    partitions: tuple[str, ...]
    gres: str
    address: str = ""
    port: int = 0
    """At which its slurmd listens; 0: not told."""

    @property
    def is_drained(self) -> bool:
        """Somebody, or Slurm, lets no new job start there; what runs goes on."""
        return bool(self.states & _DRAIN_FLAGS)

    @property
    def is_down(self) -> bool:
        """Whether Slurm has set it DOWN; a node that is only drained, or does not respond, is not."""
        return "DOWN" in self.states


def read_node(node: str, slurm: Slurm | None = None) -> SlurmNode | Failure:
    """A node by Slurm's name for it. Blocks for the time limit at most."""
    answer = (slurm or Slurm.here()).run("scontrol", "show", "node", "-o", node)
    if isinstance(answer, Failure):
        return answer
    found = parse_nodes(answer)
    if len(found) != 1 or found[0].name != node:
        return Failure(FailureKind.UNKNOWN, f"Slurm knows no node {node}")
    return found[0]


def read_nodes(slurm: Slurm | None = None) -> list[SlurmNode] | Failure:
    """All nodes of the cluster. Blocks for the time limit at most."""
    answer = (slurm or Slurm.here()).run("scontrol", "show", "node", "-o")
    return answer if isinstance(answer, Failure) else parse_nodes(answer)


def read_drained(slurm: Slurm | None = None) -> dict[str, tuple[str, str]] | Failure:
    """The cluster's drained nodes → the reason, and who gave it. Blocks for the time limit at most."""
    answer = (slurm or Slurm.here()).run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N|%u|%E")
    return answer if isinstance(answer, Failure) else parse_drained(answer)


def parse_drained(text: str) -> dict[str, tuple[str, str]]:
    """`sinfo -N -o %N|%u|%E`: a line a node and partition."""
    found = (line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2)
    return {node: (reason.strip(), who) for node, who, reason in found}


def parse_nodes(text: str) -> list[SlurmNode]:
    """`scontrol show node -o`: a line a node."""
    return [parse_node(line) for line in text.splitlines() if line.startswith("NodeName=")]


def parse_node(line: str) -> SlurmNode:
    """One line of it. A reason may hold anything, ` State=…` too: it is taken out first."""
    line = line.rstrip()
    reason = _REASON.search(line)
    fields = parse_fields(line[: reason.start()] if reason else line)
    words = re.split(r"[+]", fields.get("State", "").rstrip("*~#!%$@^-"))
    return SlurmNode(
        name=fields.get("NodeName", ""),
        states=frozenset(word.rstrip("*~#!%$@^-") for word in words if word),
        reason=(reason["text"] or "").strip() if reason else "",
        reason_by=(reason["who"] or "") if reason else "",
        partitions=tuple(one for one in fields.get("Partitions", "").split(",") if one),
        gres=fields.get("Gres", "").replace("(null)", ""),
        address=fields.get("NodeAddr", ""),
        port=int(port) if (port := fields.get("Port", "")).isdigit() and len(port) < 6 else 0,
    )


# Partitions ---------------------------------------------------------------------------------------------------------
# What Slurm says of a partition: its nodes, its longest time, and how it treats jobs that are preempted.


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
