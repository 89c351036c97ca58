"""Starting an attempt: boards, the environment of its ranks, the arguments that make a script resume."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

import guardrun
from guardrun.hooks.wire.board import board_name, create_board
from guardrun.hooks.wire.ledger_page import consumed_name
from guardrun.hooks.wire.variables import RESUME_FROM, RESUME_STEP
from guardrun.launcher.attempt.attempt import LocalAttempt, watch_context
from guardrun.launcher.attempt.stderr_capture import Outlets, Relay, find_way
from guardrun.launcher.attempt.torch_elastic import Elastic
from guardrun.launcher.base.processes import TOKEN_VARIABLE
from guardrun.launcher.base.rank_environment import DEBUG, Subject, rank_defaults
from guardrun.launcher.base.signals import Interrupted, Signals, spared_signals
from guardrun.launcher.base.socket_folder import ensure_socket_folder
from guardrun.launcher.base.terminal_lines import Log, print_line
from guardrun.launcher.creation.run_creation import OpenRun
from guardrun.supervisor.config import Config, fill_placeholders
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.wire.control_messages import Start

if TYPE_CHECKING:
    from guardrun.launcher.warm.warm_ranks import WarmRanks

# Distributed debug --------------------------------------------------------------------------------------------------
# TORCH_DISTRIBUTED_DEBUG=DETAIL: tried out before ranks are given it.
#
# With it torch compares the collectives of all ranks as they are issued, and names the first that differ. But some
# versions of torch do not survive it: with 2.13.0, DistributedDataParallel's constructor ends in a segmentation fault,
# with one rank and without guardrun too. A fork of this process, which has torch imported, takes a tenth of a second to
# find out.


LIMIT_S = 5.0
POLL_S = 0.01


def survives_detail() -> bool:
    """Whether DDP can be made, and can train a step, under DETAIL with this torch (gloo, one rank)."""
    pid = os.fork()
    if pid == 0:
        _try_out()
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(POLL_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _try_out() -> None:
    """In the child: leave no trace but the exit status."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.environ[DEBUG] = "DETAIL"

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.set_debug_level_from_env()
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        model(torch.zeros(1, 1)).sum().backward()
        dist.barrier()
        os._exit(0)
    finally:
        os._exit(1)


# Resume arguments ---------------------------------------------------------------------------------------------------
# What makes a script resume: arguments, and variables of the environment that ranks are started in.
#
# Without torch, which takes seconds to import.


def resume_arguments(templates: list[str], checkpoint: Checkpoint | None) -> list[str]:
    """What is appended to the script's arguments."""
    if checkpoint is None:
        return []
    return [_fill(template, checkpoint) for template in templates]


def resume_environment(templates: Mapping[str, str], checkpoint: Checkpoint | None) -> dict[str, str | None]:
    """What tells the script, in its environment, to resume; None takes a variable away."""
    if checkpoint is None:
        return {RESUME_FROM: None, RESUME_STEP: None}
    wanted: dict[str, str | None] = {name: _fill(template, checkpoint) for name, template in templates.items()}
    return wanted | {RESUME_FROM: checkpoint.path, RESUME_STEP: str(checkpoint.step)}


