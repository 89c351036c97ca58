"""An attempt: the ranks that torch's process layer started, watched, and signalled by process group."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from guardrun.launcher.attempt.stderr_capture import Relay
from guardrun.launcher.attempt.torch_elastic import (
    Failed,
    Failures,
    close_context,
    describe_failure,
    pass_error_on,
)
from guardrun.launcher.base.processes import ProcessHandle, signal_group
from guardrun.launcher.base.terminal_lines import flush_streams
from guardrun.supervisor.engine.model.events import Rank


class Attempt(Protocol):
    """What the loop needs of an attempt, whoever started its ranks."""

    number: int
    ranks: list[Rank]
    error_files: dict[int, str]
    stderr_files: dict[int, str]
    stderr_from: int
    """As Started has them."""

    @property
    def needs_polling(self) -> bool:
        """Call poll ten times a second, even where no descriptor becomes readable."""

    def filenos(self) -> list[int]:
        """Descriptors that become readable when a rank ends."""

    def alive(self) -> list[Rank]:
        """The ranks that have not been seen to end."""

    def poll(self) -> list[tuple[Rank, int]]:
        """Who has ended since last asked, with the exit code as subprocess has it."""

    def exitcodes(self) -> dict[int, int]:
        """Per global rank, of those that have ended."""

    def signal(self, signum: signal.Signals) -> None:
        """Signal the process group of each rank that is alive."""

    def managed(self) -> set[int]:
        """Child processes whose exit codes are waited for here."""

    def helpers(self) -> set[int]:
        """Child processes that are no part of training, and end by themselves."""

    def describe_failure(self, exitcodes: dict[int, int], stopped_by_us: list[int]) -> str:
        """torchrun's own report of the ranks that failed; empty where none did by itself, or somebody else reports it.

        exitcodes: in the order in which they came.
        """

    def pass_error_on(self, exitcodes: dict[int, int]) -> None:
        """Hand the first failed rank's error file on. exitcodes: in the order in which they came."""

    def close(self, is_everything_dead: bool) -> None:
        """Bring the last output out and close files. Once the ranks are dead, or cannot be killed."""

    def release(self) -> None:
        """Let go what was kept to be read: nobody asks for this attempt any more."""


@dataclass
class _Watched:
    rank: Rank
    read_exitcode: Callable[[], int | None]
    handle: ProcessHandle | None
    """None: it had ended already."""
    exitcode: int | None = None


