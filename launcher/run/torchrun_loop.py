"""The loop where torchrun's own agent runs the attempts: the same facts, and of the orders only what it leaves open.

An attempt is stopped by ending its ranks: the agent takes that for a failure and does what its restarts allow. Only
when the agent has ended is the attempt told to be over.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from guardrun.launcher.attempt.attempt_start import resume_arguments, run_environment
from guardrun.launcher.attempt.torchrun_agent import AgentAttempt
from guardrun.launcher.attempt.torchrun_agent_child import AgentChild, Launch
from guardrun.launcher.control import fallback
from guardrun.launcher.control.control_channel import Order
from guardrun.launcher.creation.run_creation import OpenRun
from guardrun.launcher.run.launcher_loop import Loop
from guardrun.supervisor.config import Config
from guardrun.supervisor.wire.control_messages import Finish, Start, Stop

POLL_S = 0.05
"""How often the agent's children are looked at while all are known."""

SEEKING_POLL_S = 0.01
"""How often while they are not: a rank that ends sooner is missed, and known by the agent's word alone."""

AGENT_MARGIN_S = 5.0
"""The agent gives its ranks --shutdown-timeout itself; it is given this much longer."""


class AgentStarter:
    """Starts the agent, once."""

    def __init__(self, run: OpenRun, config: Config, world_size: int, launch: Launch) -> None:
        """Fork the agent, which waits. launch: torchrun, as `AgentChild` runs it. Raises OSError."""
        self._run, self._config, self._world_size = run, config, world_size
        self._child = AgentChild(launch)

    @property
    def world_size(self) -> int:
        """Ranks that torchrun's agent is to have on this node."""
        return self._world_size

    def start(self, order: Start, on_serving: Callable[[str, int], object]) -> AgentAttempt:
        """Have the agent begin; the order is for its attempt 0. It makes its own attempts: none is ever detailed."""
        changes = run_environment(self._run, self._config, None, order.checkpoint, first_attempt=order.attempt)
        self._child.begin(changes, resume_arguments(self._config.checkpoint.resume_args, order.checkpoint))
        return AgentAttempt(self._child, self._run.file.node, self._world_size, first_number=order.attempt)

    def close(self) -> None:
        """End an agent that has not begun."""
        self._child.close()


@dataclass
class AgentLoop(Loop):
    """A run of torchrun's agent."""

    poll_s: float = POLL_S
    _kill_s: float | None = None

    def _start(self, order: Start) -> None:
        """The agent begins; its attempts are told as they are found."""
        if self.attempt is None:
            self.checkpoint, self._starts = order.checkpoint, 1
            self.attempt, self.is_over = self.starter.start(order, lambda address, port: None), False

    def _note_exits(self, now_s: float) -> None:
        attempt = self.attempt
        if self.is_over or not isinstance(attempt, AgentAttempt):
            return
        for rank, exitcode in attempt.poll():
            self._tell_exit(rank, exitcode)
        if attempt.find_next(now_s):
            self._announce(attempt)
        if self._kill_s is not None and now_s >= self._kill_s:
            attempt.signal_ranks(signal.SIGKILL)
            self._kill_s = None
        code = attempt.child.poll()
        if code is not None and self._stopping is None and not attempt.alive():
            if unseen := attempt.take_unseen(code):
                self._announce(attempt)
                for rank, exitcode in unseen:
                    self._tell_exit(rank, exitcode)
            self._begin_stop(now_s, grace_s=0.0)

    def _patience_s(self) -> float:
        patience_s = super()._patience_s()
        is_seeking = isinstance(self.attempt, AgentAttempt) and not self.is_over and not self.attempt.is_whole
        return min(patience_s, SEEKING_POLL_S) if is_seeking else patience_s

    def _announce(self, attempt: AgentAttempt) -> None:
        self.number, self._exitcodes, self._kill_s = attempt.number, {}, None
        self._tell_started(attempt, self.checkpoint)

    def _obey(self, order: Order, now_s: float) -> None:
        if isinstance(order, Stop):
            if order.attempt == self.number and isinstance(self.attempt, AgentAttempt) and not self.is_over:
                if order.is_last:
                    self.attempt.signal(signal.SIGTERM)  # it passes that on, and starts none anew
                elif not self._exitcodes:  # else the agent is stopping the others, and is to blame the one that fell
                    self.attempt.signal_ranks(signal.SIGTERM)
                self._kill_s = now_s + order.grace_s
        elif isinstance(order, Finish) or self.attempt is None:
            super()._obey(order, now_s)

    def _own_order(self) -> Order | None:
        """Without a supervisor, the agent's end is the run's."""
        if self.attempt is None and self._signum is None and self._finish is None:
            return Start(attempt=0)
        if not self.is_over or self._finish is not None or self._signum is not None:
            return None
        failure = fallback.first_failure(self._exitcodes, self.stopped_by_us)
        return Finish(exit_code=0 if failure is None else fallback.exit_status(failure))

    def _status(self, now_s: float) -> int | None:
        status = super()._status(now_s)
        code = self.attempt.child.poll() if isinstance(self.attempt, AgentAttempt) else None
        return fallback.exit_status(code) if status == 0 and code else status
