"""A partition and its nodes, as Slurm tells of them."""

from __future__ import annotations

from guardrun.slurm.client.nodes import SlurmNode, parse_partition

PARTITION = parse_partition(
    "PartitionName=gpu AllowGroups=ALL Default=YES GraceTime=30 MaxNodes=UNLIMITED MaxTime=1-00:00:00 DefaultTime=NONE"
    " Nodes=n[1-4] PreemptMode=REQUEUE State=UP TotalCPUs=8 TotalNodes=4"
)


def node(name: str, *states: str, gres: str = "gpu:h100:8(S:0-1)") -> SlurmNode:
    """A node with eight GPUs, idle where nothing else is given."""
    return SlurmNode(name, frozenset(states or ("IDLE",)), "", "", ("gpu",), gres)


NODES = [node("n1"), node("n2"), node("n3", "IDLE", "DRAIN"), node("n4")]
