"""What guardctl asks of a live supervisor: status, stacks, look, hold, unhold, checkpoint, restart, examine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from guardrun.supervisor.collect.ranks.look import LookResult
from guardrun.supervisor.daemon.rank_questions import EXAMINE, QuestionsNode, RankQuestions
from guardrun.supervisor.diagnose.answer import LOOK, LookAnswer, trimmed
from guardrun.supervisor.engine.detectors.hang.patience import short
from guardrun.supervisor.engine.detectors.hang.stalls import outlook
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.engine.state.state import without_stall
from guardrun.supervisor.node.rank_collection import look_now
from guardrun.supervisor.node.run_context import EngineContext
from guardrun.supervisor.rundir.journal import Journal
from guardrun.supervisor.saving.final_save import FinalSave
from guardrun.supervisor.saving.save_agreement import read_counts
from guardrun.supervisor.wire import control_messages
from guardrun.supervisor.wire.control_messages import RankRow
from guardrun.supervisor.wire.warm_state import read_warm_state

if TYPE_CHECKING:
    from guardrun.supervisor.fleet.coordinator.coordinator import Coordinator


class AnswersNode(QuestionsNode, Protocol):
    """What the answers use of the node's supervisor."""

    @property
    def malformed(self) -> int:
        """How many messages could not be read."""


class AnswersContext(EngineContext, Protocol):
    """What they use of the daemon."""

    @property
    def fleet(self) -> Coordinator | None:
        """Asks the other nodes; None in a job of one."""

    @property
    def journal(self) -> Journal:
        """Counts the events that could not be written."""


