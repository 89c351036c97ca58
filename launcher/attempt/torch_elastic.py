"""torchrun's own parts as the installed torch has them: the only module here that knows torch's insides.

From torch come the parser, what `torch.distributed.run.run` makes of the arguments, each rank's environment and
arguments (`LocalElasticAgent._start_workers`) and the process layer below it (logs, redirects, tee, filters, NUMA
binding, error files). Not from torch: rendezvous, monitoring, stopping and restarting. Keyword arguments are matched
against the installed torch's signatures, so that what newer versions add comes along.

Nothing here runs before torch has been imported, which takes seconds: import this module late.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import torch.distributed.run as torchrun
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import Worker, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from guardrun.hooks.startup.spawned_functions import OUTLETS
from guardrun.launcher.attempt.stderr_capture import Outlets
from guardrun.launcher.base.own_address import find_address, loopback_trouble
from guardrun.supervisor.wire.control_messages import Place

LOCAL_BACKENDS = ("static", "c10d")
"""Rendezvous backends that a single node does not need: a store of ours does."""

DEFAULT_PORT = 29500
"""What torchrun takes where --master-port is not given (torch/distributed/run.py, `run`)."""


class Failed(NamedTuple):
    """A rank that failed."""

    local_rank: int
    pid: int
    exitcode: int
    error_file: str


Failures = dict[int, Failed]
"""Per global rank."""


class Spawn(Protocol):
    """Who has processes that can be ranks."""

    def claim(self, command: list[str], environment: dict[str, str], stdout: Any, stderr: Any) -> Any:
        """What Popen would be; None: there is none. stdout, stderr: files, None: inherited."""

    def find_refused(self) -> Collection[int]:
        """Pids of those that were claimed, and are no ranks after all: they have been ended."""


make_parser: Callable[[], Any] = torchrun.get_args_parser


@dataclass(frozen=True)
class Plan:
    """What torchrun would launch."""

    config: Any
    """LaunchConfig"""
    entrypoint: str | Callable[..., Any]
    arguments: list[str]
    is_port_chosen: bool
    """The user named a master port."""

    @property
    def world_size(self) -> int:
        """Ranks on this node."""
        return int(self.config.nproc_per_node)

    @property
    def are_ranks_functions(self) -> bool:
        """--run-path: multiprocessing's children, rather than programs."""
        return not isinstance(self.entrypoint, str)

    @property
    def name(self) -> str:
        """What runs, as torchrun's report of a failure calls it (torch/distributed/launcher/api.py)."""
        if not isinstance(self.entrypoint, str):
            return self.entrypoint.__name__
        if self.entrypoint != sys.executable:
            return self.entrypoint
        return next((argument for argument in self.arguments if not argument.startswith("-")), "")

    @property
    def is_first_node(self) -> bool:
        """It is the one that --master-addr or --rdzv-endpoint names, as far as the flags tell."""
        return self.config.rdzv_backend == "static" and int(self.config.rdzv_configs.get("rank", -1)) == 0

    @property
    def named_port(self) -> int | None:
        """The master port that the ranks' store is to be served on, where the user named one."""
        if self.config.rdzv_backend != "static" or not self.is_port_chosen:
            return None
        return int(parse_rendezvous_endpoint(self.config.rdzv_endpoint.strip(), default_port=DEFAULT_PORT)[1])

    @property
    def command(self) -> list[str]:
        """What each rank runs."""
        name = self.entrypoint if isinstance(self.entrypoint, str) else "--run-path"
        return [name, *self.arguments]


def needs_torchrun_agent(args: Any) -> bool:
    """Say whether a command line wants a rendezvous that only torchrun's agent knows."""
    return not args.standalone and args.rdzv_backend not in LOCAL_BACKENDS


def parse_nodes(args: Any) -> tuple[int, int]:
    """--nnodes: the fewest nodes, and the most. Raises ValueError or RuntimeError where it is none."""
    least, most = torchrun.parse_min_max_nnodes(args.nnodes)
    return int(least), int(most)


