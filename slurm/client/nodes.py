"""What Slurm says of a node: its state, and who took it out of service and why."""

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
