"""A job of several nodes, told from the command line and the scheduler: who leads, and where the others look for it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from guardrun.launcher.address import find_address, is_own
from guardrun.launcher.elastic import Plan, parse_nodes
from guardrun.supervisor.config import Config
from guardrun.supervisor.coordinator.joinfile import join_file_path
from guardrun.supervisor.core.events import FleetPlan, Settings
from guardrun.supervisor.rundir import FleetFile

if TYPE_CHECKING:
    from guardrun.slurm.environment import SlurmHere

DEFAULT_NODES = "1:1"
"""torchrun's --nnodes."""
DEFAULT_MASTER = "127.0.0.1"
"""torchrun's --master-addr."""
MUNGE = "munge"
"""In [fleet] join: no folder is shared, munge says who is who."""
NODES_FOLDER = ".nodes"
"""In the folder of runs: what the nodes other than the head keep of themselves."""


class FleetError(Exception):
    """The command line, or the scheduler, asks for what cannot be; says why, and what would be right."""


@dataclass(frozen=True)
class Fleet:
    """This node's part in the job."""

    plan: FleetPlan
    slot: int
    key: str
    endpoint: str
    """Host that the user named as the head's; empty: none."""
    may_lead: bool
    is_chosen: bool
    """No other node may lead."""
    head: str
    """The head's host, as far as it is known before it has said anything; empty: not at all."""
    meet_port: int = 0
    """Where it introduces itself, unless [fleet] port says otherwise."""


def plan_fleet(args: Any, config: Config, environ: Mapping[str, str]) -> Fleet | None:
    """None: one node. Sets args.nnodes where the scheduler says how many. Raises FleetError, or what torch raises."""
    spares = config.fleet.spares
    step = _read_step(environ, args, spares)
    if step is not None and step.node_count > 1 and args.nnodes == DEFAULT_NODES and not args.standalone:
        args.nnodes = str(step.node_count - spares)
    least, most = parse_nodes(args)
    if args.standalone or (most == 1 and not spares) or not 1 <= least <= most:
        return None
    plan = FleetPlan(least=least, most=most, spares=spares)
    host = _endpoint_host(args)
    if step is not None and step.node_count > 1:
        leads = step.node_id == 0
        head = host or (step.nodes[0] if step.nodes else "")
        key, port = f"{step.job_id}.{step.step_id}", meeting_port(step.job_id)
        return Fleet(plan, step.node_id, key, host, leads, leads, head, port)
    key = args.rdzv_id if args.rdzv_id not in ("", "none", None) else f"{host or 'static'}-{_endpoint_port(args)}"
    if args.rdzv_backend == "static":
        if spares == 0 and args.node_rank >= most:
            raise FleetError(f"--node-rank {args.node_rank}: there are nodes 0 to {most - 1} (--nnodes={args.nnodes})")
        leads = args.node_rank == 0
        return Fleet(plan, args.node_rank, key, host, leads, leads, host, meeting_port(key))
    if not host:
        raise FleetError(f"--nnodes={args.nnodes} with --rdzv-backend=c10d needs --rdzv-endpoint=HOST[:PORT]: the head")
    return Fleet(plan, -1, key, host, is_own(host), False, host, meeting_port(key))


def meeting_port(key: str) -> int:
    """One that all nodes of a job work out alike: outside of Linux's usual ephemeral ports (32768 and up)."""
    return 20000 + int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 10000


def _read_step(environ: Mapping[str, str], args: Any, spares: int) -> SlurmHere | None:
    """This step of Slurm's; None outside, and in a batch script itself. Raises FleetError where it doesn't fit."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    from guardrun.slurm.environment import SlurmEnvironmentError, read_slurm, refusal

    try:
        here = read_slurm(environ)
    except SlurmEnvironmentError as error:
        raise FleetError(str(error)) from None
    # With rendezvous flags of their own several agents may share a node, as under torchrun.
    if here is None or args.rdzv_endpoint or is_master_named(args) or args.standalone:
        return here if here is not None and here.is_step and here.tasks_here == 1 else None
    least, _ = parse_nodes(args)
    if why := refusal(here, least + spares if least + spares > 1 else 1):
        raise FleetError(why)
    return here if here.is_step else None


def _endpoint_host(args: Any) -> str:
    if args.rdzv_endpoint:
        text = args.rdzv_endpoint.strip()
        return str(text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0])
    return str(args.master_addr) if args.rdzv_backend == "static" and is_master_named(args) else ""


def is_master_named(args: Any) -> bool:
    """Whether the user says where the ranks meet; torchrun's default is this host alone."""
    return args.master_port is not None or args.master_addr != DEFAULT_MASTER


def _endpoint_port(args: Any) -> str:
    port = args.rdzv_endpoint.rpartition(":")[2] if ":" in args.rdzv_endpoint else ""
    return str(port or args.master_port or "default")


class Lead:
    """Held by the head while it lives: of several that may lead, on one machine, the first does."""

    def __init__(self, join: Path) -> None:
        """Raises OSError where the folder cannot be written."""
        join.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(join.with_name(f"{join.name}.lead"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """False where another process leads."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self._fd)


def join_path(fleet: Fleet, config: Config, directory: Path, cwd: Path) -> Path:
    """Where the join file lies."""
    named = config.fleet.join if config.fleet.join != MUNGE else ""
    return cwd / named if named else join_file_path(directory, fleet.key)


def name_beside_head(fleet: Fleet, node: str, is_head: bool) -> str:
    """Of several guardruns on one host, those that do not lead are called otherwise: `HOST-1`; empty: no need to."""
    if is_head or not fleet.endpoint or not is_own(fleet.endpoint):
        return ""
    return f"{node}-{fleet.slot if fleet.slot >= 0 else os.getpid()}"


def patience(plan: Plan, config: Config, settings: Settings) -> Settings:
    """With torchrun's own words for how long nodes are waited for (--rdzv-conf), unless [fleet] has others."""
    said = getattr(plan.config, "rdzv_configs", None) or {}
    for key, name in (("last_call_timeout", "last_call_s"), ("join_timeout", "join_timeout_s")):
        if key in said and config.origins[f"fleet.{name}"] == "default":
            settings = msgspec.structs.replace(settings, **{name: float(said[key])})
    return settings


def fleet_file(fleet: Fleet, plan: Plan, config: Config, join: Path, is_head: bool) -> FleetFile:
    """This node's part, for its supervisor. Raises FleetError."""
    if config.fleet.join == MUNGE and not fleet.head:
        raise FleetError(f"--guard-join={MUNGE} needs the head's name: --rdzv-endpoint=HOST or --master-addr=HOST")
    local = getattr(plan.config, "local_addr", None)
    named = fleet.endpoint if is_head and fleet.endpoint and is_own(fleet.endpoint) else ""
    return FleetFile(
        key=fleet.key,
        meet=(fleet.head, config.fleet.port or fleet.meet_port) if config.fleet.join == MUNGE else None,
        munge_socket=config.fleet.munge_socket,
        is_head=is_head,
        slot=fleet.slot if fleet.slot >= 0 or not is_head else 0,
        join_file=str(join),
        plan=fleet.plan,
        address=named or find_address(local),
        port=0 if config.fleet.join == MUNGE else config.fleet.port,
        term_s=config.fleet.term_s,
        work=hashlib.sha256(json.dumps(plan.arguments).encode()).hexdigest()[:16],
    )
