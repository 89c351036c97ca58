"""What guardctl asks of a live supervisor: status, stacks, look, hold, unhold, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from guardrun.hooks.board import MAGIC, Field
from guardrun.supervisor import wire
from guardrun.supervisor.collect.boards import phase_of, shares_of, step_of
from guardrun.supervisor.collect.look import LookResult, take_look
from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.diagnose.lookanswer import LOOK, LookAnswer, trimmed

if TYPE_CHECKING:
    from guardrun.supervisor.daemon import Daemon


class Answers:
    """Answers on the loop's thread; a live look goes to the pool."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def answer(self, peer: bytes, ask: wire.Ask) -> None:
        """Answer one question, now or when a look has been taken."""
        verbs = {"status": self._status, "hold": self._hold, "unhold": self._hold, "checkpoint": self._checkpoint}
        if ask.verb == "stacks":
            self._stacks(peer, ask)
        elif ask.verb == LOOK:
            self._look(peer)
        elif ask.verb in verbs:
            self._daemon.send_to(peer, verbs[ask.verb](ask))
        else:
            known = ", ".join(sorted([*verbs, "stacks", LOOK]))
            self._daemon.send_to(peer, wire.Answer(is_ok=False, error=f"no verb {ask.verb!r}: there are {known}"))

    def _status(self, ask: wire.Ask) -> wire.Answer:
        return wire.Answer(is_ok=True, data=self.status())

    def status(self) -> dict[str, Any]:
        """How the run is doing: for guardctl, and for /metrics."""
        daemon, state = self._daemon, self._daemon.engine.state
        now_s = daemon.clock.now()
        checkpoint = state.checkpoint
        data: dict[str, Any] = {
            "run_id": daemon.run_file.run_id,
            "state": self._state_word(),
            "attempt": state.attempt.number if state.attempt else None,
            "world_size": state.world_size,
            "node": state.node,
            "uptime_s": round(now_s - state.opened_s, 1),
            "held": state.is_held,
            "restarts": state.restarts,
            "goodput": round(state.ledger.goodput(now_s), 4),
            "lost_s": state.ledger.lost_s(now_s),
            "ranks": [self._rank(number, now_s) for number in sorted(daemon.desk.ranks)],
            "incidents": [
                {"id": i.id, "kind": i.kind, "cause": i.cause, "summary": i.summary, "action": i.action}
                for i in state.incidents.values()
            ],
            "checkpoint": {"path": checkpoint.path, "step": checkpoint.step} if checkpoint else None,
            "dropped": {
                "malformed": daemon.desk.malformed + daemon.malformed,
                "strangers": daemon.desk.strangers,
                "journal": daemon.journal.dropped,
            },
            "failed_hooks": daemon.desk.failed_hooks[-20:],
            "notes": list(daemon.desk.notes)[-20:],
        }
        return data

    def _state_word(self) -> str:
        state = self._daemon.engine.state
        if state.phase is not Phase.RUNNING:
            return str(state.phase.value)
        if state.is_held:
            return "held"
        if state.suspicion is not None:
            return "suspicious"
        return "training" if state.attempt and state.attempt.has_progress else "starting"

    def _rank(self, number: int, now_s: float) -> dict[str, Any]:
        daemon = self._daemon
        rank = daemon.desk.ranks[number]
        known = daemon.engine.state.attempt.ranks.get(number) if daemon.engine.state.attempt else None
        reader = daemon.sampler.boards.get(number)
        words = reader.read() if reader else None
        has_hooks = words is not None and words[Field.MAGIC] == MAGIC

        lived_s = now_s - daemon.desk.started_s
        data_share, gc_share = shares_of(words, lived_s, time.monotonic_ns()) if words else (-1.0, -1.0)

        def ago(ns: int) -> float | None:
            return round(now_s - daemon.clock.at_ns(ns), 1) if ns else None

        return {
            "global_rank": number,
            "local_rank": rank.local_rank,
            "pid": rank.pid,
            "node": rank.node,
            "state": known.state if known else "?",
            "exitcode": known.exitcode if known else None,
            "step": step_of(words) if words else None,
            "step_time_s": daemon.desk.step_time_s(number),
            "phase": phase_of(words) if words else "",
            "last_beat_s": ago(words[Field.HEART_NS]) if words else None,
            "last_progress_s": ago(words[Field.PROGRESS_NS]) if words else None,
            "hooks": has_hooks,
            "data_share": data_share if data_share >= 0 else None,
            "gc_share": gc_share if gc_share >= 0 else None,
        }

    def _hold(self, ask: wire.Ask) -> wire.Answer:
        who = str(ask.arguments.get("who", "somebody"))[:100]
        self._daemon.feed(ev.HoldSet(is_held=ask.verb == "hold", who=who))
        return wire.Answer(is_ok=True, data={"held": self._daemon.engine.state.is_held})

    def _checkpoint(self, ask: wire.Ask) -> wire.Answer:
        """Ask the ranks, by way of should_checkpoint(), to save at one and the same call."""
        daemon = self._daemon
        at_call, counts = daemon.saving.asking.ask(daemon.sampler.boards)
        if at_call is None:
            return wire.Answer(is_ok=False, error="the script does not ask guardrun.hooks.should_checkpoint()")
        return wire.Answer(is_ok=True, data={"at_check": at_call, "checks": {str(k): v for k, v in counts.items()}})

    def _stacks(self, peer: bytes, ask: wire.Ask) -> None:
        daemon = self._daemon
        wanted = ask.arguments.get("rank")
        ranks = [r for n, r in sorted(daemon.desk.ranks.items()) if wanted is None or n == wanted]
        if not ranks:
            error = (
                f"no rank {wanted}: there are {sorted(daemon.desk.ranks)}" if daemon.desk.ranks else "no rank is alive"
            )
            daemon.send_to(peer, wire.Answer(is_ok=False, error=error))
            return
        self._take(peer, ranks, samples=1, make=_stacks_answer)

    def _look(self, peer: bytes) -> None:
        """A look as good as the engine's own, and what the engine knows when it has been taken."""
        daemon = self._daemon

        def make(result: LookResult) -> wire.Answer:
            answer = LookAnswer(
                state=trimmed(daemon.engine.state),
                ranks=result.ranks,
                missing=result.missing,
                now_s=daemon.clock.now(),
                wall_s=time.time(),
            )
            return wire.Answer(is_ok=True, data=msgspec.to_builtins(answer))

        is_running = daemon.engine.state.phase is Phase.RUNNING
        if not daemon.desk.ranks or not is_running:
            daemon.send_to(peer, make(LookResult([], {}, 0.0)))
            return
        self._take(peer, [rank for _, rank in sorted(daemon.desk.ranks.items())], samples=3, make=make)

    def _take(
        self, peer: bytes, ranks: list[ev.Rank], *, samples: int, make: Callable[[LookResult], wire.Answer]
    ) -> None:
        """Look on a worker thread; the answer is made on the loop's, where the engine is."""
        daemon = self._daemon
        attempt, boards = daemon.desk.attempt, dict(daemon.sampler.boards)

        def job() -> None:
            try:
                result = take_look(
                    attempt,
                    ranks,
                    boards=boards,
                    clock=daemon.clock,
                    sockets_dir=daemon.sockets,
                    folder=None,
                    samples=samples,
                )
            except Exception as error:
                failed = wire.Answer(is_ok=False, error=repr(error))
                daemon.post(lambda: daemon.send_to(peer, failed))
                return
            daemon.post(lambda: reply(result))

        def reply(result: LookResult) -> None:
            try:
                answer = make(result)
            except Exception as error:  # on the loop's thread: an answer less, never a supervisor less
                answer = wire.Answer(is_ok=False, error=repr(error))
            daemon.send_to(peer, answer)

        daemon.pool.submit(job)


def _stacks_answer(result: LookResult) -> wire.Answer:
    missing = {str(k): v for k, v in result.missing.items()}
    return wire.Answer(is_ok=True, data={"ranks": msgspec.to_builtins(result.ranks), "missing": missing})
