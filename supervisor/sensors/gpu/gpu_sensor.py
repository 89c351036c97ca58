"""The GPUs, read through a process of their own.

- A call into the driver that does not return is told (`is_silent`) with the call's name; its process is let go of, and
  another one is tried after pauses that grow. Processes that even SIGKILL does not end are at most MAX_STUCK.
- A process that ends (the library crashes, the driver is reloaded) is told as trouble and replaced likewise.
- Where there is no driver, there is no process between rare tries.
- Xids are told as soon as the driver tells of them: the descriptor is ready then.

Not all is read at each turn: what changes by the second is, health and links every MEDIUM_S, names and limits every
SLOW_S; the first turn of a process reads everything.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from guardrun.supervisor.health.base.readings import Happening, Readout, Sample
from guardrun.supervisor.sensors.gpu.device_presence import may_have_gpus
from guardrun.supervisor.sensors.gpu.nvml_process import EndedError, NvmlProcess, how_it_ended
from guardrun.supervisor.sensors.gpu.nvml_wire import (
    FAST,
    MEDIUM,
    SLOW,
    TIERS,
    Happened,
    Here,
    Over,
    Ready,
    ToSensor,
    Turn,
    TurnAnswer,
    Where,
)

MEDIUM_S = 10.0
SLOW_S = 60.0
PATIENCE_S = 8.0
"""How long a turn may take before it is a call that does not return. Usual: some ms a device."""
INIT_PATIENCE_S = 90.0
"""Initialising NVML loads the driver's state of every device: seconds each where persistence mode is off."""
WHERE_S = 0.5
END_S = 0.5
"""A process that is not stuck ends within ms of being killed."""
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 600.0
ABSENT_PAUSE_S = 600.0
"""Between tries where there is no driver."""
GOOD_TURNS = 10
"""After so many turns that went well, the next trouble is a first one again."""
MAX_STUCK = 3
"""Processes that cannot be ended; with so many, no other is tried."""
MAX_EVENTS = 256
"""Kept until the next read."""


