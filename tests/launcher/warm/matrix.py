"""A node that has nothing but warm ranks: `python matrix.py FOLDER`. Prints what came of each case, as JSON.

Its ranks' interpreter is a virtual environment in FOLDER, which has one module installed that is worth importing ahead.
A process of its own: it is the parent of what orphans there are, as the launcher is.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import guardrun
from guardrun.hooks.wire.board import board_name, create_board, import_names
from guardrun.launcher.base.processes import DEAD, read_all_stats, read_children, read_stat
from guardrun.launcher.base.terminal_lines import Log
from guardrun.launcher.warm import warm_process
from guardrun.launcher.warm.warm_process import ForkedProcess
from guardrun.launcher.warm.warm_ranks import ENDED_FILE, REFUSED_FILE, WarmRanks

INJECT = Path(guardrun.__file__).parent / "hooks" / "inject"
HEAVY = """
import os, time
SETTING = os.environ.get("HEAVY_SETTING")
BEGAN_S = time.process_time()
while time.process_time() - BEGAN_S < 0.31:
    if os.path.exists("slowly"):
        time.sleep(0.05)
        continue
"""
SCRIPT = """
import os, signal, sys
PASSED = f"passed-{os.getpid()}"
if "anew" in sys.argv and not os.path.exists(PASSED):
    open(PASSED, "w").close()
    os.chdir("/")
    os.umask(0o077)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    signal.setitimer(signal.ITIMER_REAL, 1000)
    os.environ["HEAVY_SETTING"] = "new"
    import threading
    thread = threading.Thread(target=__import__, args=("heavy",))
    thread.start()
    thread.join()
ended = None
if "child" in sys.argv:
    child = os.fork()
    if child == 0:
        os.environ["HEAVY_SETTING"] = "new"
        import heavy
        os._exit(7)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
