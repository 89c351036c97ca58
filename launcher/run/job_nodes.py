"""A job of several nodes, told from the command line and the scheduler: who leads, and where the others look for it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from guardrun.launcher.base.own_address import (
    does_resolve,
    find_address,
    find_listen,
    is_ipv6,
    is_loopback,
    is_loopback_address,
    is_own,
    names_of,
    own_names,
)
from guardrun.supervisor.config import Config
from guardrun.supervisor.engine.model.events import FleetPlan, Settings
from guardrun.supervisor.fleet.rendezvous.coordinator_liveness import is_listening
from guardrun.supervisor.fleet.rendezvous.join_file import (
    EVERY,
    JoinError,
    NotThere,
    find_squatter,
    join_file_path,
    on_host,
    read_join_file,
    try_writing,
)
from guardrun.supervisor.rundir.run_directory import FleetFile
from guardrun.supervisor.wire.listening_addresses import EVERYWHERE, Listen, join_both

if TYPE_CHECKING:
    from guardrun.launcher.attempt.torch_elastic import Plan
    from guardrun.slurm.client.job_environment import SlurmHere

DEFAULT_NODES = "1:1"
"""torchrun's --nnodes."""
DEFAULT_MASTER = "127.0.0.1"
"""torchrun's --master-addr."""
DEFAULT_PORTS = {"static": 29500, "c10d": 29400}
"""torchrun's, by --rdzv-backend (torch/distributed/run.py; elastic/rendezvous/c10d_rendezvous_backend.py)."""
MUNGE = "munge"
"""In [fleet] join: no folder is shared, munge says who is who."""
NODES_FOLDER = ".nodes"
"""In the folder of runs: what the nodes other than the head keep of themselves."""


_ELSEWHERE = (
    "name a place that this node can write and the others can read, by --guard-dir=DIR (for the runs) or "
    "--guard-join=FILE"
)


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
    awaited: str = ""
    """Who leads, in words."""
    is_by_host: bool = False
    """The key holds for a job of each host: the head's tells them apart."""
    warning: str = ""
    """Said once."""
    switches: tuple[str, ...] = ()
    """Above this node; empty: not known, or not to go by."""
    loopback: str = ""
    """By which the user says that all nodes are on this host; empty: not said."""


def plan_fleet(
    args: Any,
    config: Config,
    environ: Mapping[str, str],
    is_node_rank_given: bool = True,
    is_master_given: bool = True,
) -> Fleet | None:
    """None: one node. Sets args.nnodes where the scheduler says how many. Raises FleetError, or what torch raises."""
    from guardrun.launcher.attempt.torch_elastic import parse_nodes

    spares = config.fleet.spares
    step = _read_step(environ, args, spares)
    if step is not None and step.node_count > 1 and args.nnodes == DEFAULT_NODES and not args.standalone:
        args.nnodes = str(step.node_count - spares)
    least, most = parse_nodes(args)
    if args.standalone and least > 1:
        raise FleetError(f"--standalone is a run of this node alone, and --nnodes={args.nnodes} asks for more")
    if args.standalone or (most == 1 and not spares) or not 1 <= least <= most:
        return None
    plan = FleetPlan(least=least, most=most, spares=spares)
    host, named_port = _endpoint(args)
    if step is not None and step.node_count > 1:
        leads = step.node_id == 0
        head = host or (step.nodes[0] if step.nodes else "")
        key, port = f"{step.job_id}.{step.step_id}", meeting_port(step.job_id)
        awaited = f"the step's first node, {head or '?'}"
        # Who says who is who, or in which order nodes come, is taken at his word.
        is_free = not (args.rdzv_endpoint or is_master_named(args) or step.is_order_given)
        switches = step.switches if is_free else ()
        return Fleet(plan, step.place, key, host, leads, leads, head, port, awaited, switches=switches)
    key = f"{args.rdzv_id or 'none'}-{named_port}"
    if args.rdzv_backend == "static":
        # torchrun's default says nothing: the other nodes may have been given the head's own name.
        is_given = bool(args.rdzv_endpoint) or is_master_given
        named = host or str(args.master_addr).strip("[]")
        fleet = _static(args, plan, key, host, is_node_rank_given)
        return replace(fleet, loopback=_loopback(named)) if is_given else fleet
    if not host:
        raise FleetError(f"--nnodes={args.nnodes} with --rdzv-backend=c10d needs --rdzv-endpoint=HOST[:PORT]: the head")
    awaited = f"the guardrun on {host}, which --rdzv-endpoint names"
    warning = "" if does_resolve(host) else _unresolved("--rdzv-endpoint", host)
    leads, port = is_own(host), meeting_port(key)
    return Fleet(plan, -1, key, host, leads, False, host, port, awaited, True, warning, loopback=_loopback(host))


