"""Nodes that are isolated are taken out of service in Slurm, too, where the job runs there; asked until it answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from guardrun.supervisor.core.actions import Isolate
from guardrun.supervisor.log import log

if TYPE_CHECKING:
    from guardrun.slurm.drain import Drained

PATIENCE_S = 900.0
"""A controller that is away is back within minutes, or somebody is at work on it."""
LAST_S = 2.5
"""At the run's end: for what is still to be drained, all together."""
LAST_CALL_S = 0.8
"""For each of the three questions that a drain takes, then."""


class Drains:
    """A supervisor's: what is to be drained, and is not yet."""

    def __init__(
        self,
        run_id: str,
        say: Callable[[str, str], object],
        settled: Callable[[Isolate], object],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """say: text, level. settled: Slurm has had its last word on a node. Both are called by any thread."""
        self._run_id, self._say, self._settled = run_id, say, settled
        self._environ = os.environ if environ is None else environ
        self._pending: dict[str, Isolate] = {}
        self._change = threading.Condition()
        self._closing = threading.Event()

    def drain(self, action: Isolate) -> str:
        """What came of it, in a sentence for the user; empty outside of Slurm. Blocks for seconds: for a worker thread.

        Where Slurm is silent it is asked again by a thread that nobody waits for, which says what comes of it.
        """
        if not self._environ.get("SLURM_JOB_ID"):
            self._settled(action)
            return ""
        with self._change:
            self._pending[action.node] = action
        done = self._try(action)
        if not done.is_silent:
            self._settle(action)
            return done.text
        threading.Thread(target=self._persist, args=(action,), name="drain", daemon=True).start()
        return f"{done.text}; it is asked again for {PATIENCE_S / 60:.0f} minutes"

    def close(self) -> None:
        """The run is over: once more, within LAST_S; what is left then is said, and how it is done by hand."""
        self._closing.set()
        with self._change:
            self._change.wait_for(lambda: not self._pending, LAST_S)
            left = list(self._pending.values())
            self._pending.clear()
        for action in left:
            self._give_up(action, "Slurm has not answered")

    def _persist(self, action: Isolate) -> None:
        from guardrun.slurm.again import FIRST_S, Patience, ask_again

        is_last = self._closing.wait(FIRST_S)
        until_s = time.monotonic() + (0.0 if is_last else PATIENCE_S)
        done = ask_again(lambda: self._try(action), Patience(until_s, self._closing.wait))
        if done.is_silent and not self._closing.is_set():
            self._give_up(action, done.text)
            self._closing.wait()
            done = self._try(action)
        if not done.is_silent and self._settle(action):
            self._say(done.text, "info")

    def _try(self, action: Isolate) -> Drained:
        from guardrun.slurm.commands import TIMEOUT_S, Slurm
        from guardrun.slurm.drain import drain

        timeout_s = LAST_CALL_S if self._closing.is_set() else TIMEOUT_S
        done = drain(action.node, self._reason(action), Slurm(self._environ, timeout_s))
        log.info("drained", node=action.node, state=done.state.value, text=done.text)
        return done

    def _reason(self, action: Isolate) -> str:
        from guardrun.slurm.drain import drain_reason

        summary = action.summary if action.cause not in action.summary else ""
        return drain_reason(self._run_id, action.incident, action.cause, summary)

    def _settle(self, action: Isolate) -> bool:
        """False where it has been given up meanwhile."""
        is_mine = self._forget(action)
        if is_mine:
            self._settled(action)
        return is_mine

    def _forget(self, action: Isolate) -> bool:
        with self._change:
            is_mine = self._pending.get(action.node) is action
            if is_mine:
                del self._pending[action.node]
                self._change.notify_all()
        return is_mine

    def _give_up(self, action: Isolate, why: str) -> None:
        """Not settled: whoever continues the run tries again."""
        from guardrun.slurm.drain import by_hand

        hand = by_hand(action.node, self._reason(action))
        self._say(f"{action.node} is not drained ({why}); by hand: {hand}", "warn")
