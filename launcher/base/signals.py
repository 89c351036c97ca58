"""Signals to guardrun: noted by the handlers, read by the loop, which they wake.

Some of them announce the job's end, and leave the ranks time to save.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar, cast

from guardrun.supervisor.config import Config
from guardrun.supervisor.engine.model.events import Rank

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torchrun's --signals-to-handle."""

Handler = Callable[[int, FrameType | None], Any]
T = TypeVar("T")


class Interrupted(Exception):
    """A signal has come, which does not let anybody wait any longer."""


def parse_signals(text: str) -> list[signal.Signals]:
    """Parse --signals-to-handle. Unknown names, and those that no process can handle, are left out as torchrun does."""
    found: list[signal.Signals] = []
    for name in text.split(","):
        signum = getattr(signal.Signals, name.strip(), None)
        if signum is not None and signum not in (signal.SIGKILL, signal.SIGSTOP) and signum not in found:
            found.append(signum)
    return found


class Signals:
    """Takes signals over until closed. `fileno()` becomes readable with each one, SIGCHLD too."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._pending: deque[signal.Signals] = deque()
        self._before: dict[signal.Signals, Any] = {}
        self._left_out: set[signal.Signals] = set()
        """Ignored when this began, and to stay so."""
        self.warnings: frozenset[signal.Signals] = frozenset()
        """Those that only say what is to come: nobody waits for less because of them."""
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._inherited: Handler | None = None
        """What a forked rank (--start-method fork) does with a signal: as under torchrun."""
        self._install_handler(signal.SIGCHLD)
        self.handle(parse_signals(DEFAULT_SIGNALS))

    def handle(self, signals: Iterable[signal.Signals]) -> None:
        """Take these over, too."""
        for signum in signals:
            self._install_handler(signum)

    def handle_again(self) -> None:
        """Take all back: torch's process layer installs its own handlers whenever it starts ranks."""
        for signum in list(self._before):
            self._install_handler(signum)
        for signum in self._left_out:
            signal.signal(signum, signal.SIG_IGN)

    def replace_torch_handler(self) -> None:
        """Have torch's process layer install this object's handler where it would install its own.

        Its own raises an exception wherever the main thread happens to be.
        """
        module: Any = sys.modules.get("torch.distributed.elastic.multiprocessing.api")
        name = "_terminate_process_handler"
        if module is not None and getattr(module, name, self._note) != self._note:
            self._inherited = getattr(module, name)
            setattr(module, name, self._note)

    def add(self, signum: signal.Signals) -> None:
        """One that was noted elsewhere."""
        self._pending.append(signum)

    def pop_pending(self) -> list[signal.Signals]:
        """The signals that came since last asked, SIGCHLD left out."""
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass
        taken: list[signal.Signals] = []
        while self._pending:
            taken.append(self._pending.popleft())
        return taken

    def run(self, work: Callable[[], T]) -> T:
        """Make a call by a thread of its own, which a signal that comes meanwhile leaves behind, if it is no warning.

        Raises Interrupted then (the signal is still to be taken), and what the call raises.
        """
        answers: deque[tuple[T | None, BaseException | None]] = deque()
        lock, is_awaited = threading.Lock(), True

        def job() -> None:
            try:
                answers.append((work(), None))
            except BaseException as error:
                answers.append((None, error))
            with lock:
                if is_awaited:
                    os.write(self._writer, b"\0")

        threading.Thread(target=job, name="guardrun-waits", daemon=True).start()
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        try:
            while not answers:
                if ends := [signum for signum in self._pending if signum not in self.warnings]:
                    raise Interrupted(f"{ends[0].name} came first")
                poller.poll(1000)
                with suppress(BlockingIOError):
                    os.read(self._reader, 4096)
        finally:
            with lock:
                is_awaited = False
            os.write(self._writer, b"\0")  # what came meanwhile is still to be looked at
        result, error = answers[0]
        if error is not None:
            raise error
        return cast("T", result)

    def fileno(self) -> int:
        """To be polled for reading; the same descriptor for as long as this object is open."""
        return self._reader

    def close(self) -> None:
        """Put the former handlers back."""
        for signum, handler in self._before.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def _install_handler(self, signum: signal.Signals) -> None:
        before = signal.getsignal(signum)
        if signum == signal.SIGHUP and before == signal.SIG_IGN:
            self._left_out.add(signum)  # nohup: the user wants the run to outlive the terminal
            return
        handler = self._ignore if signum == signal.SIGCHLD else self._note
        if before != handler:
            signal.signal(signum, handler)
            self._before.setdefault(signum, before)

    def _ignore(self, signum: int, frame: FrameType | None) -> None:
        """SIGCHLD only has to wake the loop."""

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum in self._left_out:
            return  # torch's process layer has taken it over for a moment
        if os.getpid() == self._owner:
            self._pending.append(signal.Signals(signum))
        elif self._inherited is not None:
            self._inherited(signum, frame)


# Preemption signals -------------------------------------------------------------------------------------------------
# Signals that say the job is about to end, and leave the ranks time to save: which they are, and who hears them.
#
# Under Slurm SIGTERM is one: it comes before SIGKILL, by GraceTime at a preemption and by KillWait at a time limit.
# Signals that the user gives to torchrun's own --signals-to-handle keep torchrun's meaning.


def choose_notices(config: Config, torch_signals: str, environ: Mapping[str, str]) -> list[signal.Signals]:
    """The signals that are notices. torch_signals: --signals-to-handle."""
    table = config.preemption
    is_wanted = table.sigterm == "always" or (table.sigterm == "slurm" and bool(environ.get("SLURM_JOB_ID")))
    # With [policy] act = false nobody would stop the ranks.
    is_term = is_wanted and config.policy.act
    found = _own([*table.signals, *(["TERM"] if is_term else [])], torch_signals)
    # What this process was told to ignore, its ranks ignore, as under torchrun. (Under Slurm they do in any case.)
    return [signum for signum in found if environ.get("SLURM_JOB_ID") or signal.getsignal(signum) != signal.SIG_IGN]


def _own(names: Iterable[str], torch_signals: str) -> list[signal.Signals]:
    """Those that are not given to torchrun's way of handling signals by the user's own word."""
    theirs = parse_signals(torch_signals or DEFAULT_SIGNALS)
    asked = [] if set(theirs) == set(parse_signals(DEFAULT_SIGNALS)) else theirs
    found = parse_signals(",".join(name if name.startswith("SIG") else f"SIG{name}" for name in names))
    return [signum for signum in found if signum not in asked]


def spared_signals(table: Mapping[str, Any], environ: Mapping[str, str]) -> list[int]:
    """Those that the ranks are to outlive: Slurm may send them to every process of a job. table: [preemption]."""
    if not environ.get("SLURM_JOB_ID") or table.get("forward"):
        return []
    return [int(signum) for signum in _own(table.get("signals", []), "") if signum != signal.SIGTERM]


def parse_caught(status: str) -> int:
    """SigCgt of /proc/PID/status: bit N-1 is set where the process has a handler for signal N."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16)
    return 0


def catches(pid: int, signum: signal.Signals) -> bool:
    """Say whether a process has a handler of its own for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return bool(parse_caught(file.read()) & 1 << (signum - 1))
    except (OSError, ValueError, IndexError):
        return False


def give(ranks: Iterable[Rank], signum: signal.Signals) -> None:
    """Send a signal to the ranks alone: their data workers have no handler for it, and would die."""
    for rank in ranks:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(rank.pid, signum)
