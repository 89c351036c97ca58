"""One command line, on its way to a run. Imports torch: `main` is there before."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guardrun.launcher.attempt import torch_elastic
from guardrun.launcher.attempt.attempt import LocalAttempt
from guardrun.launcher.attempt.attempt_start import Starter, environment, run_environment
from guardrun.launcher.attempt.attempt_stop import become_subreaper
from guardrun.launcher.base.processes import read_children
from guardrun.launcher.base.signals import Signals, choose_notices, parse_signals
from guardrun.launcher.base.socket_folder import (
    NoSocketFolderError,
    Occupied,
    make_socket_folder,
    remove_socket_folder,
    sweep_left_behind,
)
from guardrun.launcher.base.terminal_lines import USAGE_ERROR, Log, RefusedError, print_line
from guardrun.launcher.control.control_channel import Control
from guardrun.launcher.control.supervision import Supervision
from guardrun.launcher.control.supervisor_process import Daemon
from guardrun.launcher.creation.run_creation import (
    OpenRun,
    RunIdError,
    Wish,
    choose_directory,
    node_name,
    open_run,
)
from guardrun.launcher.run.command_line import Flags, parse_flags
from guardrun.launcher.run.job_nodes import (
    NODES_FOLDER,
    Fleet,
    FleetError,
    Lead,
    check_lead,
    fleet_file,
    join_path,
    name_beside_head,
    open_lead,
    patience,
    plan_fleet,
)
from guardrun.launcher.run.launcher_loop import Loop, Starts
from guardrun.launcher.run.preflight import Preflight
from guardrun.launcher.run.start_failure import Asked, begin, refuse_quarantined, tell_waiting
from guardrun.supervisor.base.node_state import state_folder
from guardrun.supervisor.base.own_files import make_folders
from guardrun.supervisor.config import Config, ConfigError, load_config
from guardrun.supervisor.quarantine.record_places import absolute_folders
from guardrun.supervisor.rundir.run_directory import FleetFile, write_run_file

if TYPE_CHECKING:
    from guardrun.launcher.attempt.torchrun_agent_child import Tell
    from guardrun.launcher.warm.warm_ranks import WarmRanks

DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0
"""torchrun's."""


class UsageError(Exception):
    """The user's mistake: said, and exit status 2."""


