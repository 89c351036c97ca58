"""`guardrund`: the daemon.

`guardrun` starts one for its job, the supervisor; it is not meant to be started by hand. `guardrund --node` is the node
agent, which systemd runs (supervisor/agent/command.py).

It imports all it needs, then waits on its standard input for one line, the run directory's path: so it is ready by
the time that the launcher has imported torch and knows what to run. Nothing (end of input) means: not needed.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from guardrun.launcher.control.supervisor_process import UNWRITTEN
from guardrun.supervisor.base.standard_streams import hold_standard_descriptors

if TYPE_CHECKING:
    from guardrun.supervisor.base.background_work import BackgroundWriter
    from guardrun.supervisor.daemon.daemon import Daemon
    from guardrun.supervisor.fleet.follower.follower import Follower

LOG_NAME = "guardrun.log"
STUCK_PATIENCE_S = 1.0
"""What threads get to end by themselves once everything is closed."""
USAGE = """guardrund: started by guardrun, which gives it a run directory on standard input
guardrund --node: the node agent, started by systemd (guardctl node-agent install)
"""


def main(argv: list[str] | None = None) -> int:
    """Run one supervisor to its end. Exit status 0, UNWRITTEN, or 2 where it was called wrongly."""
    arguments = [a for a in (sys.argv[1:] if argv is None else argv) if a != "guardrund"]
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    if arguments[:1] == ["--node"]:
        from guardrun.supervisor.agent.command import run_node  # a supervisor has no use for it

        return run_node(arguments[1:])
    if arguments:
        sys.stderr.write(f"guardrund: unknown argument {arguments[0]!r}\n{USAGE}")
        return 2
    hold_standard_descriptors()
    _outlive_signals()
    return _supervise()


def _supervise() -> int:
    # Here, and before the line is read: ready when the launcher is, and none of it in the node agent.
    from guardrun.supervisor.base.background_work import BackgroundWriter
    from guardrun.supervisor.base.log import set_up_log
    from guardrun.supervisor.daemon.daemon import Daemon  # noqa: F401

    gc.freeze()  # All of that stays: no collection needs to look at it.
    line = sys.stdin.buffer.readline().rstrip(b"\n")
    if not line:
        return 0
    run_dir = Path(os.fsdecode(line))
    writer = BackgroundWriter()
    log_file = set_up_log(run_dir / LOG_NAME, writer)
    try:
        daemon = _open_supervisor(run_dir, writer)
        try:
            daemon.run()
        finally:
            daemon.close()
    finally:
        is_all_written = writer.close()
        if is_all_written and log_file is not None:
            log_file.close()
    status = 0 if is_all_written else UNWRITTEN
    end_beside_the_stuck(status)
    return status


def end_beside_the_stuck(status: int = 0) -> None:
    """End at once where threads of pools that are closed still stand in a file system: Python would wait for them."""
    by_s = time.monotonic() + STUCK_PATIENCE_S
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    for thread in others:
        if not thread.daemon:
            thread.join(max(0.0, by_s - time.monotonic()))
            if thread.is_alive():
                os._exit(status)


def _open_supervisor(run_dir: Path, writer: BackgroundWriter) -> Daemon | Follower:
    """The supervisor that decides, or the follower of a node that another one leads."""
    from guardrun.supervisor.daemon.daemon import Daemon
    from guardrun.supervisor.rundir.run_directory import read_run_file

    run = read_run_file(run_dir)
    if run.fleet is None or run.fleet.is_head:
        return Daemon(run_dir, run, writer)
    from guardrun.supervisor.fleet.follower.follower import Follower

    return Follower(run_dir, run, writer, run.fleet)


def _outlive_signals() -> None:
    """Schedulers and terminals signal everybody; the supervisor ends when its launcher has, and not before.

    Handlers that do nothing rather than SIG_IGN, which what we start (a notify command) would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: None)


if __name__ == "__main__":
    sys.exit(main())
