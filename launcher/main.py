"""`guardrun`: from the command line to the exit status."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guardrun.launcher.control import Control
from guardrun.launcher.daemon import DAEMON_COMMAND, Daemon
from guardrun.launcher.flags import Flags, may_end_early, parse_flags
from guardrun.launcher.loop import Loop, Starts
from guardrun.launcher.opening import OpenRun, RunIdError, Wish, choose_directory, open_run
from guardrun.launcher.saying import Log, say
from guardrun.launcher.signals import Signals, parse_signals
from guardrun.launcher.sockets import NoSocketFolderError, make_socket_folder
from guardrun.launcher.supervision import Supervision
from guardrun.launcher.sweep import become_subreaper
from guardrun.supervisor.config import Config, ConfigError, load_config

USAGE_ERROR = 2
DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0
"""torchrun's."""


class UsageError(Exception):
    """The user's mistake: said, and exit status 2."""


def main(argv: Sequence[str] | None = None, supervisor_command: Sequence[str] = DAEMON_COMMAND) -> int:
    """Run guardrun; returns its exit status.

    supervisor_command: what is started as the supervisor.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Before anything else, so that it has loaded by the time torch is here.
    daemon = None if may_end_early(arguments) else Daemon(supervisor_command)
    try:
        return Launch(arguments, daemon, supervisor_command).go()
    except UsageError as error:
        say(f"error: {error}")
        return USAGE_ERROR
    except SystemExit as exit_:  # argparse: --help, or a wrong flag
        return exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:
        return 130
    finally:
        if daemon is not None and not daemon.is_assigned:
            daemon.discard()


class Launch:
    """One command line, on its way to a run."""

    def __init__(self, arguments: list[str], daemon: Daemon | None, supervisor_command: Sequence[str]) -> None:
        self._arguments = arguments
        self._daemon = daemon
        self._supervisor_command = supervisor_command
        self._cwd = Path.cwd()

    def go(self) -> int:
        from guardrun.launcher import elastic  # imports torch

        flags = parse_flags(self._arguments, elastic.torchrun.get_args_parser)
        if flags.is_off:
            elastic.run_plain(flags.torch)
            return 0
        config = self._load_config(flags)
        check_script(flags.torch)
        flags.torch.max_restarts = config.restart.max_restarts
        signals = Signals()
        try:
            return self._run(flags, config, signals)
        finally:
            signals.close()

    def _load_config(self, flags: Flags) -> Config:
        try:
            config = load_config(flags.config, flags.for_config(), os.environ, self._cwd)
        except ConfigError as error:
            raise UsageError(f"\n{'guardrun: error: '}".join(error.problems)) from None
        for warning in config.warnings:
            say(f"warning: {warning}")
        return config

    def _run(self, flags: Flags, config: Config, signals: Signals) -> int:
        from guardrun.launcher import elastic

        try:
            plan = elastic.plan_launch(flags.torch)
        except (ValueError, AssertionError, RuntimeError, OSError) as error:
            raise UsageError(str(error)) from error
        wish = Wish(
            config=config,
            directory=choose_directory(flags.dir, os.environ, self._cwd),
            run_id=flags.run_id,
            command=["guardrun", *self._arguments],
            script=plan.command,
            name=script_name(flags.torch),
            cwd=self._cwd,
        )
        try:
            sockets = make_socket_folder(os.environ)
        except NoSocketFolderError as error:
            return self._run_plain(str(error))
        try:
            run = open_run(wish, sockets, os.environ)
        except RunIdError as error:
            raise UsageError(str(error)) from None
        except OSError as error:
            return self._run_plain(f"no folder to keep a run in: {error}")
        else:
            from guardrun.launcher.starting import Starter

            starter = Starter(elastic.Elastic(plan, config.restart.max_restarts), run, config, signals)
            return self._supervise(run, config, starter, plan.config, signals)
        finally:
            shutil.rmtree(sockets, ignore_errors=True)

    def _supervise(self, run: OpenRun, config: Config, starter: Starts, launch: Any, signals: Signals) -> int:
        if run.warning:
            say(run.warning)
        become_subreaper()
        signals.handle(parse_signals(getattr(launch, "signals_to_handle", "")))
        log = Log(run.path)
        loop = Loop(
            run=run,
            starter=starter,
            signals=signals,
            log=log,
            max_restarts=config.restart.max_restarts,
            stop_grace_s=config.restart.stop_grace_s,
            shutdown_timeout_s=getattr(launch, "shutdown_timeout", None) or DEFAULT_SHUTDOWN_TIMEOUT_S,
            is_first_ordered=run.is_continued or config.checkpoint.resume_first,
        )
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
        )
        loop.attach(supervision)
        try:
            status = loop.go()
        finally:
            loop.sweeper.sweep()
            supervision.finish()
            loop.sweeper.sweep()  # what a supervisor that had to be killed leaves
            if run.ownership is not None:
                run.ownership.release()
        loop.pass_error_on()
        log.write("ended", exit_status=status)
        return status

    def _run_plain(self, reason: str) -> int:
        """Training is not to suffer where guardrun cannot work."""
        from guardrun.launcher import elastic

        say(f"{reason}; going on as plain torchrun")
        elastic.run_plain(parse_flags(self._arguments, elastic.torchrun.get_args_parser).torch)
        return 0


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