def plan_launch(args: Any) -> Plan:
    """Let torch's `run` do everything up to the point where its agent would start.

    Warns about OMP_NUM_THREADS as torchrun does, and sets it in this process's environment.
    Raises what torchrun raises for values that the parser cannot check: ValueError, AssertionError, OSError.
    """
    caught: list[tuple[Any, Any]] = []
    arguments: list[Any] = []

    def catch(config: Any, entrypoint: Any) -> Callable[..., None]:
        caught.append((config, entrypoint))
        return lambda *rest: arguments.extend(rest)

    is_port_chosen = args.master_port is not None or bool(args.rdzv_endpoint)
    launch = torchrun.elastic_launch
    torchrun.elastic_launch = catch
    try:
        torchrun.run(args)
    finally:
        torchrun.elastic_launch = launch
    [(config, entrypoint)] = caught
    _check_event_handler(getattr(config, "event_log_handler", "null"))
    return Plan(config, entrypoint, arguments, is_port_chosen)


def check_launch(args: Any) -> int:
    """Have torch check a command line that its own agent is to run; the number of ranks on this node.

    Raises what plan_launch raises.
    """
    plan = plan_launch(copy.copy(args))
    if args.log_dir is None:
        with suppress(OSError):
            os.rmdir(plan.config.logs_specs.root_log_dir)  # made by looking; the agent makes its own
    _check_backend(plan.config.rdzv_backend)
    return plan.world_size


def _check_event_handler(name: str) -> None:
    """Raise ValueError where torch has none of that name: events are written when training is over."""
    from torch.distributed.elastic.events import handlers

    known = getattr(handlers, "_log_handlers", None)
    if known is not None and name not in known:
        raise ValueError(f"--event-log-handler: torch has no handler {name!r}, but {', '.join(sorted(known))}")


