"""Nodes that are isolated are taken out of service in Slurm, too, where the job runs there; asked until it answers.

One that was lost, and is back before that, is left alone (`withdraw`); a drain that was under way then is undone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model.actions import Isolate

if TYPE_CHECKING:
    from guardrun.slurm.client.drain import Drained

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
        print_line: Callable[[str, str], object],
        settled: Callable[[Isolate, str], object],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """say: text, level. settled: Slurm has had its last word on a node.

        settled gets what keeps other runs from the node now, as IsolationSettled has it. Both are called by any thread.
        """
        self._run_id, self._print_line, self._settled = run_id, print_line, settled
        self._environ = os.environ if environ is None else environ
        self._pending: dict[str, tuple[Isolate, str]] = {}
        """Node → what it is isolated for, and what has been done of it."""
        self._asking: list[Isolate] = []
        """Of which Slurm is being asked now: what comes of it is not known."""
        self._withdrawn: dict[tuple[str, str], bool] = {}
        """Node and incident → whether it is to be told yet."""
        self._change = threading.Condition()
        self._closing = threading.Event()

    def drain(self, action: Isolate, how: str = "") -> str:
        """What came of it, in a sentence for the user; empty outside of Slurm. Blocks for seconds: for a worker thread.

        how: what has been done already to keep other runs from the node; empty: nothing.
        Where Slurm is silent it is asked again by a thread that nobody waits for, which says what comes of it.
        """
        with self._change:
            is_slurm = bool(self._environ.get("SLURM_JOB_ID"))
            is_wanted = is_slurm and not self.is_withdrawn(action)
            if is_wanted:
                self._pending[action.node] = (action, how)
        if not is_wanted:
            self._settled(action, how)
            return f"{action.node} is back: it is not drained" if is_slurm else ""
        done = self._try(action)
        if not done.is_silent:
            return self._settle(action, done)
        threading.Thread(target=self._persist, args=(action,), name="drain", daemon=True).start()
        return f"{done.text}; it is asked again for {PATIENCE_S / 60:.0f} minutes"

    def withdraw(self, node: str, incident: str) -> None:
        """The node is back: what of its isolation is not done yet is not done.

        Where that was under way the user reads so; the thread that asks Slurm says it, if it is asking just now.
        """
        with self._change:
            self._withdrawn[node, incident] = False
            action, how = self._pending.get(node, (None, ""))
            if action is None or action.incident != incident:
                return
            del self._pending[node]
            is_asking = self._withdrawn[node, incident] = action in self._asking
            self._change.notify_all()
        if how:
            self._settled(action, how)
        if not is_asking:
            self._print_line(_not_drained(node), "info")

    def skip(self, action: Isolate) -> None:
        """The node stays in service, and nothing else is to be done."""
        self._settled(action, "")

    def is_withdrawn(self, action: Isolate) -> bool:
        """Whether the node has come back, so that this isolation is no longer wanted."""
        return (action.node, action.incident) in self._withdrawn

    def close(self) -> None:
        """The run is over: once more, within LAST_S; what is left then is said, and how it is done by hand."""
        self._closing.set()
        with self._change:
            self._change.wait_for(lambda: not self._pending, LAST_S)
            left = list(self._pending.values())
            self._pending.clear()
        for action, _ in left:
            self._give_up(action, "Slurm has not answered")

    def _persist(self, action: Isolate) -> None:
        from guardrun.slurm.client.commands import FIRST_WAIT_S as FIRST_S
        from guardrun.slurm.client.commands import Patience, ask_again

        is_last = self._closing.wait(FIRST_S)
        until_s = time.monotonic() + (0.0 if is_last else PATIENCE_S)
        done = ask_again(lambda: self._try(action), Patience(until_s, self._closing.wait))
        if done.is_silent and not self._closing.is_set():
            self._give_up(action, done.text)
            self._closing.wait()
            done = self._try(action)
        if not done.is_silent and (text := self._settle(action, done)):
            self._print_line(text, "info")

    def _try(self, action: Isolate) -> Drained:
        from guardrun.slurm.client.commands import TIMEOUT_S, Slurm
        from guardrun.slurm.client.drain import Drained, DrainState, drain

        with self._change:
            if not self._is_pending(action):
                return Drained(DrainState.NOTHING, f"{action.node} is not to be drained any more")
            self._asking.append(action)
        timeout_s = LAST_CALL_S if self._closing.is_set() else TIMEOUT_S
        done = drain(action.node, self._reason(action), Slurm(self._environ, timeout_s))
        log.info("drained", node=action.node, state=done.state.value, text=done.text)
        with self._change:
            self._asking.remove(action)
        return done

    def _reason(self, action: Isolate) -> str:
        from guardrun.slurm.client.drain import drain_reason

        summary = action.summary if action.cause not in action.summary else ""
        return drain_reason(self._run_id, action.incident, action.cause, summary)

    def _is_pending(self, action: Isolate) -> bool:
        return self._pending.get(action.node, (None, ""))[0] is action

    def _settle(self, action: Isolate, done: Drained) -> str:
        """What to tell; empty where it was given up, or withdrawn, meanwhile. What was made all the same is undone."""
        with self._change:
            is_mine, how = self._is_pending(action), self._pending.get(action.node, (None, ""))[1]
            if is_mine:
                del self._pending[action.node]
                self._change.notify_all()
        if is_mine:
            parts = [*(["drained"] if done.is_done else []), *([how] if how else [])]
            self._settled(action, " and ".join(parts))
            return done.text
        return self._undo(action, done) if self.is_withdrawn(action) else ""

    def _undo(self, action: Isolate, done: Drained) -> str:
        """The node came back while Slurm took the order. One that it did not answer, it may have taken all the same."""
        from guardrun.slurm.client.commands import Slurm
        from guardrun.slurm.client.drain import DrainState, undrain

        is_to_be_told = self._withdrawn[action.node, action.incident]
        if done.state in (DrainState.DONE, DrainState.NOTHING):
            lifted = undrain(action.node, Slurm(self._environ), reason=self._reason(action))
            log.info("undrained", node=action.node, state=lifted.state.value, text=lifted.text)
            if lifted.is_done:
                return f"{action.node} is back: its drain, which was under way, is undone"
            if done.is_done:
                self._settled(action, "drained")
            if done.is_done or (lifted.is_silent and is_to_be_told):
                return lifted.text
        return _not_drained(action.node) if is_to_be_told else ""

    def _give_up(self, action: Isolate, why: str) -> None:
        """Not settled: whoever continues the run tries again."""
        from guardrun.slurm.client.drain import by_hand

        hand = by_hand(action.node, self._reason(action))
        self._print_line(f"{action.node} is not drained ({why}); by hand: {hand}", "warn")


def _not_drained(node: str) -> str:
    return f"{node} is back before it was drained: it is not"
