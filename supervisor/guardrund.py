"""`guardrund`: the daemon. `guardrun` starts one for its job, the supervisor; it is not meant to be started by hand.

It imports all it needs, then waits on its standard input for one line, the run directory's path: so it is ready by
the time that the launcher has imported torch and knows what to run. Nothing (end of input) means: not needed.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import structlog

from guardrun.supervisor.daemon import Daemon
from guardrun.supervisor.rundir import read_run_file

LOG_NAME = "guardrun.log"
USAGE = "guardrund: started by guardrun, which gives it a run directory on standard input\n"


def main(argv: list[str] | None = None) -> int:
    """Run one supervisor to its end. Exit status 0, or 2 where it was called wrongly."""
    arguments = [a for a in (sys.argv[1:] if argv is None else argv) if a != "guardrund"]
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    if arguments:
        sys.stderr.write(f"guardrund: unknown argument {arguments[0]!r}\n{USAGE}")
        return 2
    _ignore_signals()
    line = sys.stdin.readline().strip()
    if not line:
        return 0
    run_dir = Path(line)
    log_file = _set_up_log(run_dir)
    try:
        daemon = Daemon(run_dir, read_run_file(run_dir))
        try:
            daemon.run()
        finally:
            daemon.close()
    finally:
        if log_file is not None:
            log_file.close()
    return 0


def _ignore_signals() -> None:
    """Schedulers and terminals signal everybody; the supervisor ends when its launcher has, and not before."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


class _Quiet:
    """A log file whose disk may fill up: what can't be written is dropped."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8", errors="replace")

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            pass

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            pass

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass


def _set_up_log(run_dir: Path) -> _Quiet | None:
    try:
        log_file = _Quiet(run_dir / LOG_NAME)
    except OSError:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL + 1))
        return None
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=log_file),  # type: ignore[arg-type]  # it only writes and flushes
    )
    return log_file


if __name__ == "__main__":
    sys.exit(main())
