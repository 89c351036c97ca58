"""`guardrun`: the command.

Light on purpose: the supervisor is started before torch, which takes seconds, is imported, so that it is ready by then.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence

from guardrun.launcher.base.terminal_lines import INTERRUPTED, USAGE_ERROR, RefusedError, print_line
from guardrun.launcher.control.supervisor_process import DAEMON_COMMAND, Daemon
from guardrun.launcher.run.preflight import Preflight, is_off
from guardrun.supervisor.base.standard_streams import hold_standard_descriptors

ENDING_FLAGS = ("-h", "--help", "--guard-off", "--guard-version")
SHORTEST = {"--help": 3, "--guard-off": 9, "--guard-version": 9}
"""How short each may be abbreviated."""


def may_end_early(arguments: Sequence[str]) -> bool:
    """Say whether a command line may be one that needs no supervisor: not certain before torch's parser is there."""
    return any(
        flag.startswith(argument) and len(argument) >= SHORTEST.get(flag, len(flag))
        for argument in arguments
        for flag in ENDING_FLAGS
    )


def start_preflight(arguments: list[str]) -> Preflight | None:
    """Have the node looked at while torch is imported. None where that is not wanted, or cannot be."""
    if is_off(arguments, os.environ.get("GUARDRUN_PREFLIGHT_LEVEL")):
        return None
    try:
        return Preflight()
    except OSError:
        return None  # Training is not to suffer for it.


def main(argv: Sequence[str] | None = None, supervisor_command: Sequence[str] = DAEMON_COMMAND) -> int:
    """Run guardrun; returns its exit status.

    supervisor_command: what is started as the supervisor.
    """
    hold_standard_descriptors()
    arguments = list(sys.argv[1:] if argv is None else argv)
    daemon = None if may_end_early(arguments) else Daemon(supervisor_command)
    if daemon is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the launcher handles it: what has been started by then ends with it, and no import's traceback is shown.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    preflight = None if daemon is None else start_preflight(arguments)
    try:
        gc.disable()  # What torch's import makes, 300,000 objects, stays, and the collector would look at all of it:
        from guardrun.launcher.run.launch import Launch, UsageError

        gc.freeze()  # meanwhile, later, and again at the end. A quarter of what a short run's launcher takes.
        gc.enable()
        try:
            return Launch(arguments, daemon, supervisor_command, preflight).go()
        except UsageError as error:
            print_line(f"error: {error}")
            return USAGE_ERROR
        except RefusedError as refusal:
            print_line(f"refused: {refusal}")
            return refusal.exit_status
    except SystemExit as exit_:  # argparse: --help, or a wrong flag
        return exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if daemon is not None and not daemon.is_assigned:
            daemon.discard()
        if preflight is not None:
            preflight.end()
