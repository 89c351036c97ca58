"""A virtual cluster around the real engine: time, the launchers and collectors of all nodes, a scheduler, a person.

Transitions only: a step is one report of one rank, nobody pulses, nothing idles. Whatever the engine orders is done and
answered after a plausible time by whoever can still be reached, as fleet/coordinator/event_aggregator.py would put it
together.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import re
from collections.abc import Callable

import msgspec

from benchmarks.sim import account as use
from benchmarks.sim.account import Account
from benchmarks.sim.attempt import PARTS, Attempt
from benchmarks.sim.befalls import befall, fail_again, no_room, tell
from benchmarks.sim.failures import Failure, Truth, draw
from benchmarks.sim.load import Load
from benchmarks.sim.nodes import Node
from benchmarks.sim.parameters import Parameters
from guardrun.supervisor.config.tables import FleetTable, HangTable
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.membership.node_silence import silence_limit_s
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.fleet.coordinator.event_aggregator import SETTLE_S, SILENT_S
from guardrun.supervisor.fleet.protocol.lease import ranks_end_s, ranks_gone_s, still_limit_s

DRAINED_S = 0.5
"""A node's isolation is done."""
KNOWN_S = 3.0
"""After a start it is known who trains on which device."""
MAX_EVENTS_AT_ONCE = 200_000


_NUMBER = re.compile(r"\d+")


class Wrong(AssertionError):
    """Time stands still, or the run has wedged."""