class Launch:
    """A command line, and the supervisor that has been started for it."""

    def __init__(
        self,
        arguments: list[str],
        daemon: Daemon | None,
        supervisor_command: Sequence[str],
        preflight: Preflight | None = None,
    ) -> None:
        self._arguments = arguments
        self._daemon = daemon
        self._preflight = preflight
        self._supervisor_command = supervisor_command
        self._cwd = Path.cwd()
        self._lead: Lead | None = None
        """Held until this process ends."""
        self._earlier = [pid for pid in read_children(os.getpid()) if daemon is None or pid != daemon.pid]
        """Children this process was started with, as a shell leaves them that ends in exec: not ours to end."""

    def go(self) -> int:
        """Run to the end; answers guardrun's exit status.

        Raises UsageError for the user's mistake, RefusedError where the pre-flight or a quarantine forbids the run.
        Nodes that wait for this one to lead them are given the reason first.
        """
        flags = parse_flags(self._arguments, torch_elastic.make_parser)
        if flags.is_off:
            torch_elastic.run_plain(flags.torch)
            return 0
        config = self._load_config(flags)
        directory = choose_directory(flags.dir, os.environ, self._cwd)
        asked = Asked(flags.torch, flags.is_node_rank_given, config, directory, self._cwd)
        try:
            check_script(flags.torch)
            refuse_quarantined(config, flags.is_quarantine_ignored, os.environ, self._cwd)
            signals = Signals()
            signals.handle(choose_notices(config, "", os.environ))
            try:
                return self._run(flags, asked, signals)
            finally:
                signals.close()
        except UsageError as error:
            tell_waiting(asked, self._lead, str(error), USAGE_ERROR)
            raise
        except RefusedError as refusal:
            tell_waiting(asked, self._lead, str(refusal), refusal.exit_status)
            raise

    def _load_config(self, flags: Flags) -> Config:
        try:
            config = load_config(flags.config, flags.for_config(), os.environ, self._cwd)
        except ConfigError as error:
            raise UsageError(f"\n{'guardrun: error: '}".join(error.problems)) from None
        for warning in config.warnings:
            print_line(f"warning: {warning}")
        return config

    def _run(self, flags: Flags, asked: Asked, signals: Signals) -> int:
        args, config = flags.torch, asked.config
        try:
            is_agent = config.launcher.agent == "torchrun" or torch_elastic.needs_torchrun_agent(args)
            given = (flags.is_node_rank_given, flags.is_master_given)
            fleet = None if is_agent else plan_fleet(args, config, os.environ, *given)
            if not is_agent or config.origins["restart.max_restarts"] != "default":
                args.max_restarts = config.restart.max_restarts
            plan = None if is_agent else torch_elastic.plan_launch(args)
            world_size = plan.world_size if plan else torch_elastic.check_launch(args)
        except (FleetError, ValueError, AssertionError, RuntimeError, OSError) as error:
            raise UsageError(str(error)) from error
        if world_size < 1:
            raise UsageError(f"--nproc-per-node={args.nproc_per_node}: there must be one rank at least")
        wish = Wish(
            config=config,
            directory=asked.directory,
            run_id=flags.run_id,
            command=["guardrun", *self._arguments],
            script=plan.command if plan else [args.training_script, *args.training_script_args],
            name=script_name(args),
            cwd=self._cwd,
            is_torchrun_agent=is_agent,
        )
        if fleet is not None:
            begin(asked, fleet)
        self._check_fitness(wish, world_size, plan, signals)
        part = None
        if fleet is not None and plan is not None:
            try:
                wish, part = self._take_part(wish, fleet, plan)
            except FleetError as error:
                raise UsageError(str(error)) from None
        try:
            with suppress(OSError):
                make_folders(asked.directory)
            sockets = make_socket_folder(os.environ, [asked.directory, Path(self._cwd)])
        except NoSocketFolderError as error:
            return self._run_plain(str(error), part)
        try:
            run = open_run(wish, sockets, os.environ)
        except RunIdError as error:
            raise UsageError(str(error)) from None
        except OSError as error:
            return self._run_plain(f"no folder to keep a run in: {error}", part)
        else:
            if self._preflight is not None:
                self._preflight.record(run.path)
            if part is not None and plan is not None:
                run.file.fleet = part
                run.file.settings = patience(plan, config, run.file.settings)
                write_run_file(run.path, run.file)
            if plan is None:
                return self._run_agent(run, config, args, world_size, signals)
            return self._run_ranks(run, config, plan, signals)
        finally:
            remove_socket_folder(sockets, is_just_made=True)

    def _check_fitness(self, wish: Wish, world_size: int, plan: torch_elastic.Plan | None, signals: Signals) -> None:
        """Raise RefusedError where the pre-flight found what no run can get past."""
        config, preflight = wish.config, self._preflight
        if preflight is None or config.preflight.level == "off":
            self._end_preflight()
            if config.preflight.level == "full":
                print_line("warning: the pre-flight could not be started; going on without")
            return
        # Some milliseconds, for those who do not turn it off.
        from guardrun.supervisor.preflight.base.remark import Subject

        folders = absolute_folders(config.node.state_dir, config.node.shared_dir, wish.cwd)
        state = state_folder(folders.state_dir, os.environ)
        subject = Subject(
            node=node_name(os.environ),
            cwd=str(wish.cwd),
            environ={},
            ranks=world_size,
            run_folder=str(wish.directory),
            checkpoint_dir=str(wish.cwd / config.checkpoint.dir) if config.checkpoint.dir else "",
            checkpoint_format=config.checkpoint.format,
            state_folder=str(state or ""),
        )
        preflight.check(config.preflight.level, subject, plan.named_port if plan else None, signals)

    def _take_part(self, wish: Wish, fleet: Fleet, plan: torch_elastic.Plan) -> tuple[Wish, FleetFile]:
        """Whether this node leads; one that does not keeps what is its own apart from the runs."""
        if fleet.warning:
            print_line(f"warning: {fleet.warning}")
        join = join_path(fleet, wish.config, wish.directory, self._cwd)
        is_head = fleet.may_lead
        if is_head and not fleet.is_chosen:
            self._lead = open_lead(join)
            is_head = self._lead.acquire()
        part = fleet_file(fleet, plan, wish.config, join, is_head)
        if is_head and part.meet is None:
            check_lead(join, wish.run_id, is_scheduled="SLURM_JOB_ID" in os.environ)
        if is_head:
            return wish, part
        node = node_name(os.environ)
        beside = name_beside_head(fleet, node, is_head)
        folder = wish.directory / NODES_FOLDER
        return replace(wish, directory=folder, run_id=None, name=beside or node, node=beside), part

    def _end_preflight(self) -> None:
        if self._preflight is not None:
            self._preflight.end()
            self._preflight = None

    def _run_ranks(self, run: OpenRun, config: Config, plan: torch_elastic.Plan, signals: Signals) -> int:
        log = Log(run.path)
        layer = torch_elastic.Elastic(plan, config.restart.max_restarts, signals.run)
        warm = make_warm(run, config, plan, log)
        loop = make_loop(Loop, run, config, Starter(layer, run, config, signals, log, warm), signals, log=log)
        loop.warm = warm
        loop.shutdown_timeout_s = shutdown_timeout_s(plan.config)
        status = self._supervise(loop, config, plan.config)
        if isinstance(loop.attempt, LocalAttempt):
            layer.end(None if loop.is_signalled else loop.attempt.failures())
        return status

    def _run_agent(self, run: OpenRun, config: Config, args: Any, world_size: int, signals: Signals) -> int:
        def launch(arguments: list[str], tell: Tell) -> None:
            torch_elastic.tell_failures(tell)
            args.training_script_args = [*args.training_script_args, *arguments]
            torch_elastic.run_plain(args)

        # Its modules cost every other start-up some 20 ms.
        from guardrun.launcher.run.torchrun_loop import AGENT_MARGIN_S, AgentLoop, AgentStarter

        starter = AgentStarter(run, config, world_size, launch)
        try:
            loop = make_loop(AgentLoop, run, config, starter, signals, log=Log(run.path))
            loop.shutdown_timeout_s = shutdown_timeout_s(args) + AGENT_MARGIN_S
            return self._supervise(loop, config, args)
        finally:
            starter.close()

    def _supervise(self, loop: Loop, config: Config, settings: Any) -> int:
        """settings: has signals_to_handle where the installed torch has it."""
        run, log = loop.run, loop.log
        occupied = Occupied.claim(Path(run.file.socket_dir))
        if run.warning:
            print_line(run.warning)
        become_subreaper()
        torch_signals = getattr(settings, "signals_to_handle", "")
        loop.signals.handle(parse_signals(torch_signals))
        loop.notices = choose_notices(config, torch_signals, os.environ)
        loop.signals.warnings = frozenset(loop.notices) - {signal.SIGTERM}
        loop.is_forwarding = config.preemption.forward
        daemon = self._daemon or Daemon(self._supervisor_command)
        control = Control(Path(run.file.socket_dir), loop.hello, run.file.session)
        daemon.assign(run.path)
        supervision = Supervision(
            daemon=daemon,
            control=control,
            run_dir=run.path,
            log=log,
            now_s=time.monotonic(),
            command=self._supervisor_command,
            run_file=run.file,
        )
        loop.attach(supervision, self._earlier)
        try:
            for left in sweep_left_behind(os.environ, [loop.run.path.parent, Path(self._cwd)]):
                log.write("swept", folder=str(left))
            status = loop.go()
        finally:
            self._end_preflight()
            if loop.warm is not None:
                loop.warm.close()
            with suppress(OSError):  # No descriptor for /proc: training's own end stands all the same.
                loop.sweeper.sweep()
            is_all_written = supervision.finish()
            with suppress(OSError):
                loop.sweeper.sweep()  # what a supervisor that had to be killed leaves
            if run.ownership is not None:
                log.put(run.ownership.release)
            occupied.release()
        loop.pass_error_on()
        if status != 0:
            loop.report_failure()
        log.write("ended", exit_status=status)
        if not (log.close() and is_all_written):
            print_line(
                f"the disk under {run.path} is too slow: the end of the run's record (summary.json, say) may be missing"
            )
        return status

    def _run_plain(self, reason: str, part: FleetFile | None = None) -> int:
        """Training is not to suffer where guardrun cannot work. Raises UsageError in a job of several nodes."""
        if part is not None:
            raise UsageError(f"{reason}; the other nodes' guardruns would wait for this one, which cannot take part")
        print_line(f"{reason}; going on as plain torchrun")
        self._end_preflight()
        torch_elastic.run_plain(parse_flags(self._arguments, torch_elastic.make_parser).torch)
        return 0