def _check_backend(name: str) -> None:
    """Raise ValueError where nobody has registered a rendezvous of that name, in the words of torchrun's agent."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    known = getattr(rendezvous_handler_registry, "_registry", None)
    if known is not None and name not in known:
        raise ValueError(f"The rendezvous backend {name!r} is not registered. Did you forget to call `register`?")


_ELSEWHERE = object()
"""In the place of a store that another node serves: the agent only asks whether there is one."""


class _Rendezvous:
    """What LocalElasticAgent asks of a rendezvous handler when it starts workers."""

    use_agent_store = True

    def __init__(self, run_id: str, backend: str) -> None:
        self._run_id, self._backend = run_id, backend

    def get_run_id(self) -> str:
        return self._run_id

    def get_backend(self) -> str:
        return self._backend


class _Logs(LogsSpecs):  # type: ignore[misc]
    """The user's, with other outlets for what would be inherited."""

    def __init__(self, specs: Any) -> None:
        self._specs = specs
        self.make_outlets: Callable[[list[int]], Outlets] | None = None
        self.are_told = False
        """Ranks open their outlets themselves (functions, whose hooks do), rather than being started with them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._specs, name)

    @property
    def root_log_dir(self) -> Any:
        return self._specs.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        logs = self._specs.reify(envs)
        if self.make_outlets is not None:
            outlets = self.make_outlets([rank for rank, path in logs.stderrs.items() if not path])
            stdouts = {rank: path for rank, path in outlets.stdout.items() if not logs.stdouts.get(rank)}
            if self.are_told:
                for rank, path in outlets.stderr.items():
                    also = f" 1:{stdouts[rank]}" if rank in stdouts else ""
                    envs[rank][OUTLETS] = f"2:{path}{also}"
            else:
                logs.stderrs.update(outlets.stderr)
                logs.stdouts.update(stdouts)
        return logs


class Elastic:
    """Starts attempts through torch's process layer, each with a store of its own."""

    def __init__(self, plan: Plan, max_restarts: int, run: Callable[[Callable[[], Any]], Any]) -> None:
        """run: makes calls that may wait for a network, so that a signal ends the waiting."""
        self.plan, self._run = plan, run
        config = plan.config
        if getattr(config, "signals_to_handle", None):  # as launch_agent does; ranks inherit it
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
        self._spec = WorkerSpec(**self._spec_arguments(max_restarts))
        self._logs = _Logs(config.logs_specs)
        known = inspect.signature(LocalElasticAgent).parameters
        wanted = {
            "spec": self._spec,
            "logs_specs": self._logs,
            "start_method": config.start_method,
            "log_line_prefix_template": config.log_line_prefix_template,
        }
        self._agent = LocalElasticAgent(**{name: value for name, value in wanted.items() if name in known})

    def start(
        self,
        attempt: int,
        arguments: list[str],
        place: Place | None = None,
        on_serving: Callable[[str, int], object] = lambda address, port: None,
        make_outlets: Callable[[list[int]], Outlets] | None = None,
        *,
        spawn: Spawn | None = None,
    ) -> tuple[Any, Any]:
        """Start the ranks: returns the store's server, to be kept while they live, and torch's PContext.

        place: this node's part in a job of several nodes; where the store is served elsewhere, None is returned for it.
        on_serving: called with address and port as soon as it is served here. make_outlets: where ranks' output goes
        that torch would have them inherit, given these local ranks. spawn: asked for each rank's process.
        Must be called from the main thread: ranks die with the thread that started them (PDEATHSIG).
        Raises what the process layer raises, OSError mostly; some ranks may then be running.
        """
        agent, count = self._agent, self.plan.world_size
        place = place or Place(group_rank=0, nodes=1, first_rank=0, world_size=count)
        address, port, store = place.address, place.port, None
        if not address:
            address, store = self._run(functools.partial(self._make_store, place))
            port = store.port
            on_serving(address, port)
        self._spec.args = tuple(arguments)
        agent._remaining_restarts = self._spec.max_restarts - attempt
        group = agent.get_worker_group()
        group.workers = [
            Worker(
                local_rank=local,
                global_rank=place.first_rank + local,
                role_rank=(place.role_rank if place.role_size else place.first_rank) + local,
                world_size=place.world_size,
                role_world_size=place.role_size or place.world_size,
            )
            for local in range(count)
        ]
        group.store, group.group_rank, group.group_world_size = store or _ELSEWHERE, place.group_rank, place.nodes
        group.master_addr, group.master_port = address, port
        agent._pcontext = None
        self._logs.make_outlets, self._logs.are_told = make_outlets, self.plan.are_ranks_functions
        self._stop_helpers()
        try:
            with _spawned_by(spawn):
                agent._start_workers(group)
        finally:
            # The caller's is the only reference: a server still there when the next attempt asks for the same port
            # would be shared (multi_tenant), its old keys too.
            group.store = None
        for worker, pid in zip(group.workers, agent._pcontext.pids().values(), strict=True):
            worker.id = str(pid)
        return store, agent._pcontext

    def _stop_helpers(self) -> None:
        """End what is kept for an attempt besides its ranks, where asked for: file timer, health check, fork server."""
        # A fork server's children would have the environment that it was started with.
        server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
        if server is not None:
            with suppress(Exception):
                server._stop()
        for name in ("_worker_watchdog", "_health_check_server"):
            helper = getattr(self._agent, name, None)
            if helper is not None:
                with suppress(Exception):
                    helper.stop()
                setattr(self._agent, name, None)

    def end(self, failures: Failures | None) -> None:
        """Of the run: end the helpers, and write torchrun's events of its end, one a rank, and the agent's.

        failures: of the last attempt, those of the ranks that were stopped among them; None where a signal ended it.
        """
        self._stop_helpers()
        handler = getattr(self.plan.config, "event_log_handler", "null")
        if handler == "null":
            return
        from torch.distributed.elastic import events
        from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

        agent = self._agent
        if failures is None:
            events.record(agent.get_event_failed(), handler)
            return
        failed = _process_failures(failures)
        state = WorkerState.FAILED if failed else WorkerState.SUCCEEDED
        returned = {} if failed else {worker.global_rank: None for worker in agent.get_worker_group().workers}
        agent._record_worker_events(RunResult(state=state, return_values=returned, failures=failed))
        events.record(agent.get_event_succeeded(), handler)

    def _spec_arguments(self, max_restarts: int) -> dict[str, Any]:
        config = self.plan.config
        shared = {
            field.name: getattr(config, field.name)
            for field in fields(WorkerSpec)
            if field.init and hasattr(config, field.name)
        }
        return shared | {
            "local_world_size": self.plan.world_size,
            "entrypoint": self.plan.entrypoint,
            "args": tuple(self.plan.arguments),
            "rdzv_handler": _Rendezvous(config.run_id, config.rdzv_backend or "static"),
            "max_restarts": max_restarts,
        }

    def _make_store(self, place: Place) -> tuple[str, Any]:
        """MASTER_ADDR as torchrun gives it, and a server for it: on a port of its own unless the user named one."""
        config = self.plan.config
        if place.nodes > 1 and not (self.plan.is_port_chosen and self.plan.is_first_node):
            return find_address(config.local_addr), _serve(0)
        if config.rdzv_backend != "static":
            return self._own_address(), _serve(0)
        address, port = parse_rendezvous_endpoint(config.rdzv_endpoint.strip(), default_port=DEFAULT_PORT)
        return address, _serve(port if self.plan.is_port_chosen else 0)

    def _own_address(self) -> str:
        """This host as torchrun names it; localhost where no rank could resolve that."""
        name = self.plan.config.local_addr or socket.getfqdn()
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            return "localhost"
        return str(name)