class World:
    """One run of one job under guardrun, for as long as the parameters say."""

    def __init__(
        self,
        parameters: Parameters,
        failures: list[Failure] | None = None,
        *,
        told: Callable[[float, ev.Event, list[ac.Action]], None] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.parameters = parameters
        self.told, self.progress = told, progress
        self.random = random.Random(f"world {parameters.seed}")
        self.engine = Engine()
        self.now_s = 0.0
        self.account = Account()
        self.load = Load()
        self.nodes = {name: Node(name, number) for number, name in enumerate(parameters.names)}
        self.allocation: list[Node] = []
        self.attempt: Attempt | None = None
        self.saved_step = 0
        self.space_s = 0.0
        """There is no room for checkpoints until then."""
        self.mark_s = 0.0
        """Time is booked up to here."""
        self.settings = ev.Settings(
            max_restarts=parameters.max_restarts,
            max_no_progress=parameters.max_no_progress,
            isolate_lost_s=FleetTable().isolate_lost_s,
            **HangTable(sensitivity=parameters.sensitivity).settings(),
        )
        self.incidents: dict[str, ac.Incident] = {}
        self.finished: list[ac.Summary] = []
        self.session = 0
        self.evictions: list[tuple[float, str, str, bool]] = []
        """When, which node, for what, and whether anything of the kind was true."""
        self._placed: list[str] = []
        self._starting = -1
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._at_once = 0
        for failure in draw(parameters) if failures is None else failures:
            self.at(failure.at_s, lambda failure=failure: befall(self, failure))  # type: ignore[misc]
        self.at(0.1, self._open)

    # Time ----------------------------------------------------------------------------------------------------

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(at_s, self.now_s), next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + seconds, call)

    def run(self, until_s: float | None = None) -> World:
        """Let virtual time pass."""
        end_s = self.parameters.wall_s if until_s is None else until_s
        shown_s = 0.0
        while True:
            due_s = self.engine.next_deadline_s()
            first_s = self._heap[0][0] if self._heap else float("inf")
            at_s = first_s if due_s is None else min(first_s, max(due_s, self.now_s))
            if at_s > end_s:
                break
            self._at_once = self._at_once + 1 if at_s <= self.now_s else 0
            if self._at_once > MAX_EVENTS_AT_ONCE:
                raise Wrong(f"time stands still at {self.now_s:.3f} s: {self.engine.state.story}")
            self.now_s = at_s
            if due_s is not None and due_s <= at_s:
                self.feed(ev.Ticked())
            else:
                heapq.heappop(self._heap)[2]()
            if self.progress and self.now_s >= shown_s + 3600:
                shown_s = self.now_s
                self.progress(self.now_s)
        self.now_s = end_s
        self._book_end()
        self.account.evicted = len(self.evictions)
        return self

    def skip(self, gap_s: float) -> None:
        """Nothing of the job ran for so long, up to a now that much later."""
        self.now_s += gap_s
        self._heap = [(at_s + gap_s, number, call) for at_s, number, call in self._heap]
        for node in self.allocation:
            node.heard_s += gap_s
        if self.attempt is not None:
            self.attempt.skip(gap_s)

    # The run's life ------------------------------------------------------------------------------------------

    def _plan(self) -> ev.FleetPlan:
        p = self.parameters
        return ev.FleetPlan(least=p.least or p.nodes, most=p.nodes, spares=p.spares)

    def _open(self) -> None:
        p = self.parameters
        self.feed(
            ev.RunOpened(
                run_id="sim",
                settings=self.settings,
                node=p.names[0],
                command=[],
                world_size=p.ranks_a_node,
                wall_s=0.0,
                fleet=self._plan(),
            )
        )
        self._allocate()

    def _allocate(self) -> None:
        """The scheduler hands out nodes; their guardruns join."""
        self.allocation = self._usable()[: self.parameters.nodes + self.parameters.spares]
        for slot, node in enumerate(self.allocation):
            node.is_silent = False
            self.feed(ev.NodeJoined(node=node.name, slot=slot, ranks=self.parameters.ranks_a_node))

    def _usable(self) -> list[Node]:
        """Nodes that are there, under no quarantine, and not left out by this run."""
        fleet = self.engine.state.fleet
        out = {m.node for m in fleet.members.values() if m.standing is Standing.OUT} if fleet else set()
        return [node for node in self.nodes.values() if node.is_usable and node.name not in out]

    def _ended(self, summary: ac.Summary) -> None:
        """The run is over, unfinished: a person takes it up again, as torchrun.py has it."""
        self._book(use.STARTING)
        self.finished.append(summary)
        self.account.ends += 1
        self.account.reasons[_NUMBER.sub("N", summary.reason.partition(":")[0])] += 1
        self.attempt, self._starting = None, -1
        # Who has no room is told by then.
        back_s = max(self.now_s + self.parameters.human_s, self.space_s) + self.parameters.requeue_s
        self.at(back_s, self._continue)

    def _continue(self) -> None:
        p = self.parameters
        self._book(use.WAITING)
        named = {culprit.node for incident in list(self.incidents.values())[-3:] for culprit in incident.culprits}
        for node in self.nodes.values():
            if node.bad is not None and not node.is_quarantined and (node.bad is Truth.GPU_GONE or node.name in named):
                self._quarantine(node)
        if len(self._usable()) < (p.least or p.nodes):
            self.after(600.0, self._continue)
            return
        self.session += 1
        self.feed(
            ev.RunContinued(
                settings=self.settings,
                node=p.names[0],
                world_size=p.ranks_a_node,
                wall_s=0.0,
                session=self.session,
                fleet=self._plan(),
            )
        )
        self._allocate()

    # Events in, actions out ----------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        actions = self.load.time(type(event).__name__, lambda: self.engine.handle(event, self.now_s))
        if self.told:
            self.told(self.engine.last_s, event, actions)
        for action in actions:
            self._perform(action)

    def _perform(self, action: ac.Action) -> None:
        chance = self.random
        if isinstance(action, ac.StartAttempt):
            self._start(action)
        elif isinstance(action, ac.StopAttempt):
            self._stop(action)
        elif isinstance(action, ac.TakeLook):
            self.load.looks += 1
            self.after(chance.uniform(0.5, 2.0), lambda: self._look(action))
        elif isinstance(action, ac.ReadExits):
            self.after(chance.uniform(0.1, 0.5), lambda: self._exits(action))
        elif isinstance(action, ac.ChooseCheckpoint):
            self.after(chance.uniform(1.0, 3.0), lambda: self._choose(action))
        elif isinstance(action, ac.WriteIncident):
            self._note_incident(action.incident)
        elif isinstance(action, ac.Isolate):
            self._isolate(action)
        elif isinstance(action, ac.WithdrawIsolation):
            self._take_back(action)
        elif isinstance(action, ac.FinishRun):
            self._ended(action.summary)

    def _choose(self, action: ac.ChooseCheckpoint) -> None:
        kept = ev.Checkpoint(path=f"/out/step-{self.saved_step}", step=self.saved_step) if self.saved_step else None
        self.feed(ev.CheckpointChosen(choice=action.choice, checkpoint=kept))

    def _look(self, action: ac.TakeLook) -> None:
        attempt = self.attempt
        if attempt is not None and attempt.number == action.attempt:
            looks, missing = attempt.looks(self.now_s)
            self.feed(ev.LookTaken(look=action.look, attempt=action.attempt, ranks=looks, missing=missing))

    def _exits(self, action: ac.ReadExits) -> None:
        attempt = self.attempt
        traces = attempt.traces() if attempt is not None and attempt.number == action.attempt else []
        oom = attempt.oom_kills if attempt is not None else 0
        self.feed(ev.ExitsRead(attempt=action.attempt, traces=traces, oom_kills=oom))

    # Attempts ------------------------------------------------------------------------------------------------

    def _start(self, action: ac.StartAttempt) -> None:
        if action.attempt == self._starting or (self.attempt and self.attempt.number >= action.attempt):
            return
        self._starting = action.attempt
        self.account.swaps += len(set(action.nodes) - set(self._placed)) if self._placed else 0
        self._placed = list(action.nodes)
        began = self.now_s + self.random.uniform(1.0, 3.0)
        self.at(began, lambda: self._try_started(action))

    def _try_started(self, action: ac.StartAttempt) -> None:
        """As event_aggregator.py has it: nodes that the engine has given up are not waited for."""
        if self._starting != action.attempt:
            return
        nodes = [self.nodes[name] for name in action.nodes]
        if any(not node.is_heard and self.now_s < node.heard_s + self._patience_s(node) for node in nodes):
            self.after(1.0, lambda: self._try_started(action))
            return
        self._starting = -1
        step = action.checkpoint.step if action.checkpoint else 0
        attempt = self.attempt = Attempt(self.parameters, action.attempt, nodes, step, self.now_s)
        self.feed(ev.AttemptStarted(attempt=action.attempt, ranks=attempt.ranks, resumed_from=action.checkpoint))
        if self.attempt is not attempt or attempt.stop_s is not None:
            return
        if any(not node.is_heard for node in nodes):
            attempt.fail(self.now_s)
            return
        if action.checkpoint is not None:
            self.feed(ev.CheckpointOpened(attempt=action.attempt, path=action.checkpoint.path))
        self._watch(attempt)

    def _patience_s(self, node: Node) -> float:
        return silence_limit_s(self.settings.lost_s, is_dropped=node.is_closed) + SETTLE_S

    def _watch(self, attempt: Attempt) -> None:
        """Its ranks report how far they are in starting, then every step; bad nodes fail again."""
        for part in range(1, PARTS):
            self.at(attempt.started_s + part / PARTS * self.parameters.start_s, lambda: self._report(attempt))
        self.at(attempt.training.first_s + 0.5, lambda: self._began(attempt))
        slow = max((n.slow for n in attempt.nodes if n.slow_until_s > self.now_s), default=1.0)
        attempt.training.slow = slow
        for node in attempt.nodes:
            if node.bad is not None:
                fail_again(self, attempt, node)
            if node.finding is not None:
                self.after(KNOWN_S, lambda node=node: self._tell(attempt, node))  # type: ignore[misc]

    def _tell(self, attempt: Attempt, node: Node) -> None:
        if self.attempt is attempt:
            tell(self, node, attempt.rank_on(node, 0.0))

    def _began(self, attempt: Attempt) -> None:
        if self.attempt is not attempt or attempt.failed_s is not None or attempt.stop_s is not None:
            return
        if attempt.is_standing or self.now_s < attempt.training.first_s:
            self.after(1.0, lambda: self._began(attempt))
        else:
            self._book(use.STARTING, attempt.training.first_s)
            self._report(attempt)
            self._step(attempt)

    def _step(self, attempt: Attempt) -> None:
        if self.attempt is not attempt or attempt.failed_s is not None or attempt.stop_s is not None:
            return
        if attempt.is_standing:
            self.after(1.0, lambda: self._step(attempt))
            return
        attempt.training.advance(self.now_s)
        if attempt.training.saved_step > self.saved_step and self.now_s < self.space_s:
            no_room(self, attempt)
            return
        self._report(attempt)
        self._keep(attempt)
        self.after(attempt.training.to_next_s + 0.001, lambda: self._step(attempt))

    def _keep(self, attempt: Attempt) -> None:
        """What it has saved is there, if there was room."""
        if self.now_s >= self.space_s:
            self.saved_step = max(self.saved_step, attempt.training.saved_step)

    def _report(self, attempt: Attempt) -> None:
        if self.attempt is not attempt or attempt.failed_s is not None or attempt.stop_s is not None:
            return
        for told in attempt.report(self.now_s):
            self.feed(told)

    def _stop(self, action: ac.StopAttempt) -> None:
        attempt = self.attempt
        if attempt is None or attempt.number != action.attempt or attempt.stop_s is not None:
            return
        if attempt.failed_s is None:
            self.account.false_stops += 1
            attempt.fail(self.now_s)
        assert attempt.failed_s is not None
        self._book_failure(attempt)
        self._book(use.DETECTING)
        attempt.stop_s = self.now_s
        over_s = self.now_s + self.random.uniform(2.0, action.grace_s + 2.0)
        self._end(attempt, over_s)

    def _end(self, attempt: Attempt, over_s: float) -> None:
        """Once all that are heard have ended their ranks, at over_s, and all others must have."""
        still_s = still_limit_s(self.parameters.step_s)
        gone = [
            ranks_gone_s(node.heard_s, over_s, term_s=self.settings.term_s, still_s=still_s)
            for node in attempt.nodes
            if not node.is_heard
        ]
        self.at(max([over_s, *gone]), lambda: self._stopped(attempt))

    def _stopped(self, attempt: Attempt) -> None:
        if self.attempt is not attempt:
            return
        self._book(use.STOPPING)
        if self.parameters.is_whole:
            for event in attempt.exits(self.now_s):
                self.feed(event)
        self.feed(attempt.stopped())

    # Nodes ---------------------------------------------------------------------------------------------------

    def silence(self, node: Node, is_closed: bool = False) -> None:
        """The head hears no more of a node; is_closed: the connection says so at once."""
        node.heard_s, node.is_closed = self.now_s, is_closed
        wait_s = 0.05 if is_closed else SILENT_S + self.random.uniform(0.0, 1.0)

        def tell() -> None:
            if not node.is_heard and not node.is_silent and node in self.allocation:
                node.is_silent = True
                self.feed(ev.NodeSuspected(node=node.name, since_s=node.heard_s, is_dropped=is_closed))

        self.after(wait_s, tell)

    def heard_again(self, node: Node, *, is_whole: bool = False) -> None:
        """It is back: with its ranks where only the contact was interrupted for less than their lease.

        is_whole: with them, even if they are not meant any more.
        """
        was_silent, node.is_silent = node.is_silent, False
        if node not in self.allocation:
            return
        attempt = self.attempt
        end_s = ranks_end_s(node.heard_s, -math.inf, term_s=self.settings.term_s, still_s=0.0)
        is_new = node.has_died or self.now_s > end_s
        trains = attempt is not None and attempt.failed_s is None and node in attempt.nodes and not node.has_died
        node.has_died = False
        if trains or not is_new:
            if was_silent:
                self.feed(ev.NodeContactRestored(node=node.name))
            return
        slot = self.allocation.index(node)
        number = attempt.number if is_whole and attempt is not None and node in attempt.nodes else -1
        self.feed(ev.NodeJoined(node=node.name, slot=slot, ranks=self.parameters.ranks_a_node, attempt=number))
        if attempt is not None and attempt is self.attempt and attempt.stop_s is None and node in attempt.nodes:
            for event in attempt.ended_on(node, self.now_s):
                self.feed(event)

    def _isolate(self, action: ac.Isolate) -> None:
        node = self.nodes[action.node]
        is_innocent = not node.is_touched
        if action.cause == "node_lost":
            self.account.quarantined_innocents += is_innocent
        self._quarantine(node)
        number = node.quarantines

        def settled() -> None:
            if node.quarantines == number:
                self.feed(ev.IsolationSettled(node=action.node, incident=action.incident))

        self.after(DRAINED_S, settled)

    def _take_back(self, action: ac.WithdrawIsolation) -> None:
        """A quarantine for a node's loss is not carried out."""
        node = self.nodes[action.node]
        if node.is_quarantined:
            node.quarantines += 1
            node.is_quarantined = False
            self.account.quarantined_innocents -= not node.is_touched

    def _quarantine(self, node: Node) -> None:
        node.is_quarantined = True
        node.quarantines += 1
        number = node.quarantines
        self.after(self.random.expovariate(1 / self.parameters.repair_s), lambda: self._released(node, number))

    def _released(self, node: Node, number: int) -> None:
        """Repaired, or found to be well."""
        if node.quarantines == number:
            node.is_quarantined, node.is_evicted = False, False
            self.repair(node)

    def repair(self, node: Node) -> None:
        """Nothing is the matter with it any more, and its sensors say so."""
        finding, node.bad, node.finding, node.is_touched = node.finding, None, None, False
        if finding is not None and node.told_session == self.session and node in self.allocation and node.is_heard:
            over = msgspec.structs.replace(finding, is_over=True, told_s=self.now_s)
            self.feed(ev.NodeFindingsReported(node=node.name, findings=[over]))
        node.told_session = -1

    def _note_incident(self, incident: ac.Incident) -> None:
        before = self.incidents.get(incident.id)
        self.incidents[incident.id] = incident
        if incident.action != "isolate_node" or (before and before.action == "isolate_node"):
            return
        named = [culprit.node for culprit in incident.culprits] or [str(incident.evidence.get("node", ""))]
        for name in dict.fromkeys(named):
            node = self.nodes[name]
            if incident.cause != "node_lost" and not node.is_evicted:
                node.is_evicted = True
                self.evictions.append((self.now_s, name, incident.cause, node.is_touched))
                self.account.innocents += not node.is_touched

    # Booking -------------------------------------------------------------------------------------------------

    def _book(self, what: str, until_s: float | None = None) -> None:
        until_s = self.now_s if until_s is None else until_s
        if until_s > self.mark_s:
            self.account.add(what, until_s - self.mark_s)
            self.mark_s = until_s

    def _book_failure(self, attempt: Attempt) -> None:
        """Progress ended: book what led there."""
        assert attempt.failed_s is not None
        self.account.stops += 1
        self._keep(attempt)
        first_s = attempt.training.first_s
        self._book(use.STARTING, min(first_s, attempt.failed_s))
        if attempt.failed_s > first_s:
            attempt.training.book(self.account, attempt.failed_s)
            self.mark_s = max(self.mark_s, attempt.failed_s)

    def _book_end(self) -> None:
        attempt = self.attempt
        if attempt is None or attempt.stop_s is not None:
            self._book(use.WAITING if self.engine.state.phase is Phase.ENDED else use.STARTING)
        elif attempt.failed_s is None:
            self._book(use.STARTING, min(attempt.training.first_s, self.now_s))
            attempt.training.book(self.account, self.now_s)
        else:
            self._book_failure(attempt)
            self._book(use.DETECTING)