def _fill(template: str, checkpoint: Checkpoint) -> str:
    return fill_placeholders(template, checkpoint.path, checkpoint.step, os.path.dirname(checkpoint.path))


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change this process's environment, which torch's process layer hands on to the ranks, for a while."""
    before = {name: os.environ.get(name) for name in changes}
    _change_environment(changes)
    try:
        yield
    finally:
        _change_environment(before)


def _change_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# Attempt start ------------------------------------------------------------------------------------------------------


INJECT = Path(guardrun.__file__).parent / "hooks" / "inject"
"""Holds sitecustomize.py and nothing else."""


class StartError(Exception):
    """The ranks could not be started. Some may be running."""


def hook_environment(
    run: OpenRun,
    attempt: int | None,
    environ: Mapping[str, str],
    first_attempt: int = 0,
    *,
    held: Sequence[str] = (),
    skips: str = "",
    consumed: str = "",
    nccl_timeout: str | None = None,
) -> dict[str, str | None]:
    """What brings the hooks into a rank, and marks it.

    attempt: None where torchrun's agent numbers them; its first one is first_attempt here. held: checkpoints that are
    not to be written over before one has been opened. skips: the file beside the boards that says which batches are
    left out; empty: none are. consumed: the one that says what was handed out before the checkpoint. nccl_timeout: what
    guardrun sets NCCL_TIMEOUT to; None where the user has set it, or nobody does.
    """
    before = environ.get("PYTHONPATH")
    hooks = {
        "sockets": run.file.socket_dir,
        "attempt": attempt,
        "first_attempt": first_attempt,
        "launcher_pid": run.file.launcher_pid,
        "token": run.file.token,
        "pythonpath": before,
        "gc": run.file.config.get("gc", {}),
        "check_every": run.file.config.get("guards", {}).get("check_every", 0),
        "device_timing": bool(run.file.config.get("slowdown", {}).get("device_timing")),
        "numeric": str(run.file.config.get("guards", {}).get("numeric", "watch")),
        "detect": str(run.file.config.get("guards", {}).get("detect", "metrics")),
        "skip_sigmas": run.file.config.get("guards", {}).get("skip_sigmas", 0),
        "memory_window_s": run.file.config.get("leaks", {}).get("memory_window_s"),
        "eval": run.file.config.get("live", {}).get("eval") is True,
        "jit": _saves_in_time(run),
        "snapshots": _snapshots(run),
        **({"warm": True} if run.file.config.get("launcher", {}).get("warm") else {}),
        "notices": spared_signals(run.file.config.get("preemption", {}), environ),
        **({"held": list(held)} if held else {}),
        **({"skips": skips} if skips else {}),
        **({"consumed": consumed} if consumed else {}),
        **({"nccl_timeout": nccl_timeout} if nccl_timeout else {}),
    }
    return {
        "GUARDRUN_HOOKS": json.dumps(hooks),
        "PYTHONPATH": os.pathsep.join([str(INJECT), before] if before else [str(INJECT)]),
        TOKEN_VARIABLE: run.file.token,
        "GUARDRUN_RUN_ID": run.file.run_id,
    }


def _saves_in_time(run: OpenRun) -> bool:
    """Whether what a script gives to save_with() may ever be called: else it costs nothing, either."""
    return _acts(run) and run.file.config.get("checkpoint", {}).get("jit_s", 0.0) > 0


def _snapshots(run: OpenRun) -> dict[str, object]:
    """How often what a script gives to snapshot() is copied, and where it is written to; empty: it never is."""
    table = run.file.config.get("checkpoint", {})
    steps = table.get("snapshot_steps", 0)
    if not _acts(run) or steps <= 0 or table.get("snapshot_gb", 0.0) <= 0:
        return {}
    return {"steps": steps, "dir": run.file.checkpoint_dir or run.file.cwd}


def _acts(run: OpenRun) -> bool:
    """Whether guardrun takes care of what ranks hold when they are ended."""
    tables = {name: run.file.config.get(name, {}) for name in ("policy", "launcher")}
    return tables["policy"].get("act") is True and tables["launcher"].get("agent") == "guardrun"


def run_environment(
    run: OpenRun,
    config: Config,
    attempt: int | None,
    checkpoint: Checkpoint | None,
    first_attempt: int = 0,
    *,
    held: Sequence[str] = (),
    skips: str = "",
    consumed: str = "",
) -> dict[str, str | None]:
    """All that guardrun adds to this process's environment for an attempt's ranks (None: takes away)."""
    environ = os.environ
    major, minor = torch.__version__.split(".")[:2]
    subject = Subject(
        config.hang.hard_timeout_s,
        run.path,
        attempt,
        is_torchrun_agent=attempt is None,
        torch=(int(major), int(minor)),
    )
    defaults = rank_defaults(subject, environ)
    hooks = hook_environment(
        run,
        attempt,
        environ,
        first_attempt,
        held=held,
        skips=skips,
        consumed=consumed,
        nccl_timeout=defaults.get("NCCL_TIMEOUT"),
    )
    return {**defaults, **resume_environment(config.checkpoint.resume_env, checkpoint), **hooks}


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _size_of_stderr() -> int:
    """Bytes, where this process's stderr is a regular file; else -1."""
    try:
        status = os.fstat(2)
    except OSError:  # nohup and services may have closed it
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _detail() -> dict[str, str | None]:
    """DETAIL for one attempt, where this torch survives it; either way it is said."""
    if not survives_detail():
        print_line(
            f"without {DEBUG}=DETAIL, which would compare collectives: torch {torch.__version__}'s DDP crashes under it"
        )
        return {}
    print_line(f"this attempt alone with {DEBUG}=DETAIL: torch compares the collectives of all ranks")
    return {DEBUG: "DETAIL"}