@contextmanager
def _spawned_by(spawn: Spawn | None) -> Iterator[None]:
    """Have torch's process layer ask for each process meanwhile; None as the answer: it executes one, as ever."""
    if spawn is None:
        yield
        return
    original = SubprocessHandler._popen
    claimed: list[tuple[Any, Any, Any]] = []

    def _popen(self: Any, args: Any, env: Any) -> Any:
        process = spawn.claim(list(args), env, self._stdout, self._stderr)
        if process is None:
            return original(self, args, env)
        claimed.append((self, args, env))
        return process

    SubprocessHandler._popen = _popen
    try:
        yield
        refused = spawn.find_refused()
        for handler, args, env in claimed:
            if handler.proc.pid in refused:
                handler.proc = original(handler, args, env)
    finally:
        SubprocessHandler._popen = original


def _serve(port: int) -> Any:
    """Raises OSError; TCPStore itself would try to reach its own server for five minutes."""
    if trouble := loopback_trouble():
        raise OSError(trouble)
    return TCPStore(host_name="localhost", port=port, is_master=True, wait_for_workers=False, multi_tenant=True)


def close_context(context: Any, is_everything_dead: bool) -> None:
    """Let tee's readers come to the end of the ranks' output, and close files. Call when the ranks are dead."""
    if is_everything_dead:
        with suppress(Exception):
            context.close()
    for log in getattr(context, "_tail_logs", ()):
        if not log.stopped():
            log.stop()
    for handler in getattr(context, "subprocess_handlers", {}).values():
        for name in ("_stdout", "_stderr"):
            file = getattr(handler, name, None)
            if file is not None:
                file.close()


def describe_failure(name: str, failures: Failures) -> str:
    """torchrun's own report of failed ranks, the first of them as the root cause, as the error that it ends with."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    error = ChildFailedError(name=name, failures=_process_failures(failures))
    return f"{ChildFailedError.__module__}.{ChildFailedError.__qualname__}: {error}"


def _process_failures(failures: Failures) -> dict[int, Any]:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    return {
        rank: ProcessFailure(
            local_rank=failed.local_rank, pid=failed.pid, exitcode=failed.exitcode, error_file=failed.error_file
        )
        for rank, failed in failures.items()
    }


def pass_error_on(error_file: str, exitcode: int) -> None:
    """Leave a rank's error file where whoever started guardrun wants it (TORCHELASTIC_ERROR_FILE), as torchrun does."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    if os.environ.get("TORCHELASTIC_ERROR_FILE") and os.path.isfile(error_file):
        with suppress(Exception):
            get_error_handler().dump_error_file(error_file, exitcode)


def run_plain(args: Any) -> None:
    """torchrun itself. Raises what torchrun raises."""
    from torch.distributed.elastic.multiprocessing.errors import record

    record(torchrun.run)(args)


def tell_failures(tell: Callable[[dict[int, Any]], object]) -> None:
    """Have torchrun's own agent, where it is to run in this process, tell each attempt's failures as it sees them.

    tell: given a ProcessFailure per global rank; must not raise. Nothing is told where the installed torch's agent is
    another than LocalElasticAgent of torch 2.6 to 2.13.
    """
    monitor = getattr(LocalElasticAgent, "_monitor_workers", None)
    if monitor is None:
        return

    @functools.wraps(monitor)
    def _monitor_workers(self: Any, *args: Any, **options: Any) -> Any:
        result = monitor(self, *args, **options)
        if failures := getattr(result, "failures", None):
            tell(failures)
        return result

    LocalElasticAgent._monitor_workers = _monitor_workers