def _loopback(host: str) -> str:
    """A host that is named, if by an address of loopback's."""
    return host if is_loopback_address(host) and is_own(host) else ""


def _static(args: Any, plan: FleetPlan, key: str, host: str, is_node_rank_given: bool) -> Fleet:
    """Node rank 0 leads. Raises FleetError where it cannot be this one's."""
    number = args.node_rank
    if number < 0 or (plan.spares == 0 and number >= plan.most):
        raise FleetError(f"--node-rank={number}: there are nodes 0 to {plan.most - 1} (--nnodes={args.nnodes})")
    leads = number == 0
    flag = "--rdzv-endpoint" if args.rdzv_endpoint else "--master-addr"
    warning = ""
    if host and not does_resolve(host):
        warning = _unresolved(flag, host)
    elif host and leads and not is_own(host):
        if not is_node_rank_given:
            raise FleetError(
                f"{flag} names {host}, which is not this host, and --node-rank is missing: on {host} it is 0, on the "
                f"other{' 1' if (last := plan.most + plan.spares - 1) == 1 else f's 1 to {last}, another on each'}"
            )
        warning = f"--node-rank=0 leads, but {flag} names {host}, which is no name of this host"
    awaited = f"the guardrun with --node-rank=0{f', on {host} ({flag})' if host else ''}"
    return Fleet(plan, number, key, host, leads, leads, host, meeting_port(key), awaited, bool(host), warning)


def _unresolved(flag: str, host: str) -> str:
    return f"{flag} names {host}, which does not resolve on this host: looking for the head all the same"


def meeting_port(key: str) -> int:
    """One that all nodes of a job work out alike: outside of Linux's usual ephemeral ports (32768 and up)."""
    return 20000 + int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 10000


def _read_step(environ: Mapping[str, str], args: Any, spares: int) -> SlurmHere | None:
    """This step of Slurm's; None outside, and in a batch script itself. Raises FleetError where it doesn't fit."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    from guardrun.launcher.attempt.torch_elastic import parse_nodes
    from guardrun.slurm.client.job_environment import SlurmEnvironmentError, read_slurm, refusal

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


def _endpoint(args: Any) -> tuple[str, int]:
    """Host (empty: none is named) and port, as torchrun reads them. Raises FleetError, ValueError."""
    port = DEFAULT_PORTS.get(args.rdzv_backend, 0)
    if not args.rdzv_endpoint:
        is_named = args.rdzv_backend == "static" and is_master_named(args)
        return (str(args.master_addr).strip("[]") if is_named else "", int(args.master_port or port))
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    host, port = parse_rendezvous_endpoint(args.rdzv_endpoint, port)
    if ":" in host and not is_ipv6(host):
        raise FleetError(
            f"--rdzv-endpoint={args.rdzv_endpoint}: an IPv6 address stands in brackets, as in [2001:db8::1]:29400"
        )
    return str(host), int(port)


def is_master_named(args: Any) -> bool:
    """Whether the user says where the ranks meet; torchrun's default is this host alone."""
    return args.master_port is not None or args.master_addr != DEFAULT_MASTER


