"""When this node has a warm process, and which ranks come of it. docs/warm-ranks.md has the rules.

Whatever goes wrong here is written to the log once, and ranks are started as ever: it is never a run's error.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from guardrun.hooks.wire.board import import_names
from guardrun.launcher.base.terminal_lines import Log
from guardrun.launcher.warm.warm_process import ENDED, ForkedProcess, WarmError, WarmProcess
from guardrun.supervisor.collect.host.memory_limits import MemoryLimits
from guardrun.supervisor.wire.warm_state import WARM_FILE, WarmState

TRIES = 4
"""Processes that are started until one has imported nothing that it must not."""
TRIAL_S = 20.0
"""A rank that fails within so long after it was forked may have failed for that."""
LOOK_EVERY_S = 5.0
"""At the memory that is left."""
SETTLED_S = 1.0
"""After an attempt's beginning, the next one's ranks are forked: not while these import what they import."""
CHECKED_S = 1.0
"""For so long it stands that installed modules are what they were."""
LEFT_OUT_FILE = "imports-left-out.json"
REFUSED_FILE, ENDED_FILE = "warm-refused", "warm-ended"
"""A rank that has begun anew, cold, says why; one that could not do that any more, or a child of one, says it again."""


def takes_warm_ranks(entrypoint: object, arguments: Sequence[str]) -> bool:
    """Whether ranks are plain Pythons: `python -u SCRIPT` or `python -u -m MODULE`, as torchrun starts them."""
    return entrypoint == os.environ.get("PYTHON_EXEC", sys.executable) and list(arguments[:1]) == ["-u"]


@dataclass
class WarmRanks:
    """Of a run, on this node."""

    command: list[str]
    """A rank's, without what makes it resume."""
    sockets: Path
    free_bytes: int
    count: int
    """Ranks on this node."""
    log: Log
    process: WarmProcess | None = None
    is_ready: bool = False
    is_over: bool = False
    """There is none any more in this run."""
    _environment: dict[str, str] = field(default_factory=dict)
    """Of ranks, but for what is each one's own."""
    _tries: int = 0
    _looked_s: float = 0.0
    _began: dict[int, float] = field(default_factory=dict)
    """Per pid of a rank that was forked, when."""
    _begun_s: float = -math.inf
    """The last attempt."""
    _source: WarmProcess | None = None
    """Where that one's ranks come from."""

    def note_environment(self, environment: Mapping[str, str], own: Mapping[str, object]) -> None:
        """What an attempt's ranks are started with. own: what is theirs alone."""
        self._environment = {name: value for name, value in environment.items() if name not in own}

    def turn(self, now_s: float, *, is_used: bool) -> None:
        """Start it once it is known what ranks import and set; end it where memory ends; read its answers.

        is_used: ranks train here, or may have to.
        """
        if self.is_over:
            return
        if (why := self._read(REFUSED_FILE)) or (why := self._short_of_memory(now_s)):
            self.give_up(why)
        elif self.process is None:
            if is_used and all(path.exists() for path in self._reports()):
                self._start()
        elif (answer := self.process.read()) is not None:
            self._note(answer)
        elif is_used and self.is_ready and now_s - self._begun_s > SETTLED_S:
            self._fork_ahead()

    def fileno(self) -> int | None:
        """Readable when there is an answer."""
        return None if self.process is None else self.process.fileno()

    def pids(self) -> set[int]:
        """The process, and those that it has forked, which are no part of training."""
        return set() if self.process is None else {self.process.pid, *self.process.waiting()}

    def settle(self) -> None:
        """Wait until all that it has forked are known: before what is not known is ended."""
        if self.process is not None and self.process.is_busy:
            try:
                self.process.settle()
            except WarmError as error:
                self.give_up(str(error))

    def prepare(self) -> None:
        """An attempt is about to be ended, so that another one can begin: what that needs can be done meanwhile."""
        if self.process is None or not self.is_ready:
            return
        self._fork_ahead()
        if self.process is not None and time.monotonic() - self.process.checked_s > CHECKED_S:
            try:
                self.process.check()
            except WarmError as error:
                self.give_up(str(error))

    def begin(self) -> bool:
        """Have an attempt's ranks ready, to be taken one after the other. False: they are to be started as ever."""
        self._began, self._begun_s, self._source = {}, time.monotonic(), None
        if self._read(REFUSED_FILE):
            return False
        self.prepare()
        self.settle()
        self._fork_ahead()
        self.settle()
        if self.process is None or not self.is_ready:
            return False
        self._source = self.process
        self._source.forget_told()
        return True

    def _fork_ahead(self) -> None:
        """Fork what is lacking of an attempt's ranks, unless that has been asked for."""
        if self.process is None or not self.is_ready or self.process.is_busy:
            return
        if (lacking := self.count - len(self.process.waiting())) <= 0:
            return
        try:
            self.process.fork(lacking)
        except WarmError as error:
            self.give_up(str(error))

    def claim(
        self, command: Sequence[str], environment: Mapping[str, str], stdout: Any, stderr: Any
    ) -> ForkedProcess | None:
        """A rank with these files as its output (None: this process's own). None: it is to be started as ever."""
        if self.process is None or not self.is_ready:
            return None
        streams = [0, 1 if stdout is None else stdout.fileno(), 2 if stderr is None else stderr.fileno()]
        try:
            process = self.process.claim(command, environment, streams)
        except WarmError as error:
            self.give_up(str(error))
            return None
        self._began[process.pid] = time.monotonic()
        return process

    def find_refused(self) -> set[int]:
        """Of an attempt's processes those that are no ranks after all, and have been ended."""
        refused = self._source.find_refused() if self._source is not None else {}
        for pid, why in refused.items():
            self._began.pop(pid, None)
            self.give_up(why)
        if self._began:
            self.log.write("warm_ranks_started", pids=list(self._began))
        return set(refused)

    def forked(self) -> set[int]:
        """Of an attempt's processes those that were, once `find_refused` has said which are not."""
        return {*self._began}

    def note_exit(self, pid: int, exitcode: int) -> str:
        """A rank has ended by itself. Returns why it, or a child of it, could not go on as one that was forked."""
        began_s = self._began.pop(pid, None)
        if began_s is None or not exitcode:
            return ""
        if time.monotonic() - began_s < TRIAL_S:
            self.give_up(
                self._read(REFUSED_FILE) or f"a rank that was forked ended with {exitcode} within {TRIAL_S:g} s"
            )
        return self._read(ENDED_FILE)

    def give_up(self, why: str) -> None:
        """From now on all ranks are started as ever."""
        if not self.is_over:
            self._show(WarmState(state="given up", why=why))
            self.log.write("warm_given_up", why=why)
        self.is_over = True
        self.close()

    def end(self) -> None:
        """No attempt comes after this one: nothing is kept for it."""
        self.is_over = True
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        process, self.process, self.is_ready = self.process, None, False
        if process is not None:
            process.close()

    def _reports(self) -> list[Path]:
        """What each rank leaves when it has done a step."""
        return [self.sockets / name for name in import_names(self.count)]

    def _start(self) -> None:
        self._tries += 1
        asked = {"imports": [str(path) for path in self._reports()], "left_out": str(self.sockets / LEFT_OUT_FILE)}
        try:
            self.process = WarmProcess(self.command, self._environment, asked)
        except OSError as error:
            self.give_up(str(error))
            return
        self.log.write("warm_started", pid=self.process.pid)
        self._show(WarmState(state="importing"))

    def _note(self, answer: dict[str, Any]) -> None:
        if ready := answer.get("ready"):
            self.is_ready = True
            memory_mb = ready.pop("memory_bytes", 0) >> 20
            self._show(WarmState(state="ready", memory_mb=memory_mb, modules=int(ready.get("modules", 0))))
            self.log.write("warm_ready", memory_mb=memory_mb, **ready)
        elif answer.get("again") and self._tries < TRIES:
            self.log.write("warm_leaves_out", modules=answer["again"], why=answer.get("why"))
            self.close()
        else:
            self.give_up(str(answer.get("useless") or answer.get("why") or ENDED))

    def _show(self, state: WarmState) -> None:
        path = self.sockets / WARM_FILE
        with suppress(OSError):  # the disk is full: nobody hears of it
            path.with_suffix(".new").write_bytes(msgspec.json.encode(state))
            path.with_suffix(".new").replace(path)

    def _read(self, name: str) -> str:
        with suppress(OSError):
            return (self.sockets / name).read_text("utf-8", "replace")[:500]
        return ""

    def _short_of_memory(self, now_s: float) -> str:
        if now_s - self._looked_s < LOOK_EVERY_S:
            return ""
        self._looked_s = now_s
        nearest = MemoryLimits().nearest(os.getpid(), {})
        if nearest is None or nearest.room >= self.free_bytes:
            return ""
        return f"{nearest.room >> 20} MB of memory are left, less than [launcher] warm_free_mb"
