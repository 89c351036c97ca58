"""What the simulation assumes. What is published is marked with its source; everything else is an assumption, printed
with the table, and the same for all that are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from guardrun.supervisor.engine.model.hang_patience import Sensitivity

DAY_S = 86400.0
STOPS_A_GPU_DAY = 419 / (54 * 16384)
"""Llama 3 (arXiv 2407.21783, 3.3.4): 419 unexpected stops in 54 days on 16,384 GPUs."""
GPUS_A_NODE = 8


@dataclass(frozen=True)
class Parameters:
    """One simulated job. Seconds are virtual."""

    nodes: int = 10_000
    """That train."""
    spares: int = 0
    least: int = 0
    """Fewest nodes that will do (--nnodes=LEAST:NODES); 0: all of them."""
    days: float = 14.0
    rate: float = 1.0
    """Times the published rate of stops."""
    seed: int = 0
    ranks_a_node: int = 1
    """That the engine is told of; GPUs fail as eight a node whatever this is."""
    pool: int = 12_000
    """Nodes of the cluster: a requeue takes nodes from here."""
    step_s: float = 10.0
    start_s: float = 120.0
    """From ranks started to the first step: imports, process groups, the checkpoint loaded."""
    save_s: float = 5.0
    """Training stands for a checkpoint."""
    save_every_s: float = 0.0
    """Between two checkpoints; 0: at Young's and Daly's interval."""
    sensitivity: Sensitivity = "normal"
    """`[hang] sensitivity`."""
    switch_nodes: int = 32
    outages_a_switch_year: float = 0.5
    outage_s: float = 1200.0
    """Mean."""
    contact_losses_a_node_day: float = 0.001
    """The head does not hear a node for up to a minute, and training goes on."""
    freezes_a_node_year: float = 0.0
    """A node does not run for 1 to 60 s, and is well (a live migration, a hypervisor that swaps)."""
    suspends_a_day: float = 0.0
    """The job's nodes are suspended together for up to an hour (gang scheduling)."""
    repair_s: float = 8 * 3600.0
    """Mean time until a node that is out, or dead, is back."""
    found_s: float = DAY_S
    """A bad node that nobody has named is found (by maintenance) after so long."""
    human_s: float = 1800.0
    """A person acts so long after a job has ended, or has begun to go in circles."""
    requeue_s: float = 300.0
    """From the person's command to new processes."""
    max_restarts: int = 1_000_000
    max_no_progress: int = 20
    """guardrun's default is 3; in a job of this size as many failures in a row that get no further come by chance."""
    is_whole: bool = False
    """Every rank's exit is told to the engine; else one event tells all."""

    @property
    def wall_s(self) -> float:
        return self.days * DAY_S

    @property
    def stops_a_day(self) -> float:
        """Expected, of the nodes that train."""
        return self.rate * STOPS_A_GPU_DAY * GPUS_A_NODE * self.nodes

    @property
    def steps_a_save(self) -> int:
        """In whole steps. Young and Daly: √(2 · save time · MTBF)."""
        if self.save_every_s:
            return max(1, round(self.save_every_s / self.step_s))
        mtbf_s = DAY_S / self.stops_a_day
        return max(1, round(math.sqrt(2 * self.save_s * mtbf_s) / self.step_s))

    @cached_property
    def names(self) -> list[str]:
        return [f"n{number:05d}" for number in range(self.pool)]
