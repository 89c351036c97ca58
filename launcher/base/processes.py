"""What /proc tells the launcher of processes: who descends from whom, and who carries the run's mark."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

TOKEN_VARIABLE = "GUARDRUN_TOKEN"

DEAD = "ZX"
"""States of a process that is no more: a zombie is dead."""


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter here (man 5 proc)."""

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    start: int
    """Clock ticks after boot: with the pid, it names one process for good."""
    exit_status: int = 0
    """Of a zombie, as waitpid would have it; readable by its user alone."""


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat. The command, in parentheses, may hold anything, parentheses too."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    exit_status = int(fields[49]) if len(fields) > 49 else 0
    return Stat(int(pid), fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), exit_status)


def read_stat(pid: int) -> Stat | None:
    """The process's stat, or None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError, IndexError):
        return None


def read_name(pid: int) -> str:
    """What a process is called, for a line: `python upload.py`; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode("utf-8", "replace") for word in file.read(4096).rstrip(b"\0").split(b"\0") if word]
    except OSError:
        return ""
    return short_command(words)


def short_command(argv: Sequence[str]) -> str:
    """A process's program and, of a Python, its script or module; no further argument, since they may hold secrets."""
    if not argv:
        return ""
    program = os.path.basename(argv[0])
    if "python" not in program:
        return program[:120]
    kept = [program]
    for argument in argv[1:]:
        kept.append(argument)
        if argument == "-c":
            kept[-1] = "-c …"
            break
        if not argument.startswith("-"):
            break
    return " ".join(kept)[:120]


def signal_group(pid: int, signum: signal.Signals) -> None:
    """Signal a rank's process group where it leads one, else (functions as ranks) the rank.

    A stopped process does not see a signal before it continues, SIGKILL aside: SIGTERM and its like are followed by
    SIGCONT.
    """
    stat = read_stat(pid)
    if stat is None:
        return
    kill = os.killpg if stat.pgrp == pid else os.kill
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, signum)
        if stat.state in "Tt" and signum != signal.SIGKILL:
            kill(pid, signal.SIGCONT)


def read_all_stats() -> dict[int, Stat]:
    """Every process that can be seen."""
    stats = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat.pid: stat for stat in stats if stat is not None}


def read_boot_id() -> str:
    """This boot of the machine; empty where it cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def descendants(stats: dict[int, Stat], roots: Iterable[int]) -> set[int]:
    """All processes below roots, roots left out."""
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    found: set[int] = set()
    open_ = list(roots)
    while open_:
        for pid in children.get(open_.pop(), ()):
            if pid not in found:
                found.add(pid)
                open_.append(pid)
    return found


def read_children(pid: int) -> list[int]:
    """A process's own children. The kernel's list where it keeps one, else by everybody's parent."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found.extend(int(word) for word in file.read().split())
        return found
    except OSError:
        return [stat.pid for stat in read_all_stats().values() if stat.ppid == pid]


def read_environment(pid: int) -> dict[str, str]:
    """What a process was started with; empty where it may not be asked, or is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}


def has_token(pid: int, token: str) -> bool:
    """Say whether a process was started with the run's mark. False where it may not be asked: it isn't ours then."""
    return read_environment(pid).get(TOKEN_VARIABLE) == token


def notify_token(token: str) -> str:
    """The mark of a run's [notify] commands, which outlive it."""
    return f"notify-{token}"