import heavy
import json
umask = os.umask(0)
told = {
    "pid": os.getpid(), "ended": ended, "setting": heavy.SETTING, "path": os.environ.get("PYTHONPATH"),
    "cwd": os.getcwd(), "umask": umask, "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "timer": signal.getitimer(signal.ITIMER_REAL)[0], "argv": sys.argv,
    "cpus": sorted(os.sched_getaffinity(0)),
    "ignored": [int(n) for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"told-{os.environ['NAME']}")
with open(path + ".part", "w") as file:
    json.dump(told, file)
os.rename(path + ".part", path)
if "late" in sys.argv:
    from guardrun import hooks
    hooks.step()
    os.environ["HEAVY_SETTING"] = "new"
    del sys.modules["heavy"]
    import heavy
"""


class Node:
    """One node's ranks; made anew for each case that ends the warm process."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.script = folder, folder / "train.py"
        self.command = [str(python), "-u", str(self.script)]
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.ranks = WarmRanks(self.command, folder, 0, 2, cast("Log", self))
        for name in (REFUSED_FILE, ENDED_FILE):
            (folder / name).unlink(missing_ok=True)
        for rank in (0, 1):
            (folder / board_name(0, rank)).unlink(missing_ok=True)
            create_board(str(folder / board_name(0, rank)))
        hooks = {"sockets": str(folder), "attempt": 0, "launcher_pid": os.getpid(), "token": "t", "pythonpath": None}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "RANK": "0",
            "GUARDRUN_HOOKS": json.dumps(hooks),
            "PYTHONPATH": str(INJECT),
        }
        self.ranks.note_environment(self.environment, {"RANK": 0})

    def write(self, event: str, **fields: Any) -> None:
        """As the run's log has it."""
        self.lines.append((event, fields))

    @property
    def reasons(self) -> list[str]:
        return [fields["why"] for event, fields in self.lines if event == "warm_given_up"]

    def start(self) -> int:
        """The warm process's pid, before it has imported anything."""
        self.ranks.turn(time.monotonic(), is_used=True)
        assert self.ranks.process is not None
        return self.ranks.process.pid

    def make_ready(self) -> int:
        """Likewise, when it is ready and two wait."""
        pid = self.start()
        wait(lambda: self.turn().is_ready or self.ranks.is_over, "it is ready")
        assert self.ranks.is_ready, self.lines
        self.ranks.prepare()
        self.ranks.settle()
        return pid

    def turn(self) -> WarmRanks:
        self.ranks.turn(time.monotonic(), is_used=True)
        return self.ranks

    def waiting(self) -> list[int]:
        return [] if self.ranks.process is None else self.ranks.process.waiting()

    def claim(self, name: str, *arguments: str, **variables: str) -> ForkedProcess | None:
        return self.ranks.claim(
            [*self.command, *arguments], {**self.environment, "NAME": name, **variables}, sys.stderr, sys.stderr
        )

    def told(self, name: str) -> dict[str, Any]:
        """What a rank of this name has said of itself."""
        path = self.folder / f"told-{name}"
        wait(path.exists, f"rank {name}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def wait(is_so: Callable[[], object], what: str, patience_s: float = 60.0) -> None:
    """Raises TimeoutError."""
    deadline_s = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(what)
        time.sleep(0.01)


def find_left(sessions: set[int]) -> list[int]:
    """Processes that are alive in one of these sessions, or are children of this one."""
    me, stats = os.getpid(), read_all_stats().values()
    return [one.pid for one in stats if one.state not in DEAD and (one.session in sessions or one.ppid == me)]


def sockets(pid: int) -> set[str]:
    """What of its descriptors are sockets, by inode."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(path))
    return {link for link in links if link.startswith("socket:")}


def is_stopped(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state == "T"


@contextmanager
def patience(fork_s: float, begin_s: float) -> Iterator[None]:
    """Wait less for what will not answer."""
    before = warm_process.FORK_S, warm_process.BEGIN_S
    warm_process.FORK_S, warm_process.BEGIN_S = fork_s, begin_s
    try:
        yield
    finally:
        warm_process.FORK_S, warm_process.BEGIN_S = before


# Cases: what they return is looked at by tests/launcher/warm/test_matrix.py -----------------------------------------


def ranks_that_refuse(node: Node) -> dict[str, Any]:
    """Of two that are told to be ranks, one has another PYTHONHASHSEED; the other trains when it is to begin anew."""
    node.make_ready()
    assert node.ranks.begin(), node.lines
    good, bad = node.claim("good", "late"), node.claim("bad", RANK="1", PYTHONHASHSEED="7")
    assert good is not None and bad is not None
    refused = node.ranks.find_refused()
    code, told = good.wait(60), node.told("good")
    return {
        "refused": refused == {bad.pid},
        "code": code,
        "exit_words": node.ranks.note_exit(good.pid, code),
        "is_itself": told["pid"] == good.pid,
        "why": node.reasons,
        "is_over": node.ranks.is_over,
    }


def ranks_that_are_silent(node: Node) -> dict[str, Any]:
    """One that waits is stopped before it is told what it is, the other one killed."""
    node.make_ready()
    assert node.ranks.begin(), node.lines
    stopped, dead = node.waiting()
    wait(lambda: not sockets(stopped) & sockets(dead), "each to have let go of the other's socket")
    os.kill(stopped, signal.SIGSTOP)
    os.kill(dead, signal.SIGKILL)
    wait(lambda: is_stopped(stopped) and getattr(read_stat(dead), "state", "X") in DEAD, "signals")
    with patience(60.0, 0.3):
        first, second = node.claim("silent"), node.claim("dead")
        refused = node.ranks.find_refused()
    assert first is not None
    return {
        "refused": refused == {stopped},
        "is_second_cold": second is None,
        "code": first.wait(60),
        "has_run": (node.folder / "told-silent").exists(),
        "why": node.reasons,
    }


def ranks_that_begin_anew(node: Node) -> dict[str, Any]:
    """It sets what its module has read, in another folder, with other signals; beside one of whom a child does."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    node.make_ready()
    assert node.ranks.begin(), node.lines
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as if nohup had been there when ranks were executed
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        new, plain = node.claim("new", "anew"), node.claim("plain", "child", RANK="1")
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert new is not None and plain is not None
    refused = node.ranks.find_refused()
    answer = {
        "refused": list(refused),
        "new": node.told("new"),
        "plain": node.told("plain"),
        "codes": [new.wait(60), plain.wait(60)],
        "is_same": node.told("new")["pid"] == new.pid,
        "passed": (node.folder / f"passed-{new.pid}").exists(),
    }
    node.turn()
    return {**answer, "why": node.reasons, "exit_words": node.ranks.note_exit(plain.pid, 1)}


def killed_at(node: Node, moment: str, signum: signal.Signals) -> dict[str, Any]:
    """The warm process gets a signal; then an attempt is to begin. Nothing is left of it, ranks are started as ever."""
    if moment == "importing":
        (node.folder / "slowly").touch()
        pid = node.start()
    else:
        pid = node.make_ready()
    assert node.ranks.process is not None
    if moment == "pending":
        node.ranks.process.dismiss()
        os.kill(pid, signal.SIGSTOP)
        wait(lambda: is_stopped(pid), "the stop")
        node.ranks.prepare()
        assert node.ranks.process.is_busy
    os.kill(pid, signum)
    wait(lambda: getattr(read_stat(pid), "state", "X") in f"T{DEAD}", "the signal")
    node.ranks.process.checked_s = -math.inf
    with patience(0.3, 0.3):
        is_warm = node.ranks.begin()
    if signum == signal.SIGKILL:
        wait(lambda: node.turn().is_over, "its end is known")
    node.ranks.close()
    (node.folder / "slowly").unlink(missing_ok=True)
    wait(lambda: not find_left({pid}), "everything's end")
    return {"is_warm": is_warm, "why": node.reasons}


def forks_are_known_before_a_sweep(node: Node) -> dict[str, Any]:
    """Before a fork is answered: whoever ends what it does not know has to know it first. Then memory ends."""
    node.make_ready()
    process = node.ranks.process
    assert process is not None
    process.dismiss()
    process.fork(5)
    for pid in read_children(os.getpid()):  # as the launcher collects what has ended, at each turn
        if pid not in node.ranks.pids():
            os.waitpid(pid, os.WNOHANG)
    node.ranks.settle()
    children = {pid for pid in read_children(os.getpid()) if getattr(read_stat(pid), "state", "X") not in DEAD}
    answer = {"waiting": len(process.waiting()), "unknown": sorted(children - node.ranks.pids())}
    node.ranks.free_bytes = 1 << 60
    node.ranks.turn(time.monotonic() + 100.0, is_used=True)
    wait(lambda: not find_left(set()), "everything's end")
    return {**answer, "why": ["warm_free_mb" in why for why in node.reasons]}


def launcher_is_killed(folder: Path, python: Path, moment: str) -> dict[str, Any]:
    """A launcher of its own is killed; what is left of its sessions 5 s later."""
    (folder / "slowly").unlink(missing_ok=True)
    if moment == "importing":
        (folder / "slowly").touch()
    other = subprocess.Popen(
        [sys.executable, __file__, str(folder), moment], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with other:
        assert other.stdout is not None
        pids = [int(word) for word in other.stdout.readline().split()]
        alive = [pid for pid in pids if getattr(read_stat(pid), "state", "X") not in DEAD]
        other.kill()
    (folder / "slowly").unlink(missing_ok=True)
    wait(lambda: not find_left({other.pid, *pids}), f"its end ({moment})")
    return {"pids": len(pids), "alive_before": len(alive)}


def be_killed(node: Node, moment: str) -> None:
    """In that launcher."""
    pid = node.start() if moment == "importing" else node.make_ready()
    if moment == "pending":
        os.kill(pid, signal.SIGSTOP)
        assert node.ranks.process is not None
        node.ranks.process.fork(2)
    waiting = node.waiting()
    if moment == "claimed":
        descriptors = [Path(f"/proc/{one}/fd") for one in waiting]
        wait(lambda: all(len(list(folder.iterdir())) == 4 for folder in descriptors), "they have one socket each")
        for one in waiting:
            os.kill(one, signal.SIGSTOP)
        assert node.claim("first") is not None and node.claim("second") is not None
    print(pid, *waiting, flush=True)
    signal.pause()


def make_environment(folder: Path) -> Path:
    """A virtual environment with one module; its interpreter."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "venv" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (folder / "venv" / "bin").mkdir()
    base = Path(os.path.realpath(sys.executable))
    (folder / "venv" / "bin" / "python").symlink_to(base)
    (folder / "venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (packages / "heavy.py").write_text(HEAVY)
    (folder / "train.py").write_text(SCRIPT)
    modules = [["heavy", str(packages / "heavy.py")]]
    for name in import_names(2):
        (folder / name).write_text(json.dumps({"modules": modules, "changed": []}))
    return folder / "venv" / "bin" / "python"


def main() -> None:
    folder = Path(sys.argv[1])
    os.chdir(folder)
    become_subreaper()
    warm_process.FORK_S = warm_process.BEGIN_S = 60.0  # where nobody answers, patience() has shorter ones
    if len(sys.argv) > 2:
        be_killed(Node(folder, folder / "venv" / "bin" / "python"), sys.argv[2])
    python, answers = make_environment(folder), {}
    for case in (ranks_that_refuse, ranks_that_are_silent, ranks_that_begin_anew, forks_are_known_before_a_sweep):
        node = Node(folder, python)
        answers[case.__name__] = case(node)
        node.ranks.close()
    for moment in ("importing", "waiting", "pending"):
        for signum in (signal.SIGKILL, signal.SIGSTOP):
            if moment == "pending" and signum == signal.SIGKILL:
                continue
            answers[f"{moment} {signum.name}"] = killed_at(Node(folder, python), moment, signum)
    for moment in ("importing", "waiting", "pending", "claimed"):
        answers[f"launcher {moment}"] = launcher_is_killed(folder, python, moment)
    print(json.dumps(answers))


def become_subreaper() -> None:
    import ctypes

    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER


if __name__ == "__main__":
    main()