@dataclass
class Starter:
    """Starts attempts in this process."""

    elastic: Elastic
    run: OpenRun
    config: Config
    signals: Signals
    log: Log
    warm: WarmRanks | None = None

    @property
    def world_size(self) -> int:
        """Ranks on this node, as torchrun's flags ask for them."""
        return self.elastic.plan.world_size

    def start(self, order: Start, on_serving: Callable[[str, int], object]) -> LocalAttempt:
        """Start an attempt's ranks. on_serving: as in Elastic.start. Raises StartError."""
        number, checkpoint, place = order.attempt, order.checkpoint, order.place
        if number and not _has_working_folder():
            print_line(
                f"the working folder {self.run.file.cwd} has been removed: paths relative to it lead nowhere any more"
            )
        first_rank = place.first_rank if place is not None else 0
        self._make_boards(number, first_rank)
        plan = self.elastic.plan
        arguments = plan.arguments + resume_arguments(self.config.checkpoint.resume_args, checkpoint)
        held = order.siblings if order.is_guarded else ()
        skips = self._write_skips(order)
        consumed = self._find_consumed(number) if checkpoint is not None else ""
        changes = run_environment(self.run, self.config, number, checkpoint, held=held, skips=skips, consumed=consumed)
        if place is not None and place.run_id:
            changes["GUARDRUN_RUN_ID"] = place.run_id
        if order.is_detailed and DEBUG in changes:
            changes |= _detail()
        stderr_from = _size_of_stderr()
        relay: Relay | None = None

        def make_outlets(ranks: list[int]) -> Outlets:
            nonlocal relay
            relay = self._make_relay(ranks)
            return relay.outlets() if relay is not None else Outlets({}, {})

        self.signals.replace_torch_handler()
        if order.is_cold and self.warm is not None:
            self.warm.give_up("an attempt of ranks that were forked has fallen, which may be why")
        spawn = self.warm if self.warm is not None and self.warm.begin() else None
        try:
            with environment(changes):
                store, context = self.elastic.start(number, arguments, place, on_serving, make_outlets, spawn=spawn)
                if self.warm is not None:
                    self.warm.note_environment(os.environ, self.config.checkpoint.resume_env)
        except Exception as error:
            if relay is not None:
                relay.close()
            if (signum := getattr(error, "sigval", None)) is not None:  # torch's handler came first
                self.signals.add(signum)
            is_own_words = isinstance(error, Interrupted) or type(error) is OSError
            raise StartError(str(error) if is_own_words else f"{type(error).__name__}: {error}") from error
        finally:
            self.signals.handle_again()
        if relay is not None and not plan.are_ranks_functions:  # these open theirs when torch calls them
            relay.begin()
        return watch_context(
            number,
            context,
            store,
            self.run.file.node,
            first_rank,
            name=plan.name,
            stderr_from=stderr_from,
            relay=relay,
            forked=spawn.forked() if spawn is not None else (),
        )

    def _write_skips(self, order: Start) -> str:
        """Leave for the ranks which batches they are to leave out; the file's name, empty where there are none.

        Ranks of a node that cannot write it keep all ranks from it: they leave out a batch together.
        """
        if not order.skips:
            return ""
        name = f"skips-{order.attempt}.json"
        try:
            (Path(self.run.file.socket_dir) / name).write_bytes(msgspec.json.encode(order.skips))
        except OSError as error:
            self.log.write("skips_not_written", error=str(error))
            return ""
        return name

    def _find_consumed(self, attempt: int) -> str:
        """The supervisor's account of what was handed out before the checkpoint; empty: there is none."""
        name = consumed_name(attempt)
        return name if (Path(self.run.file.socket_dir) / name).exists() else ""

    def _make_relay(self, ranks: list[int]) -> Relay | None:
        """None where ranks are to inherit this process's stderr."""
        way = find_way() if ranks and self.config.launcher.keep_stderr else None
        if way is None:
            return None
        try:
            return Relay(ranks, way, self.log.write)
        except OSError as error:
            self.log.write("relay_not_started", error=str(error))
            return None

    def _make_boards(self, number: int, first_rank: int) -> None:
        """A rank without a board still trains, watched from outside: no room for one is no error."""
        folder = Path(self.run.file.socket_dir)
        with suppress(OSError):
            ensure_socket_folder(folder)
        for local in range(self.world_size):
            with suppress(OSError):
                create_board(str(folder / board_name(number, first_rank + local)))
