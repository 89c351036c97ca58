"""`guardrund --node`: the node agent, from its command line and its log to its exit status."""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from guardrun.supervisor.agent.agent import Agent, Pids
from guardrun.supervisor.agent.agent_context import Options
from guardrun.supervisor.agent.jobs import PATIENCE_S
from guardrun.supervisor.base.log import log, log_to
from guardrun.supervisor.base.node_state import SYSTEM_FOLDER
from guardrun.supervisor.base.own_files import make_folders
from guardrun.supervisor.base.printable import make_printable
from guardrun.supervisor.base.standard_streams import hold_standard_descriptors
from guardrun.supervisor.config import Config, ConfigError, load_config
from guardrun.supervisor.health.base.readings import Judge
from guardrun.supervisor.health.quarantine_rules import CALM_S
from guardrun.supervisor.sensors.base.sensor import Sensor
from guardrun.supervisor.wire.agent_messages import socket_path
from guardrun.systemd.journal import Journal, field_name, is_journal
from guardrun.systemd.notify import Notifier, watchdog_s

# Agent log ----------------------------------------------------------------------------------------------------------
# The agent's log: entries with fields where journald listens, else JSON lines on standard error.


IDENTIFIER = "guardrund"


class _Stderr:
    """Standard error, which may be gone or full: nobody who reads it holds up the agent's work by more than a line."""

    def write(self, text: str) -> None:
        try:
            os.write(2, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass

    def flush(self) -> None:
        """Nothing: each line has been written."""


def set_up_agent_log(environ: Mapping[str, str]) -> Journal | None:
    """Configure structlog for this process. Whoever calls closes the journal, where there is one, at the end."""
    if not is_journal(2, environ):
        log_to(_Stderr())
        return None
    import structlog  # by now without rich: see supervisor/base/log.py

    journal = Journal(IDENTIFIER)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            lambda logger, method, event: _send(journal, event),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return journal


def _send(journal: Journal, event: MutableMapping[str, Any]) -> str:
    """One entry: the sentence for a person as its message, everything else as GUARDRUN_ fields."""
    from structlog import DropEvent

    values = make_printable(dict(event))
    level, name = str(values.pop("level", "info")), str(values.pop("event", ""))
    summary = values.pop("summary", "")
    words = " ".join(f"{key}={value}" for key, value in values.items() if value not in ("", [], {}))
    message = f"{name}: {summary}" if summary else f"{name} {words}".rstrip()
    fields = {field_name(key): str(value) for key, value in values.items()}
    journal.send(message, level, {"GUARDRUN_EVENT": name, **fields})
    raise DropEvent


# Command ------------------------------------------------------------------------------------------------------------


OK, FAILED, USAGE, ANOTHER = 0, 1, 2, 75
"""Exit statuses; 75 (sysexits.h: try again later): another agent serves this node."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Equipment(NamedTuple):
    """What an agent senses and judges with."""

    sensors: Callable[[Pids], Sequence[Sensor]]
    judges: Sequence[Judge]


def equip() -> Equipment:
    """All that there is."""
    from guardrun.supervisor.health.judges import all_judges
    from guardrun.supervisor.sensors.catalog import default_sensors

    return Equipment(lambda pids: default_sensors(pids=pids), all_judges())


Equip = Callable[[], Equipment]


def run_node(argv: Sequence[str], equip: Equip = equip, wall: Callable[[], float] = time.time) -> int:
    """Be the agent of this node until told to end; answers the exit status."""
    arguments = _parse(argv)
    hold_standard_descriptors()
    faulthandler.enable()  # systemd's watchdog ends by SIGABRT: where it stood still is then in the journal
    os.umask(0o022)
    notifier = Notifier.take_from(os.environ)
    journal = set_up_agent_log(os.environ)
    lock = -1
    try:
        lock = _take_lock(arguments.socket)
        return _serve(arguments, notifier, equip, wall)
    except BlockingIOError as error:
        _complain(notifier, str(error))
        return ANOTHER
    except ConfigError as error:
        _complain(notifier, "; ".join(error.problems))
        return USAGE
    except OSError as error:
        _complain(notifier, f"{error.filename or arguments.socket}: {error.strerror or error}")
        return FAILED
    finally:
        notifier.close()
        if lock >= 0:
            os.close(lock)
        if journal is not None:
            journal.close()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="guardrund --node", description="The node agent: senses, judges, remembers. Meant to be run by systemd."
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help=f"what it keeps (default: {SYSTEM_FOLDER})")
    parser.add_argument("--socket", type=Path, default=socket_path(os.environ), metavar="PATH", help="where it listens")
    parser.add_argument("--config", type=Path, metavar="FILE", help="besides /etc/guardrun/guardrun.toml")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, metavar="S", help="from a job's end to looking for what it left"
    )
    parser.add_argument(
        "--calm", type=float, default=CALM_S, metavar="S", help="how long a part must be well to end a quarantine"
    )
    return parser.parse_args(argv)


def _serve(arguments: argparse.Namespace, notifier: Notifier, equip: Equip, wall: Callable[[], float]) -> int:
    config = _load(arguments.config)
    equipment = equip()
    agent = Agent(
        Options(
            state_dir=_state_dir(arguments, config),
            socket=arguments.socket,
            patience_s=arguments.patience,
            calm_s=arguments.calm,
        ),
        config,
        sensors=equipment.sensors,
        judges=equipment.judges,
        notifier=notifier,
        watchdog_s=watchdog_s(os.environ, os.getpid()),
        reload=lambda: _reload(arguments.config),
        wall=wall,
    )
    for signum in SIGNALS:
        signal.signal(signum, lambda signum, frame: agent.signalled(signum))
    try:
        agent.run()
    finally:
        agent.close()
    return OK


def _state_dir(arguments: argparse.Namespace, config: Config) -> Path:
    """--state, else [node] state_dir, else what systemd has made for it, else where root's is."""
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(os.path.abspath(arguments.state or config.node.state_dir or given or SYSTEM_FOLDER))


def _load(file: Path | None) -> Config:
    """The system's configuration and the given one: an agent has no project folder. Raises ConfigError."""
    config = load_config(file, {}, os.environ, Path("/"))
    for warning in config.warnings:
        log.warning("configuration", summary=warning)
    return config


def _reload(file: Path | None) -> Config | None:
    try:
        return _load(file)
    except ConfigError as error:
        log.error("not_reloaded", summary="; ".join(error.problems))
        return None


def _take_lock(socket: Path) -> int:
    """Be the only agent at this socket, for as long as the descriptor is open.

    Raises BlockingIOError, in words, where another is; OSError where the folder can't be used.
    """
    make_folders(socket.parent)
    path = socket.with_name(f"{socket.name}.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise BlockingIOError(f"another node agent, process {other or '?'}, listens at {socket} already") from None
    except OSError:
        pass  # a file system without locks
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _complain(notifier: Notifier, why: str) -> None:
    """To the journal, to systemctl status, and to who has started this by hand."""
    log.error("agent_not_started", summary=why)
    notifier.status(why)
    if sys.stderr.isatty():
        sys.stderr.write(f"guardrund: {why}\n")