def make_loop(kind: type[Loop], run: OpenRun, config: Config, starter: Starts, signals: Signals, *, log: Log) -> Loop:
    """A loop of that kind with its limits and times taken from the configuration."""
    return kind(
        run=run,
        starter=starter,
        signals=signals,
        log=log,
        max_restarts=config.restart.max_restarts,
        stop_grace_s=config.restart.stop_grace_s,
        linger_s=config.launcher.linger_s,
        is_first_ordered=run.is_continued or config.checkpoint.resume_first or run.file.fleet is not None,
    )


def make_warm(run: OpenRun, config: Config, plan: torch_elastic.Plan, log: Log) -> WarmRanks | None:
    """None where the user wants none, or ranks are no plain Pythons."""
    if not config.launcher.warm:
        return None
    from guardrun.launcher.warm.warm_ranks import WarmRanks, takes_warm_ranks  # few runs have a use for it

    if not takes_warm_ranks(plan.entrypoint, plan.arguments):
        return None
    command = [str(plan.entrypoint), *map(str, plan.arguments)]
    folder, free_bytes = Path(run.file.socket_dir), config.launcher.warm_free_mb << 20
    warm = WarmRanks(command, folder, free_bytes, plan.world_size, log)
    if run.file.fleet is not None:  # a spare has none from an attempt before
        with environment(run_environment(run, config, 0, None)):
            warm.note_environment(os.environ, config.checkpoint.resume_env)
    return warm


def shutdown_timeout_s(settings: Any) -> float:
    """--shutdown-timeout, where the installed torch has it."""
    timeout_s = getattr(settings, "shutdown_timeout", None)
    return DEFAULT_SHUTDOWN_TIMEOUT_S if timeout_s is None else float(timeout_s)


def script_name(args: Any) -> str:
    """A short name for the run."""
    name = str(args.training_script)
    return name.rpartition(".")[2] if args.module else Path(name).stem


def check_script(args: Any) -> None:
    """Say at once that a script does not exist, rather than once a rank. Raises UsageError."""
    script = args.training_script
    if args.module or (args.no_python and not args.run_path) or script == "-" or "PYTHON_EXEC" in os.environ:
        return
    if not os.path.exists(script):
        raise UsageError(f"no such script: {script} (in {os.getcwd()})")