class Lead:
    """Held by the head while it lives: of several that may lead, on one machine, the first does."""

    def __init__(self, join: Path) -> None:
        """Raises OSError where the folder cannot be written."""
        self._path = join.with_name(f"{join.name}.lead")
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def acquire(self) -> bool:
        """False where another process leads. Raises FleetError where somebody else's holds a file of its own there."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if (owner := os.fstat(self._fd).st_uid) != os.geteuid():
                raise _squatted(f"{self._path} belongs to uid {owner}, not to {os.geteuid()}, and is held") from None
            return False
        return True

    def close(self) -> None:
        """Give up the lead: the kernel drops the lock with the descriptor."""
        os.close(self._fd)


def join_path(fleet: Fleet, config: Config, directory: Path, cwd: Path) -> Path:
    """Where the join file lies: this host's, where it may lead; else a pattern where each host may have one."""
    named = config.fleet.join if config.fleet.join != MUNGE else ""
    if named:
        return cwd / named
    path = join_file_path(directory, fleet.key)
    if not fleet.is_by_host:
        return path
    return on_host(path, socket.gethostname() if fleet.may_lead else EVERY)


def check_lead(join: Path, run_id: str | None, is_scheduled: bool = False) -> None:
    """Whether this node can lead: its join file can be written, and nobody leads another run by it.

    is_scheduled: who has started this one knows better, as after a requeue from a node that it no longer reaches.
    Raises FleetError.
    """
    try:
        try_writing(join)
    except OSError as error:
        raise _unwritable(join, error) from None
    if squatter := find_squatter(join):
        raise _squatted(squatter)
    try:
        present = read_join_file(join)
    except (NotThere, JoinError):
        return  # whoever writes it says what is wrong with it
    if present.run_id != run_id and not is_scheduled and is_listening(present):
        raise FleetError(
            f"{present.head} leads run {present.run_id} by the same {join}, and is alive: one node of a job leads (is "
            "--node-rank missing here?), and each job has an --rdzv-id or a port of its own"
        )


def open_lead(join: Path) -> Lead:
    """Raises FleetError."""
    try:
        try_writing(join)
        return Lead(join)
    except OSError as error:
        raise _unwritable(join, error) from None


def _unwritable(join: Path, error: OSError) -> FleetError:
    return FleetError(
        f"the other nodes could not find this one: cannot write {join} ({error.strerror or error}): {_ELSEWHERE}"
    )


def _squatted(what: str) -> FleetError:
    return FleetError(f"the other nodes could not find this one: {what}: {_ELSEWHERE}")


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


def _where_introduced(fleet: Fleet, listen: Listen) -> Listen:
    """Where the other nodes come to be introduced: by whatever each of them was told, and this one was told as well."""
    if listen.is_here_alone:
        return listen
    return msgspec.structs.replace(join_both(find_listen(fleet.head), listen), is_certain=False)


def fleet_file(fleet: Fleet, plan: Plan, config: Config, join: Path, is_head: bool) -> FleetFile:
    """This node's part, for its supervisor. Raises FleetError."""
    if config.fleet.join == MUNGE and not fleet.head:
        raise FleetError(f"--guard-join={MUNGE} needs the head's name: --rdzv-endpoint=HOST or --master-addr=HOST")
    local = getattr(plan.config, "local_addr", None)
    is_reachable = bool(fleet.endpoint) and not is_loopback(fleet.endpoint) and is_own(fleet.endpoint)
    named = (fleet.endpoint if is_reachable else fleet.loopback) if is_head else ""
    address = named or find_address(local)
    listen = find_listen(address)
    names = names_of(fleet.endpoint) if fleet.is_by_host else []
    return FleetFile(
        key=fleet.key,
        meet=(fleet.head, config.fleet.port or fleet.meet_port) if config.fleet.join == MUNGE else None,
        munge_socket=config.fleet.munge_socket,
        is_head=is_head,
        slot=fleet.slot if fleet.slot >= 0 or not is_head else 0,
        switches=list(fleet.switches),
        join_file=str(join),
        names=[*names, *(own_names() if is_head and fleet.is_by_host else ())],
        awaited=fleet.awaited,
        plan=fleet.plan,
        address=address,
        listen=listen if is_head else EVERYWHERE,
        meet_listen=_where_introduced(fleet, listen) if is_head else EVERYWHERE,
        check_listen=listen if listen.is_certain else EVERYWHERE,
        port=0 if config.fleet.join == MUNGE else config.fleet.port,
        term_s=config.fleet.term_s,
        role=str(getattr(plan.config, "role", "")),
        work=hashlib.sha256(json.dumps(plan.arguments).encode()).hexdigest()[:16],
    )