class GpuSensor:
    """Reads all GPUs of the node. Called by one thread; that thread's end is the NVML process's, too."""

    name = "gpu"

    def __init__(
        self,
        *,
        root: str = "/",
        environment: Mapping[str, str] | None = None,
        period_s: float = 2.0,
        patience_s: float = PATIENCE_S,
        init_patience_s: float = INIT_PATIENCE_S,
        first_pause_s: float = FIRST_PAUSE_S,
        tiers: Sequence[str] = (),
    ) -> None:
        """environment: the process's own, where it is not ours (LD_LIBRARY_PATH decides which driver library).

        tiers: read these at each turn, and never others.
        """
        self.period_s = period_s
        self.timeout_s = patience_s + 2 * WHERE_S + 1
        self.doing = ""
        self._patience_s = patience_s
        self._init_patience_s = init_patience_s
        self._first_pause_s = first_pause_s
        self._only = list(tiers)
        self._root = root
        self._environment = os.environ if environment is None else environment
        self._process: NvmlProcess | None = None
        self._ready = select.epoll()
        self._stuck: list[NvmlProcess] = []
        self._events: list[Happening] = []
        self._is_initialised = False
        self._started_s = 0.0
        self._seq = 0
        self._good_turns = 0
        self._turn_s = self._medium_s = self._slow_s = float("-inf")
        self._next_try_s = float("-inf")
        self._pause_s = 0.0
        self._why = ""
        self._is_silent = False

    def fileno(self) -> int:
        """Ready when there is something to read before the next turn."""
        return self._ready.fileno()

    def close(self) -> None:
        """Let go of the process, and wait for its end no longer than it takes where nothing is wrong."""
        if self._process is not None:
            self._let_go(self._process)
        deadline_s = time.monotonic() + END_S
        self._reap_stuck()
        while self._stuck and time.monotonic() < deadline_s:
            time.sleep(0.005)
            self._reap_stuck()
        self._ready.close()

    @property
    def pid(self) -> int:
        """Of the NVML process; 0 where there is none."""
        return self._process.pid if self._process else 0

    @property
    def stuck(self) -> list[int]:
        """Pids of processes that have been killed and have not ended."""
        return [process.pid for process in self._stuck]

    def read(self, now_s: float) -> Readout:
        """One turn, or what has happened since the last where it was that which woke us."""
        self._reap_stuck()
        if self._process is None and not self._may_start(now_s):
            return self._make_readout(now_s)
        if self._process is None and not may_have_gpus(Path(self._root), self._environment):
            self._give_up("there is no NVIDIA device here, and no driver", is_absent=True)
            return self._make_readout(now_s)
        try:
            process = self._process or self._start(now_s)
            self._take_waiting(process)
            if self._events and now_s - self._turn_s < 0.75 * self.period_s:
                return self._make_readout(now_s, is_partial=True)
            if not self._is_initialised and not self._wait_initialised(process):
                return self._make_readout(now_s, trouble="NVML is being initialised")
            return self._take_turn(process, now_s)
        except _UnresponsiveError as silent:
            self._give_up(str(silent), is_silent=True)
        except _OverError as over:
            self._give_up(over.reason, is_absent=over.is_absent)
        except EndedError as error:
            self._give_up(self._ending(error))
        except OSError as error:
            self._give_up(f"no process for NVML: {error}")
        return self._make_readout(now_s)

    # A turn ----------------------------------------------------------------------------------------------

    def _take_turn(self, process: NvmlProcess, now_s: float) -> Readout:
        self._seq += 1
        tiers = self._tiers(now_s)
        process.send(Turn(seq=self._seq, tiers=tiers))
        told = self._hear_until(process, self._is_mine, self._patience_s) or self._ask_where(process)
        if not isinstance(told, TurnAnswer):
            where = f" ({told.doing})" if isinstance(told, Here) and told.doing else ""
            raise _UnresponsiveError(f"NVML's call has not returned within {self._patience_s:g} s{where}")
        self._turn_s = now_s
        self._medium_s = now_s if MEDIUM in tiers else self._medium_s
        self._slow_s = now_s if SLOW in tiers else self._slow_s
        self._good_turns += 1
        self._is_silent, self._why = False, ""
        if self._good_turns >= GOOD_TURNS:
            self._pause_s = 0.0
        return self._make_readout(now_s, samples=told.samples, trouble=told.trouble, is_partial=len(tiers) < len(TIERS))

    def _is_mine(self, frame: ToSensor) -> bool:
        return isinstance(frame, TurnAnswer) and frame.seq == self._seq

    def _tiers(self, now_s: float) -> list[str]:
        if self._only:
            return self._only
        is_medium = now_s - self._medium_s >= MEDIUM_S - self.period_s / 2
        is_slow = now_s - self._slow_s >= SLOW_S - self.period_s / 2
        return [FAST, *([MEDIUM] if is_medium else []), *([SLOW] if is_slow else [])]

    def _wait_initialised(self, process: NvmlProcess) -> bool:
        """Say whether NVML is ready. Raises _UnresponsiveError once it has had all the time there is."""
        ready = self._hear_until(process, lambda frame: isinstance(frame, Ready), self._patience_s)
        self._is_initialised = ready is not None
        spent_s = time.monotonic() - self._started_s
        if not self._is_initialised and spent_s > self._init_patience_s:
            raise _UnresponsiveError(f"NVML has not come up within {spent_s:.0f} s")
        return self._is_initialised

    def _hear_until(
        self, process: NvmlProcess, is_wanted: Callable[[ToSensor], bool], patience_s: float
    ) -> ToSensor | None:
        """The frame that is wanted, or None; events that come meanwhile are kept."""
        deadline_s = time.monotonic() + patience_s
        while (frame := process.hear(deadline_s)) is not None:
            self._note(frame)
            if is_wanted(frame):
                return frame
        return None

    def _take_waiting(self, process: NvmlProcess) -> None:
        while (frame := process.hear(0.0)) is not None:
            self._note(frame)

    def _note(self, frame: ToSensor) -> None:
        if isinstance(frame, Happened) and len(self._events) < MAX_EVENTS:
            self._events.append(frame.happening)
        elif isinstance(frame, Ready):
            self._is_initialised = True
        elif isinstance(frame, Over):
            raise _OverError(frame.reason, frame.is_absent)

    def _ask_where(self, process: NvmlProcess) -> ToSensor | None:
        """Which call it is stuck in, as it says itself; or the turn's answer, where that comes after all."""
        try:
            process.send(Where())
        except EndedError:
            return None
        return self._hear_until(process, lambda frame: isinstance(frame, Here) or self._is_mine(frame), WHERE_S)

    # The process -----------------------------------------------------------------------------------------

    def _may_start(self, now_s: float) -> bool:
        return now_s >= self._next_try_s and len(self._stuck) < MAX_STUCK

    def _start(self, now_s: float) -> NvmlProcess:
        self._is_initialised = False
        self._started_s = time.monotonic()
        self._good_turns = 0
        self._medium_s = self._slow_s = float("-inf")
        self._process = NvmlProcess(self._root, self._environment)
        self._ready.register(self._process.fileno(), select.EPOLLIN)
        return self._process

    def _give_up(self, why: str, *, is_silent: bool = False, is_absent: bool = False) -> None:
        """Let go of the process and try another one later: much later where there is no driver."""
        if self._process is not None:
            self._let_go(self._process)
        self._why = why
        self._is_silent = is_silent
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or self._first_pause_s)
        # From now on, not from when the turn began: it may have taken long.
        self._next_try_s = time.monotonic() + (ABSENT_PAUSE_S if is_absent else self._pause_s)

    def _let_go(self, process: NvmlProcess) -> None:
        self._ready.unregister(process.fileno())
        process.let_go()
        self._stuck.append(process)
        self._process = None

    def _reap_stuck(self) -> None:
        self._stuck = [process for process in self._stuck if process.reap() is None]

    def _ending(self, error: EndedError) -> str:
        """How the process ended. It has closed its end, so it is about to be reaped, unless the driver holds it."""
        if self._process is None:
            return f"the process for NVML ended: {error}"
        deadline_s = time.monotonic() + END_S
        while (status := self._process.reap()) is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return f"the process for NVML ended: {error if status is None else how_it_ended(status)}"

    def _make_readout(
        self, now_s: float, *, samples: list[Sample] | None = None, trouble: str = "", is_partial: bool = False
    ) -> Readout:
        events, self._events = self._events, []
        return Readout(
            sensor=self.name,
            at_s=now_s,
            samples=samples or [],
            happenings=events,
            trouble=trouble or self._why_now(),
            is_partial=is_partial,
            is_silent=self._is_silent,
        )

    def _why_now(self) -> str:
        if self._process is None and len(self._stuck) >= MAX_STUCK:
            return f"{self._why}; {len(self._stuck)} processes are stuck in the driver, no other is tried"
        return self._why


class _UnresponsiveError(Exception):
    """A call into NVML does not return."""


class _OverError(Exception):
    """The process has ended by itself and said why."""

    def __init__(self, reason: str, is_absent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_absent = is_absent
