"""What Slurm says to a process by its environment: which job, which step, which node of how many. Pure.

    srun in sbatch, or in salloc    a step: SLURM_STEP_ID, SLURM_STEP_NODELIST, SLURM_NODEID, …
    sbatch without srun             no step: the batch script runs on the job's first node alone
    salloc                          no step and no node: a shell, often on a login node

A step may be smaller than its job, so what is asked is always the step's. In a step over several components of a
heterogeneous job SLURM_NODEID counts through all of them, and so do SLURM_STEP_NUM_NODES and the list of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from guardrun.slurm.client.hostlist import HostlistError, parse_hostlist

SPECIAL_STEPS = 0xFFFFFFF0
"""Step ids from here on are Slurm's own: batch, extern, interactive, pending (slurm.h)."""


class SlurmEnvironmentError(ValueError):
    """A variable of Slurm's that cannot be understood; names it."""


class SlurmHere(NamedTuple):
    """This process's place in Slurm."""

    job_id: str
    """SLURM_JOB_ID; of an array's last task this is the array's own: ask Slurm by `job`."""
    step_id: str
    """Empty outside of steps that srun has started."""
    nodes: tuple[str, ...]
    """Of the step, else of the job, in Slurm's order; empty where it does not say."""
    node_count: int
    node: str
    """SLURMD_NODENAME; empty in salloc's shell."""
    node_id: int
    """Its place among the step's nodes, from 0; -1 where Slurm does not say."""
    tasks: int
    """Of the step; 1 outside."""
    local_id: int
    """Of this task on its node, from 0."""
    tasks_here: int
    """Of the step on this node."""
    restarts: int
    """How often the job was requeued."""
    array_job_id: str
    array_task_id: str
    het_size: int
    """Components of a heterogeneous job; 0: it is none."""
    topology: str
    """SLURM_TOPOLOGY_ADDR, as `switch0.switch3.n7`; where no topology is configured the node's name."""
    topology_pattern: str
    """SLURM_TOPOLOGY_ADDR_PATTERN: what each part of it is, as `switch.switch.node`."""
    task_id: int
    """SLURM_PROCID: this task among the step's; -1 where Slurm does not say."""
    is_order_given: bool
    """The user has said in which order nodes come (srun --distribution=arbitrary): that of task_id, not of node_id."""
    end_wall_s: float | None
    """SLURM_JOB_END_TIME, which Slurm 22.05 does not set: ask `read_job`."""
    partition: str

    @property
    def is_step(self) -> bool:
        """Started by srun; False in the batch script itself and in salloc's shell."""
        return bool(self.step_id)

    @property
    def place(self) -> int:
        """Where this node comes among the step's, with one task a node; -1 where Slurm does not say."""
        return self.task_id if self.is_order_given and self.task_id >= 0 else self.node_id

    @property
    def switches(self) -> tuple[str, ...]:
        """Those above this node, from the top of the network down; of several at one level Slurm writes a list."""
        kinds = self.topology_pattern.split(".")
        if not self.topology or kinds[-1] != "node":
            return ()
        # A node's own name may have dots.
        parts = self.topology.split(".", len(kinds) - 1)
        return tuple(parts[:-1]) if len(parts) == len(kinds) else ()

    @property
    def job(self) -> str:
        """What Slurm's commands call this job: `5`, and `5_3` for a task of an array."""
        return f"{self.array_job_id}_{self.array_task_id}" if self.array_task_id else self.job_id


