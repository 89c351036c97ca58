"""The socket by which `guardctl eval` has code run in ranks: for this user, on this node, and for nobody else.

    guardctl eval ── SO_PEERCRED ──▶ live ── this file ──▶ request file, board ──▶ hooks/examine/evaluation.py
            ▲                          │                                               │
            └──────────────────────────┴───────────── answer file ◀────────────────────┘

A plain Unix socket of this user in a folder that nobody else can enter. The kernel says who has connected: with another
user's credentials, root's too, nothing is read. With `[live] eval = false` there is no socket, and the ranks' hooks
refuse it by themselves: they were told so when they started. No other way leads there: what is asked by way of the head
(rank_examinations.py) is refused before it reaches a rank.
"""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress
from typing import Any, Protocol

from guardrun.hooks.wire.examinations import EVAL, MAX_CODE_BYTES, MAX_EVALUATED_S, MAX_REQUEST_BYTES, MAX_SECONDS
from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.state.hand_changes import NOT_RUN
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.node.rank_examinations import RankExaminations
from guardrun.supervisor.wire.live_socket import LIVE_SOCKET, SLOW_S, find_fault, receive, send, who_may_not

MAX_WAITING = 8
"""Requests at a time."""
UNKNOWN = ("did not answer", "have not run", "has ended", "can't be read")
"""In why there is no answer: it may have been run all the same."""


class LiveCodeNode(RankContext, Protocol):
    """What is used of the node's supervisor."""

    @property
    def examinations(self) -> RankExaminations:
        """Asks the ranks of this node."""

    def feed(self, event: ev.Event) -> bool:
        """Give a fact to whoever decides."""


class LiveCode:
    """Accepts by a thread of its own; all else on the loop's."""

    def __init__(self, node: LiveCodeNode, *, is_allowed: bool) -> None:
        self._node = node
        self._listener = self._listen() if is_allowed else None
        self._waiting = 0
        if self._listener is not None:
            self._thread = threading.Thread(target=self._accept, args=(self._listener,), name="guardrun-live")
            self._thread.daemon = True
            self._thread.start()

    def close(self) -> None:
        """Nobody is answered any more."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # which ends accept()
            self._listener.close()
            self._thread.join(SLOW_S)
            with suppress(OSError):
                (self._node.sockets / LIVE_SOCKET).unlink()

    def _listen(self) -> socket.socket | None:
        path = self._node.sockets / LIVE_SOCKET
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if why := find_fault(path.parent):
                raise PermissionError(1, why, str(path.parent))
            path.unlink(missing_ok=True)  # a supervisor that was killed leaves its socket behind
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(MAX_WAITING)
        except OSError as error:
            log.warning("no_live_socket", error=str(error))
            listener.close()
            return None
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return  # closed
            try:
                self._read(peer)
            except (OSError, ValueError, RecursionError) as error:
                self._refuse(peer, str(error))

    def _read(self, peer: socket.socket) -> None:
        """Raises OSError or ValueError: why it is not done."""
        if why := who_may_not(peer):
            raise ValueError(why)
        asked = receive(peer, MAX_REQUEST_BYTES)
        self._node.post(lambda: self._ask(peer, asked))

    def _refuse(self, peer: socket.socket, why: str) -> None:
        with suppress(OSError, ValueError):
            send(peer, {"error": why})
        peer.close()

    # On the loop's thread --------------------------------------------------------------------------------------------

    def _ask(self, peer: socket.socket, asked: dict[str, Any]) -> None:
        node = self._node
        self._waiting += 1
        try:
            if self._waiting > MAX_WAITING:
                raise ValueError(f"{MAX_WAITING} requests are waiting already")
            number, arguments, seconds = _check(asked)
            if number not in node.ingest.ranks:
                there = sorted(node.ingest.ranks)
                here = f"there are {rank_list(there)}" if there else "none is alive here"
                raise ValueError(f"no rank {number} on this node: {here}")
        except ValueError as error:
            self._answer(peer, {"error": str(error)})
            return
        attempt, name, host = node.ingest.attempt, secrets.token_hex(4), node.ingest.ranks[number].node
        node.feed(
            ev.HandChangeAsked(
                attempt=attempt,
                id=name,
                global_ranks=[number],
                verb=EVAL,
                text=arguments["code"][:2000],
                seconds=seconds,
                who=str(asked.get("who", "somebody"))[:100],
            )
        )

        def done(answers: dict[int, dict[str, Any]], missing: dict[int, str]) -> None:
            told, why = answers.get(number, {}), missing.get(number, "")
            node.feed(ended(attempt, name, told, why))
            self._answer(peer, {"told": told, "node": host} if told else {"error": why})

        node.examinations.ask_here(number, EVAL, arguments, seconds, done)

    def _answer(self, peer: socket.socket, answer: dict[str, Any]) -> None:
        self._waiting -= 1

        def work() -> None:
            with suppress(OSError, ValueError):  # whoever asked has gone
                send(peer, answer)
            peer.close()

        try:
            self._node.pool.submit(work)
        except RuntimeError:  # closing
            peer.close()


def ended(attempt: int, name: str, told: dict[str, Any], why: str) -> ev.HandChangeEnded:
    """What became of a request, as the journal has it. told: as hooks/examine/evaluation.py has it; empty: nothing."""
    step, changes = told.get("step"), told.get("changes")
    if told:
        outcome = str(told.get("outcome", "unknown"))[:40]
    else:
        outcome = "unknown" if any(said in why for said in UNKNOWN) else NOT_RUN
    return ev.HandChangeEnded(
        attempt=attempt,
        id=name,
        outcome=outcome,
        step=step if isinstance(step, int) else None,
        changes=[str(one)[:200] for one in changes[:8]] if isinstance(changes, list) else [],
        why=why[:500],
    )


def _check(asked: dict[str, Any]) -> tuple[int, dict[str, Any], float]:
    """The rank, what its hooks are asked, and how long that may take. Raises ValueError."""
    number, code = asked.get("rank"), asked.get("code")
    timeout_s, wait_s = asked.get("timeout_s"), asked.get("wait_s")
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError("it is not said which rank is meant")
    if not isinstance(code, str) or len(code.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
        raise ValueError(f"code of up to {MAX_CODE_BYTES >> 10} KB can be run")
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_EVALUATED_S:
        raise ValueError(f"code is run for up to {MAX_EVALUATED_S:g} seconds")
    if not isinstance(wait_s, int | float) or not 0 <= wait_s <= MAX_SECONDS:
        raise ValueError(f"the end of a step is waited for up to {MAX_SECONDS:g} seconds")
    only = asked.get("only_at_step") is True
    arguments = {"code": code, "timeout_s": timeout_s, "wait_s": wait_s, "only_at_step": only}
    return number, arguments, float(timeout_s + wait_s)