class Answers:
    """Answers on the loop's thread; a live look goes to the pool."""

    def __init__(self, node: AnswersNode, context: AnswersContext, saving: FinalSave) -> None:
        self._node, self._context, self._saving = node, context, saving
        self._questions = RankQuestions(node, context)

    def answer(self, peer: bytes, ask: control_messages.Ask) -> None:
        """Answer one question, now or when a look has been taken."""
        verbs = {"hold": self._hold, "unhold": self._hold, "restart": self._restart}
        if ask.verb == "status":
            self._status(peer)
        elif ask.verb == "stacks":
            self._stacks(peer, ask)
        elif ask.verb == LOOK:
            self._look(peer)
        elif ask.verb == EXAMINE:
            self._questions.answer(peer, ask)
        elif ask.verb == "checkpoint":
            self._checkpoint(peer)
        elif ask.verb in verbs:
            self._node.send_to(peer, verbs[ask.verb](ask))
        else:
            known = ", ".join(sorted([*verbs, "checkpoint", "stacks", "status", EXAMINE, LOOK]))
            self._node.send_to(
                peer, control_messages.Answer(is_ok=False, error=f"no verb {ask.verb!r}: there are {known}")
            )

    def _status(self, peer: bytes) -> None:
        """Once other nodes have said how their ranks are doing, or the time for that is up."""
        context = self._context

        def reply() -> None:
            try:
                answer = control_messages.Answer(is_ok=True, data=self.status())
            except Exception as error:  # on the loop's thread: an answer less, never a supervisor less
                answer = control_messages.Answer(is_ok=False, error=repr(error))
            self._node.send_to(peer, answer)

        if context.fleet is None:
            reply()
        else:
            context.fleet.ask_boards(reply)

    def metrics(self) -> dict[str, Any]:
        """The same at once: what is fetched from other nodes is as old as the last question."""
        if self._context.fleet is not None:
            self._context.fleet.ask_boards(lambda: None)
        return self.status()

    def status(self) -> dict[str, Any]:
        """How the run is doing, as far as it is known here."""
        context, state = self._context, self._context.engine.state
        now_s = self._node.clock.now()
        checkpoint = state.checkpoint
        attempt = state.attempt.number if state.attempt else None
        ledger = without_stall(state, now_s)
        boards = context.fleet.boards if context.fleet is not None else None
        here = self._rows_here()
        others = sorted(set(state.attempt.ranks) - {row.global_rank for row in here}) if state.attempt else []
        data: dict[str, Any] = {
            "run_id": self._node.run_file.run_id,
            "state": self._state_word(),
            "attempt": attempt,
            "world_size": state.world_size,
            "node": state.node,
            "uptime_s": round(now_s - state.opened_s, 1),
            "held": state.is_held,
            "stall": self._stall(now_s),
            "restarts": state.restarts,
            "goodput": round(ledger.goodput(now_s), 4),
            "lost_s": ledger.lost_s(now_s),
            "ranks": [
                *(self._rank(self._node.ingest.ranks[row.global_rank], row, 0.0) for row in here),
                *(self._rank_elsewhere(number, now_s) for number in others),
            ],
            "nodes": self._nodes(now_s),
            "warm": self._warm(),
            "incidents": [
                {"id": i.id, "kind": i.kind, "cause": i.cause, "summary": i.summary, "action": i.action}
                for i in state.incidents.values()
            ],
            "checkpoint": {"path": checkpoint.path, "step": checkpoint.step} if checkpoint else None,
            "dropped": {
                "malformed": self._node.ingest.malformed + self._node.malformed,
                "strangers": self._node.ingest.strangers,
                "journal": context.journal.dropped,
            },
            "refused": context.fleet.refused if context.fleet is not None else {},
            "failed_hooks": self._node.ingest.failed_hooks[-20:] + (boards.failed_hooks(attempt) if boards else []),
            "notes": [
                *list(self._node.ingest.notes)[-20:],
                *(boards.notes(attempt) if boards else []),
                *(f"guardrun: {note.topic}: {note.text}" for note in state.remarks.values()),
            ],
        }
        return data

    def _warm(self) -> dict[str, Any] | None:
        """This node's."""
        if not self._node.run_file.config.get("launcher", {}).get("warm"):
            return None
        state = read_warm_state(Path(self._node.run_file.socket_dir))
        return {"state": "not begun"} if state is None else msgspec.to_builtins(state)

    def _state_word(self) -> str:
        state = self._context.engine.state
        if state.phase is not Phase.RUNNING:
            return str(state.phase.value)
        if state.is_held:
            return "held"
        if (suspicion := state.detectors.hang.suspicion) is not None:
            return "stalled" if suspicion.stall is not None else "suspicious"
        return "training" if state.attempt and state.attempt.has_progress else "starting"

    def _rank(self, rank: ev.Rank, row: RankRow, age_s: float) -> dict[str, Any]:
        """age_s: how long ago its step and what it does were so; what counts seconds itself goes on meanwhile."""
        attempt = self._context.engine.state.attempt
        known = attempt.ranks.get(rank.global_rank) if attempt is not None else None
        metrics = known.metrics if known else None

        def by_now(seconds: float | None) -> float | None:
            return None if seconds is None else round(seconds + age_s, 1)

        return {
            "global_rank": rank.global_rank,
            "local_rank": rank.local_rank,
            "pid": rank.pid,
            "node": rank.node,
            "state": known.state if known else "?",
            "exitcode": known.exitcode if known else None,
            "step": row.step,
            "step_time_s": row.step_time_s,
            "loss": metrics.loss if metrics else None,
            "grad_norm": metrics.grad_norm if metrics else None,
            "learning_rate": metrics.learning_rate if metrics else None,
            "left_out": metrics.left_out if metrics else None,
            "phase": row.phase,
            "last_beat_s": by_now(row.beat_age_s),
            "last_progress_s": by_now(row.progress_age_s),
            "hooks": row.has_hooks,
            "data_share": row.data_share,
            "gc_share": row.gc_share,
            "age_s": round(age_s, 1),
        }

    def _rows_here(self) -> list[RankRow]:
        """Of this node's ranks; none where it has no part in an attempt of several nodes."""
        attempt, ingest = self._context.engine.state.attempt, self._node.ingest
        is_other = self._context.fleet is not None and attempt is not None and attempt.number != ingest.attempt
        return [] if is_other else ingest.rows()

    def _rank_elsewhere(self, number: int, now_s: float) -> dict[str, Any]:
        """As its node has told when it was asked; its step, as its reports have, where they are newer."""
        attempt, fleet = self._context.engine.state.attempt, self._context.fleet
        assert attempt is not None
        known = attempt.ranks[number]
        told = fleet.boards.row(known.rank.node, attempt.number, number, now_s) if fleet is not None else None
        is_final = fleet is None or known.exitcode is not None
        heard_ago_s = 0.0 if is_final or fleet is None else fleet.heard_ago_s(known.rank.node)
        if told is not None and told[1] <= heard_ago_s:
            return self._rank(known.rank, *told)
        row = msgspec.structs.replace(
            RankRow(global_rank=number, has_hooks=attempt.has_hooks) if told is None else told[0],
            step=known.step,
            phase=known.phase,
            beat_age_s=None,  # reports do not have it
            progress_age_s=now_s - known.progress_s if known.progress_s else None,
        )
        return {**self._rank(known.rank, row, 0.0), "age_s": round(heard_ago_s, 1) if isfinite(heard_ago_s) else None}

    def _nodes(self, now_s: float) -> list[dict[str, Any]]:
        """Of a job of several nodes: who trains, who waits, who is left out; empty for one node."""
        fleet = self._context.engine.state.fleet
        if fleet is None:
            return []
        nodes = []
        for member in sorted(fleet.members.values(), key=lambda one: one.order):
            is_placed = member.node in fleet.placed
            nodes.append(
                {
                    "node": member.node,
                    "role": "trains" if is_placed else "spare" if member.standing is Standing.READY else "none",
                    "standing": member.standing.value,
                    "since_s": round(now_s - member.since_s, 1),
                    "group_rank": fleet.placed.index(member.node) if is_placed else None,
                    "ranks": member.ranks,
                    "why": member.why,
                    "contact_lost": member.contact_lost,
                }
            )
        return nodes

    def _hold(self, ask: control_messages.Ask) -> control_messages.Answer:
        who = str(ask.arguments.get("who", "somebody"))[:100]
        self._node.feed(ev.HoldSet(is_held=ask.verb == "hold", who=who))
        return control_messages.Answer(is_ok=True, data={"held": self._context.engine.state.is_held})

    def _restart(self, ask: control_messages.Ask) -> control_messages.Answer:
        who = str(ask.arguments.get("who", "somebody"))[:100]
        state = self._context.engine.state
        if state.phase is not Phase.RUNNING or state.attempt is None:
            return control_messages.Answer(
                is_ok=False, error=f"no attempt runs that could be ended: it is {state.phase.value}"
            )
        number = state.attempt.number
        self._node.feed(ev.RestartAsked(who=who))
        return control_messages.Answer(is_ok=True, data={"attempt": number})

    def _stall(self, now_s: float) -> dict[str, Any] | None:
        """What holds the run up right now, as it was told; None where nothing does, or it is an incident."""
        state = self._context.engine.state
        suspicion = state.detectors.hang.suspicion
        if suspicion is None or suspicion.stall is None or suspicion.key or state.attempt is None:
            return None
        stall = suspicion.stall
        known = [state.attempt.ranks[rank].rank for rank in stall.culprits if rank in state.attempt.ranks]
        may_act = state.settings.act and not state.is_held and stall.acts_s is not None
        return {
            "summary": stall.summary,
            "place": short(stall.place),
            "spot": stall.spot,
            "cause": stall.cause,
            "who": [{"rank": rank.global_rank, "node": rank.node, "pid": rank.pid} for rank in known],
            "seconds": round(now_s - stall.onset_s, 1),
            "told_s_ago": round(now_s - stall.told_s, 1),
            "acts_in_s": round(max(0.0, stall.acts_s - now_s), 1) if may_act and stall.acts_s is not None else None,
            "outlook": outlook(state, stall, now_s),
        }

    def _checkpoint(self, peer: bytes) -> None:
        """Ask the ranks, by way of should_checkpoint(), to save at one and the same call."""

        def reply(at_call: int | None) -> None:
            if at_call is None:
                error = "the script does not ask guardrun.hooks.should_checkpoint()"
                self._node.send_to(peer, control_messages.Answer(is_ok=False, error=error))
                return
            counts = {str(rank): count for rank, count in read_counts(self._node.sampler.boards).items()}
            self._node.send_to(peer, control_messages.Answer(is_ok=True, data={"at_check": at_call, "checks": counts}))

        self._saving.by_hand(reply)

    def _stacks(self, peer: bytes, ask: control_messages.Ask) -> None:
        wanted = ask.arguments.get("rank")
        alive = self._alive()
        ranks = [rank for rank in alive if wanted is None or rank.global_rank == wanted]
        if not ranks:
            known = rank_list([rank.global_rank for rank in alive])
            error = f"no rank {wanted}: there are {known}" if alive else "no rank is alive"
            self._node.send_to(peer, control_messages.Answer(is_ok=False, error=error))
            return
        nodes = {str(rank.global_rank): rank.node for rank in ranks}
        self._answer_with_look(peer, ranks, samples=1, make=lambda result: _stacks_answer(result, nodes))

    def _look(self, peer: bytes) -> None:
        """A look as good as the engine's own, and what the engine knows when it has been taken."""
        context = self._context

        def make(result: LookResult) -> control_messages.Answer:
            answer = LookAnswer(
                state=trimmed(context.engine.state),
                ranks=result.ranks,
                missing=result.missing,
                now_s=self._node.clock.now(),
                wall_s=time.time(),
            )
            return control_messages.Answer(is_ok=True, data=msgspec.to_builtins(answer))

        ranks = self._alive()
        if not ranks or context.engine.state.phase is not Phase.RUNNING:
            self._node.send_to(peer, make(LookResult([], {}, 0.0)))
            return
        self._answer_with_look(peer, ranks, samples=3, make=make)

    def _alive(self) -> list[ev.Rank]:
        """This node's ranks, and the other nodes'."""
        here = [rank for _, rank in sorted(self._node.ingest.ranks.items())]
        return here + (self._context.fleet.other_ranks() if self._context.fleet is not None else [])

    def _answer_with_look(
        self, peer: bytes, ranks: list[ev.Rank], *, samples: int, make: Callable[[LookResult], control_messages.Answer]
    ) -> None:
        """Look on a worker thread; the answer is made on the loop's, where the engine is."""
        context = self._context
        here = [rank for rank in ranks if rank.global_rank in self._node.ingest.ranks]
        look = look_now(self._node, here, samples)
        parts: list[LookResult] = []

        def job() -> None:
            try:
                result = look()
            except Exception as error:
                failed = control_messages.Answer(is_ok=False, error=repr(error))
                self._node.post(lambda: self._node.send_to(peer, failed))
                return
            self._node.post(lambda: join(result))

        def join(part: LookResult) -> None:
            parts.append(part)
            if len(parts) == 2:
                reply(join_looks(parts))

        def reply(result: LookResult) -> None:
            try:
                answer = make(result)
            except Exception as error:  # on the loop's thread: an answer less, never a supervisor less
                answer = control_messages.Answer(is_ok=False, error=repr(error))
            self._node.send_to(peer, answer)

        if context.fleet is None:
            parts.append(LookResult([], {}, 0.0))
        else:
            elsewhere = [rank for rank in ranks if rank.global_rank not in self._node.ingest.ranks]
            context.fleet.inquiries.look(elsewhere, samples, join)
        self._node.pool.submit(job)


def join_looks(parts: Sequence[LookResult]) -> LookResult:
    """Several nodes' looks as one."""
    ranks = sorted((look for part in parts for look in part.ranks), key=lambda look: look.global_rank)
    missing = {rank: why for part in parts for rank, why in part.missing.items()}
    readings = [reading for part in parts for reading in part.readings]
    return LookResult(ranks, missing, max(part.took_s for part in parts), readings)


def _stacks_answer(result: LookResult, nodes: dict[str, str]) -> control_messages.Answer:
    """nodes: of each rank."""
    missing = {str(k): v for k, v in result.missing.items()}
    data = {"ranks": msgspec.to_builtins(result.ranks), "missing": missing, "nodes": nodes}
    return control_messages.Answer(is_ok=True, data=data)