def read_slurm(environ: Mapping[str, str]) -> SlurmHere | None:
    """This process's place in Slurm; None outside. Raises SlurmEnvironmentError."""
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    if not job_id:
        return None
    step_id = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    if step_id and _number(environ, "SLURM_STEP_ID", 0) >= SPECIAL_STEPS:
        step_id = ""
    nodes = _nodes(environ, is_step=bool(step_id))
    counted = ("SLURM_STEP_NUM_NODES",) if step_id else ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    node_id = _number(environ, "SLURM_NODEID", -1)
    end_s = _number(environ, "SLURM_JOB_END_TIME", 0)
    here = SlurmHere(
        job_id=job_id,
        step_id=step_id,
        nodes=nodes,
        node_count=_first_number(environ, counted, len(nodes) or 1),
        node=environ.get("SLURMD_NODENAME", ""),
        node_id=node_id,
        tasks=_number(environ, "SLURM_STEP_NUM_TASKS", 1) if step_id else 1,
        local_id=_number(environ, "SLURM_LOCALID", 0) if step_id else 0,
        tasks_here=_tasks_here(environ, node_id) if step_id else 1,
        restarts=_number(environ, "SLURM_RESTART_COUNT", 0),
        array_job_id=environ.get("SLURM_ARRAY_JOB_ID", ""),
        array_task_id=environ.get("SLURM_ARRAY_TASK_ID", ""),
        het_size=_number(environ, "SLURM_HET_SIZE", 0),
        topology=environ.get("SLURM_TOPOLOGY_ADDR", ""),
        topology_pattern=environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""),
        task_id=_number(environ, "SLURM_PROCID", -1) if step_id else -1,
        is_order_given=environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"),
        end_wall_s=float(end_s) if end_s > 0 else None,
        partition=environ.get("SLURM_JOB_PARTITION", ""),
    )
    if here.is_step and not 0 <= here.node_id < here.node_count:
        raise SlurmEnvironmentError(
            f"SLURM_NODEID={environ.get('SLURM_NODEID', '')}: expected a number below the step's nodes,"
            f" {here.node_count} (SLURM_STEP_NUM_NODES)"
        )
    return here


def refusal(here: SlurmHere, wanted_nodes: int) -> str:
    """Why guardrun cannot run where it was started, and the way out; empty: it can.

    wanted_nodes: those that the command line asks for, spares included; 1 where it names none.
    """
    if here.tasks_here > 1 or here.local_id > 0:
        return (
            f"srun has started {max(here.tasks_here, here.local_id + 1)} guardrun on {here.node or 'this node'}: one"
            " a node is needed, which starts the ranks itself. Run it with srun --ntasks-per-node=1 (and leave out"
            f" --ntasks, or make it the number of nodes), and say --nproc_per_node={here.tasks_here} to guardrun"
        )
    if here.is_step and wanted_nodes > here.node_count:
        return (
            f"this step has {_nodes_text(here.node_count)}, and the command line asks for {wanted_nodes}: give the job"
            f" {wanted_nodes} (sbatch --nodes={wanted_nodes}; spares are among them), or ask for fewer"
        )
    if not here.is_step and wanted_nodes > 1:
        where = f"only on {here.node}" if here.node else "on none of the job's nodes"
        return (
            f"srun is missing: job {here.job} has {_nodes_text(here.node_count)}, but guardrun was started {where}."
            " Write `srun --no-kill guardrun …` where it says `guardrun …`, which starts one on each node"
        )
    return ""


def _nodes(environ: Mapping[str, str], is_step: bool) -> tuple[str, ...]:
    for name in ("SLURM_STEP_NODELIST",) if is_step else ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if text := environ.get(name, ""):
            try:
                return tuple(parse_hostlist(text))
            except HostlistError as error:
                raise SlurmEnvironmentError(f"{name}: {error}") from None
    return ()


def _tasks_here(environ: Mapping[str, str], node_id: int) -> int:
    """From SLURM_STEP_TASKS_PER_NODE, as `2(x3),1`; 1 where it does not tell."""
    left = node_id
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        tasks, _, times = part.partition("(x")
        count = times.rstrip(")") or "1"
        if not (tasks.isdigit() and count.isdigit()):
            return 1
        if left < int(count):
            return int(tasks)
        left -= int(count)
    return 1


def _first_number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    return next((_number(environ, name, default) for name in names if environ.get(name)), default)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    # isdigit() alone takes digits that int() does not, and numbers without end.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise SlurmEnvironmentError(f"{name}={text[:40]}: expected a number")
    return int(text)


def _nodes_text(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