@dataclass
class LocalAttempt:
    """Ranks that are this process's own children."""

    number: int
    ranks: list[Rank]
    context: Any
    """torch's PContext."""
    store: Any
    """Lives as long as the attempt: the ranks' process groups use it. None where another node serves it."""
    error_files: dict[int, str] = field(default_factory=dict)
    stderr_files: dict[int, str] = field(default_factory=dict)
    """Per global rank."""
    stderr_from: int = -1
    _watched: list[_Watched] = field(default_factory=list)
    _returned: set[int] = field(default_factory=set)
    name: str = ""
    """Of the script, as torchrun calls it."""
    relay: Relay | None = None
    """None: the ranks write to their stderr themselves."""

    def filenos(self) -> list[int]:
        """Pidfds of the ranks that run; one that had ended when it was opened, or got no pidfd, has none."""
        handles = [one.handle for one in self._watched if one.exitcode is None and one.handle is not None]
        return [handle.fileno for handle in handles if handle.fileno is not None]

    def alive(self) -> list[Rank]:
        """Ranks whose exit code `poll` has not read yet; their processes may have ended already."""
        return [one.rank for one in self._watched if one.exitcode is None]

    @property
    def needs_polling(self) -> bool:
        """Functions as ranks (--run-path) wait at their end until their results have been read here."""
        return hasattr(self.context, "_ret_vals") and bool(self.alive())

    def poll(self) -> list[tuple[Rank, int]]:
        """Each rank that has ended comes once, when its last stderr is in its copy (waits a moment for that)."""
        self._take_results()
        ended: list[tuple[Rank, int]] = []
        for one in self._watched:
            if one.exitcode is None and (exitcode := one.read_exitcode()) is not None:
                one.exitcode = exitcode
                if self.relay is not None:
                    self.relay.settle(one.rank.local_rank)  # else its last words might not be there to be read
                self._show_error(one.rank, exitcode)
                ended.append((one.rank, exitcode))
                if one.handle is not None:
                    one.handle.close()
        return ended

    def exitcodes(self) -> dict[int, int]:
        """By global rank, as subprocess has them; what ended since the last `poll` is missing."""
        return {one.rank.global_rank: one.exitcode for one in self._watched if one.exitcode is not None}

    def signal(self, signum: signal.Signals) -> None:
        """Signals each living rank's process group, so its DataLoader workers get it, too."""
        for rank in self.alive():
            signal_group(rank.pid, signum)

    def managed(self) -> set[int]:
        """Pids of all ranks: torch's process layer waits for them, so that nobody else may."""
        return {rank.pid for rank in self.ranks}

    def helpers(self) -> set[int]:
        """The relay's pid while it lives; empty where the ranks write to their stderr themselves."""
        return self.relay.pids if self.relay is not None else set()

    def describe_failure(self, exitcodes: dict[int, int], stopped_by_us: list[int]) -> str:
        """The ranks in the order in which they failed, those that guardrun stopped after all others."""
        failed = self.failures()
        if not failed.keys() - set(stopped_by_us):
            return ""
        came = {rank: place for place, rank in enumerate(exitcodes)}
        order = sorted(failed, key=lambda rank: (rank in stopped_by_us, came.get(rank, len(came))))
        return describe_failure(self.name, {rank: failed[rank] for rank in order})

    def failures(self) -> Failures:
        """Those that did not end with 0, whether by themselves or because they were stopped."""
        return {
            rank.global_rank: Failed(rank.local_rank, rank.pid, exitcode, self.error_files.get(rank.global_rank, ""))
            for rank, exitcode in ((one.rank, one.exitcode) for one in self._watched)
            if exitcode
        }

    def pass_error_on(self, exitcodes: dict[int, int]) -> None:
        """Nothing where TORCHELASTIC_ERROR_FILE is not set, or the rank left no error file."""
        for rank, code in exitcodes.items():
            if code != 0:
                pass_error_on(self.error_files.get(rank, ""), code)
                return

    def close(self, is_everything_dead: bool) -> None:
        """Waits up to 10 s for the relay; the copies of stderr can be read on until `release`."""
        for one in self._watched:
            if one.handle is not None:
                one.handle.close()
        close_context(self.context, is_everything_dead)
        self.store = None
        if self.relay is not None:
            self.relay.end()
        flush_streams()

    def release(self) -> None:
        """Closes the copies of the ranks' stderr; without a relay there are none."""
        if self.relay is not None:
            self.relay.close()

    def _show_error(self, rank: Rank, exitcode: int) -> None:
        """A function's exception is printed by nobody else: torch keeps it for the process that started it."""
        if exitcode > 0 and hasattr(self.context, "_ret_vals"):
            text = read_error_text(self.error_files.get(rank.global_rank, ""))
            with suppress(OSError, ValueError):
                print(text, file=sys.stderr, flush=True)

    def _take_results(self) -> None:
        """Read what functions returned, and let them end once all have."""
        results = getattr(self.context, "_ret_vals", None)
        if results is None or len(self._returned) == len(self.ranks):
            return
        for local_rank, queue in results.items():
            if local_rank not in self._returned and not queue.empty():
                with suppress(EOFError, OSError):
                    queue.get()
                self._returned.add(local_rank)
        if len(self._returned) == len(self.ranks):
            self.context._worker_finished_event.set()


def watch_context(
    number: int,
    context: Any,
    store: Any,
    node: str,
    first_rank: int = 0,
    *,
    name: str = "",
    stderr_from: int = -1,
    relay: Relay | None = None,
    forked: Collection[int] = (),
) -> LocalAttempt:
    """Watch the ranks of a PContext that has been started; the first of them is first_rank in the job.

    forked: pids of those that were.
    """
    pids: dict[int, int] = context.pids()
    ranks = [
        Rank(global_rank=first_rank + local, local_rank=local, pid=pid, node=node, is_forked=pid in forked)
        for local, pid in sorted(pids.items())
    ]
    watched = [_Watched(rank, _exitcode_reader(context, rank.local_rank), _open(rank.pid)) for rank in ranks]
    errors, stderrs = (
        {first_rank + local: file for local, file in (files or {}).items() if file and file != os.devnull}
        for files in (context.error_files, context.stderrs)
    )
    if relay is not None:
        stderrs |= {first_rank + local: relay.copy(local) for local in relay.ranks}
    return LocalAttempt(number, ranks, context, store, errors, stderrs, stderr_from, watched, name=name, relay=relay)


def _open(pid: int) -> ProcessHandle | None:
    """None where it has ended and been waited for already."""
    try:
        return ProcessHandle(pid)
    except ProcessLookupError:
        return None


def _exitcode_reader(context: Any, local_rank: int) -> Callable[[], int | None]:
    handlers = getattr(context, "subprocess_handlers", None)
    if handlers is not None:
        poll: Callable[[], int | None] = handlers[local_rank].proc.poll
        return poll
    process = context._pc.processes[local_rank]
    return lambda: process.exitcode


def read_error_text(error_file: str) -> str:
    """The traceback in torch's error file; empty where there is none."""
    try:
        with open(error_file, encoding="utf-8") as file:
            message = json.load(file)["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if isinstance(message, dict):
        extra = message.get("extraInfo") or {}
        return str(extra.get("py_callstack") or message.get("message") or "")
    return str(message)
