"""The process below which a lab's Slurm lives: it starts the daemons, and ends with everything of them.

Run as `python slurmlab_keeper.py FOLDER`, told line by line on its standard input:

    munged | slurmctld | slurmd NODE      start that; answered by the pid below which it lives

Each daemon gets an init of its own, the subreaper of what it leaves behind: job steps are no children of their slurmd,
and whoever ends everything below a node's init has ended that node. When standard input ends, so does everything.
Imports nothing but the standard library: there is one of it for each daemon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)"""


def command_of(folder: str, order: list[str]) -> list[str]:
    """The command line of a daemon. Raises ValueError."""
    match order:
        case ["munged"]:
            return [
                *("munged", "--foreground", "--num-threads", "2"),
                *("--socket", f"{folder}/munge.sock", "--key-file", f"{folder}/munge.key"),
                *("--pid-file", f"{folder}/munged.pid", "--log-file", f"{folder}/log/munged.log"),
                *("--seed-file", f"{folder}/munged.seed"),
            ]
        case ["slurmctld"]:
            return ["slurmctld", "-D"]
        case ["slurmd", node]:
            return ["slurmd", "-D", "-N", node]
    raise ValueError(f"no such order: {order}")


def start(folder: str, order: list[str]) -> int:
    """Start a daemon below an init of its own; the init's pid."""
    command = command_of(folder, order)
    libc = ctypes.CDLL(None)
    pid = os.fork()
    if pid:
        return pid
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.setsid()
        _become_init(folder, command, "-".join(order))
    finally:
        os._exit(127)


def _become_init(folder: str, command: list[str], name: str) -> None:
    if os.fork() == 0:
        log = os.open(f"{folder}/log/{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
        os.execvpe(command[0], command, {**environment, "SLURM_CONF": f"{folder}/slurm.conf"})
    for descriptor in (0, 1):
        os.close(descriptor)
    # Whatever ends below is reaped for as long as there is anything; a node without processes needs no init.
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    os._exit(0)


def main() -> None:
    """Carry out orders until nobody gives any more."""
    folder = sys.argv[1]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person's Ctrl-C is for the tests; they end this
    for line in sys.stdin:
        sys.stdout.write(f"{start(folder, line.split())}\n")
        sys.stdout.flush()
    end_all()


def end_all() -> None:
    """SIGKILL whatever is below this process until nothing is: orphans come up as children."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for child in _children(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children(pid: int) -> list[int]:
    """Children of this process: they are not reaped by anybody else, so their pids stay theirs."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


if __name__ == "__main__":
    main()
