"""A virtual cluster around the real engine: a launcher, collectors and a training job in virtual time.

    cluster = Cluster(ranks=8)
    cluster.hang(global_rank=3, at_s=100)
    cluster.run(until_s=600)
    assert cluster.last.cause == "rank_blocked"

Every action is answered as the real parts would, after plausible delays, or not at all. Whatever happens, it is checked
on the way that no healthy job is stopped and that verdicts name nobody innocent.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.state import State
from tests.engine.invariants import check_cheap, check_costly
from tests.sim import activity as act
from tests.sim.activity import Activity
from tests.sim.launcher import Launcher
from tests.sim.training import Job, Plan

SAMPLE_S = 1.0
MAX_EVENTS_AT_ONCE = 2000
"""Events without a virtual microsecond passing: more is a loop."""


@dataclass
class Entry:
    """One line of the journal."""

    now_s: float
    event: ev.Event
    actions: bytes


class Wrong(AssertionError):
    """The engine did what it must never do."""


class Cluster:
    """One run, from its opening to its end."""

    def __init__(
        self,
        ranks: int = 8,
        *,
        plan: Plan | None = None,
        settings: ev.Settings | None = None,
        ranks_a_node: int = 8,
        seed: int = 0,
        is_journalled: bool = True,
    ) -> None:
        self.world_size, self.ranks_a_node = ranks, ranks_a_node
        self.plan = plan or Plan()
        self.settings = settings or ev.Settings()
        self.random = random.Random(seed)
        self.engine = Engine()
        self.now_s = 0.1
        self.launcher = Launcher(self)
        self.job: Job | None = None
        self.journal: list[Entry] = []
        self.is_journalled = is_journalled
        self.incidents: dict[str, ac.Incident] = {}
        self.said: list[str] = []
        self.summary: ac.Summary | None = None
        self.saved: list[ev.Checkpoint] = []
        self.stops: list[tuple[float, int]] = []
        self.looks = 0
        self.poison: int | None = None
        self.poison_with: Callable[[Job], None] | None = None
        self.is_up = True
        """The supervisor runs."""
        self.life = 0
        """How many supervisors there have been: what collectors bring to an earlier one is lost."""
        self.skipped_s = self.decoy_ended_s = self.blind_until_s = 0.0
        self._facts: list[ev.Event] = []
        self._lost: Counter[type] = Counter()
        self._late_s: dict[type, float] = {}
        self._twice: set[type] = set()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._at_once = 0
        self._due: tuple[Engine, float | None] | None = None
        self.feed(self._opened())
        for node in range((ranks + ranks_a_node - 1) // ranks_a_node):
            phase_s = SAMPLE_S * node / max(1, ranks // ranks_a_node)
            self.at(self.now_s + phase_s, lambda node=node: self._sample(node))  # type: ignore[misc]

    def _opened(self) -> ev.Event:
        return ev.RunOpened(
            run_id="virtual", settings=self.settings, node="node-0", command=[], world_size=self.world_size, wall_s=0.0
        )

    # Time ----------------------------------------------------------------------------------------------------

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Have something happen at a virtual time."""
        heapq.heappush(self._heap, (max(at_s, self.now_s), next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + seconds, call)

    def run(self, until_s: float) -> Cluster:
        """Let virtual time pass until then, or until the run is over."""
        self._due = None  # A test may have changed what the engine remembers.
        while not self.is_over and (at_s := self._next_s()) <= until_s:
            self._turn(at_s)
        if not self.is_over:
            self.now_s = max(self.now_s, until_s)
        check_costly(self.engine)
        return self

    def _next_s(self) -> float:
        due_s = self._due_s()
        first_s = self._heap[0][0] if self._heap else float("inf")
        return first_s if due_s is None else min(first_s, max(due_s, self.now_s))

    def _due_s(self) -> float | None:
        """When the engine next has something to do: only what it is told changes that."""
        if self._due is None or self._due[0] is not self.engine:
            self._due = (self.engine, self.engine.next_deadline_s())
        return self._due[1] if self.is_up else None

    def _turn(self, at_s: float) -> None:
        self._at_once = self._at_once + 1 if at_s <= self.now_s else 0
        if self._at_once > MAX_EVENTS_AT_ONCE:
            raise Wrong(f"time stands still at {self.now_s:.3f} s: {self.engine.state.story}")
        self.now_s = at_s
        due_s = self._due_s()
        if due_s is not None and due_s <= at_s:
            self.feed(ev.Ticked())
        elif self._heap and self._heap[0][0] <= at_s:
            heapq.heappop(self._heap)[2]()

    @property
    def is_over(self) -> bool:
        return self.summary is not None

    # Events in, actions out ------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Tell the engine, note it, carry out what it says."""
        actions = self.engine.handle(event, self.now_s)
        if self.is_journalled:
            self.journal.append(Entry(self.engine.last_s, event, msgspec.json.encode(actions)))
        self._due = (self.engine, check_cheap(self.engine))
        for action in actions:
            self._perform(action)

    def fact(self, event: ev.Event) -> None:
        """The launcher tells; it keeps what nobody is there to hear."""
        if self.is_up:
            self.feed(event)
        else:
            self._facts.append(event)

    def answer(self, action: ac.Action, seconds: float, make: Callable[[], ev.Event]) -> None:
        """A collector answers after a while, unless that answer is to be lost."""
        kind = type(action)
        if self._lost[kind] > 0:
            self._lost[kind] -= 1
            return
        life = self.life

        def bring() -> None:
            event = make()
            for _ in range(2 if kind in self._twice else 1):
                if self.is_up and self.life == life:
                    self.feed(event)

        self.after(self._late_s.get(kind, seconds), bring)

    def _perform(self, action: ac.Action) -> None:
        if isinstance(action, ac.StartAttempt | ac.StopAttempt):
            if isinstance(action, ac.StopAttempt):
                self._check_stop(action)
            if self._lost[type(action)] > 0:
                self._lost[type(action)] -= 1
            else:
                self.launcher.obey(action)
        elif isinstance(action, ac.TakeLook):
            self.looks += 1
            seconds = self.random.uniform(0.1, 0.5) + self.world_size / 2000
            self.answer(action, seconds, lambda: self._look(action))
        elif isinstance(action, ac.ReadExits):
            self.answer(action, self.random.uniform(0.01, 0.3), lambda: self.launcher.read_exits(action))
        elif isinstance(action, ac.ChooseCheckpoint):
            self.answer(action, self.random.uniform(0.01, 1.0), lambda: self._choose(action))
        elif isinstance(action, ac.WriteIncident):
            self.incidents[action.incident.id] = action.incident
            if action.is_new:
                self._check_incident(action.incident)
        elif isinstance(action, ac.Say):
            self.said.append(action.text)
        else:
            assert isinstance(action, ac.FinishRun)
            self.summary = action.summary

    def _choose(self, action: ac.ChooseCheckpoint) -> ev.Event:
        return ev.CheckpointChosen(choice=action.choice, checkpoint=self.saved[-1] if self.saved else None)

    def _look(self, action: ac.TakeLook) -> ev.Event:
        job = self.job
        if job is None or job.number != action.attempt:
            return ev.LookTaken(look=action.look, attempt=action.attempt, ranks=[])
        job.advance(self.now_s)
        looks = [job.look(rank.rank.global_rank, self.now_s) for rank in job.living]
        return ev.LookTaken(look=action.look, attempt=action.attempt, ranks=looks, folder=f"looks/{action.look}")

    def _sample(self, node: int) -> None:
        self.after(SAMPLE_S, lambda: self._sample(node))
        if self.is_up:
            self.report(node)

    def report(self, node: int) -> None:
        """A node's sample of its boards."""
        job = self.job
        if job is None or self.engine.state.phase not in (Phase.RUNNING, Phase.STOPPING):
            return
        first = node * self.ranks_a_node
        reports = job.report(range(first, min(first + self.ranks_a_node, self.world_size)), self.now_s)
        if reports:
            self.feed(ev.NodeReport(node=f"node-{node}", attempt=job.number, ranks=reports))
        if node == 0 and job.step >= self.plan.total_steps and not job.own:
            self.launcher.training_ended()
        elif job.poison_step is not None and job.step >= job.poison_step and self.poison_with is not None:
            job.poison_step = None
            self.poison_with(job)

    # What must never happen ------------------------------------------------------------------------------------

    def _check_stop(self, action: ac.StopAttempt) -> None:
        self.stops.append((self.now_s, action.attempt))
        job = self.job
        if job is None or job.number != action.attempt:
            return
        has_fallen = any(rank.exitcode not in (None, 0) or rank.error for rank in job.ranks.values())
        if not job.culprits and not has_fallen:
            raise Wrong(f"a healthy job was stopped at {self.now_s:.1f} s: {self.said[-3:]}; {job.own}")

    def _check_incident(self, incident: ac.Incident) -> None:
        job = self.job
        if incident.kind != "hang" or incident.cause == "gc_pause" or job is None:
            return
        named = {culprit.rank for culprit in incident.culprits}
        if not named <= set(job.culprits):
            raise Wrong(f"{sorted(named)} named, {job.culprits} are to blame: {incident.summary}")

    def check_end(self) -> None:
        """The run is over, or training goes on: nothing has wedged."""
        check_costly(self.engine)
        if self.is_over:
            return
        job = self.job
        if job is None:
            due_s = self.engine.next_deadline_s()
            assert due_s is not None and due_s < self.now_s + 60, (
                f"between attempts for ever: {self.engine.state.story}"
            )
            return
        job.advance(self.now_s)
        state = self.engine.state
        if job.culprits and not state.is_held and self.settings.act:
            # Before there is any progress whoever stands alone may wait for another job's data.
            has_begun = state.attempt is not None and state.attempt.has_progress
            spin_s = self.settings.spin_patience_s if has_begun else self.settings.hard_timeout_s
            patience_s = spin_s + 3 * state.gaps.typical_s + 120
            # As long as somebody gets somewhere, nobody is suspected.
            is_busy = len(job.own) > len(job.culprits)
            began_s = min(job.ranks[n].began_s for n in job.culprits) + self.skipped_s
            # What nobody has seen counts for nothing: that ranks have not moved is counted from then on.
            began_s = self.now_s if is_busy else max(began_s, self.decoy_ended_s, self.blind_until_s)
            if self.now_s - began_s > max(patience_s, 2.1 * max(state.detectors.hang.remembered.values(), default=0)):
                raise Wrong(f"nothing is done about {job.own} since {began_s:.0f} s; now {self.now_s:.0f} s")

    def replay(self) -> State:
        """Run the journal through a new engine, which must decide the same. Returns its state."""
        engine = Engine()
        for number, entry in enumerate(self.journal):
            actions = msgspec.json.encode(engine.handle(entry.event, entry.now_s))
            if actions != entry.actions:
                raise Wrong(f"replay differs at event {number}, {type(entry.event).__name__} at {entry.now_s}")
        return engine.state

    # What a test asks ------------------------------------------------------------------------------------------

    @property
    def hangs(self) -> list[ac.Incident]:
        return [incident for incident in self.incidents.values() if incident.kind == "hang"]

    @property
    def last(self) -> ac.Incident:
        return self.incidents[max(self.incidents, key=int)]

    def named(self, incident: ac.Incident) -> list[int]:
        return [culprit.rank for culprit in incident.culprits]

    # What happens to it ----------------------------------------------------------------------------------------

    def do(self, doing: Activity, global_rank: int, at_s: float, seconds: float | None = None) -> None:
        """A rank begins to do something of its own, for seconds or for ever."""

        def begin() -> None:
            job = self.job
            if job is None or job.ranks[global_rank].exitcode is not None or global_rank in job.own:
                return
            job.begin(global_rank, doing, self.now_s)
            if seconds is not None:
                self.after(seconds, lambda: self._end(job, global_rank, doing))

        self.at(at_s, begin)

    def _end(self, job: Job, global_rank: int, doing: Activity) -> None:
        if job.own.get(global_rank) is doing:
            job.end(global_rank, self.now_s)
            self.decoy_ended_s = self.now_s

    def hang(self, global_rank: int, at_s: float) -> None:
        self.do(act.HANG, global_rank, at_s)

    def spin(self, global_rank: int, at_s: float) -> None:
        self.do(act.SPIN, global_rank, at_s)

    def stop_process(self, global_rank: int, at_s: float, seconds: float | None = None) -> None:
        self.do(act.STOPPED if seconds is None else act.BRIEFLY_STOPPED, global_rank, at_s, seconds)

    def hold_gil(self, global_rank: int, at_s: float) -> None:
        self.do(act.GIL_HELD, global_rank, at_s)

    def collect(self, global_rank: int, at_s: float, seconds: float) -> None:
        """A garbage collection; where others wait it is told."""
        self.do(act.COLLECTING_BRIEFLY, global_rank, at_s, seconds)

        def tell() -> None:
            job = self.job
            if job is None or not self.is_up or self.engine.state.phase is not Phase.RUNNING:
                return
            self.report(global_rank // self.ranks_a_node)
            self.feed(
                ev.GcHeld(
                    attempt=job.number,
                    global_rank=global_rank,
                    duration_s=seconds,
                    generation=2,
                    collected=1000,
                    step=job.step,
                )
            )

        self.at(at_s + seconds + 1e-3, tell)

    def evaluate(self, global_rank: int, at_s: float, seconds: float) -> None:
        self.do(act.EVALUATING, global_rank, at_s, seconds)

    def save(self, global_rank: int, at_s: float, seconds: float) -> None:
        self.do(act.SAVING, global_rank, at_s, seconds)
        self.at(at_s + seconds + 1e-3, self.keep_checkpoint)

    def keep_checkpoint(self) -> None:
        """What has just been saved is a whole checkpoint."""
        job = self.job
        if job is None:
            return
        job.advance(self.now_s)
        self.saved.append(ev.Checkpoint(path=f"/out/step-{job.step}", step=job.step))

    def pause(self, global_rank: int, at_s: float, seconds: float) -> None:
        self.do(act.PAUSING, global_rank, at_s, seconds)

    def crash(
        self, global_rank: int, at_s: float, *, exitcode: int = 1, error: ev.ErrorRecord | None = None, lag_s: float = 0
    ) -> None:
        """A rank falls; lag_s: its exit comes so much later than its peers notice (a core dump)."""
        self.at(at_s, lambda: self.launcher.rank_falls(global_rank, exitcode, error, lag_s))

    def kill(self, global_rank: int, at_s: float) -> None:
        self.crash(global_rank, at_s, exitcode=-9)

    def poison_at(self, step: int, poison: Callable[[Job], None]) -> None:
        """Each attempt that gets to this step meets the same."""
        self.poison, self.poison_with = step, poison

    def signal(self, signum: int, at_s: float) -> None:
        self.at(at_s, lambda: self.launcher.interrupt(signum))

    def hold(self, is_held: bool, at_s: float) -> None:
        self.at(at_s, lambda: self.feed(ev.HoldSet(is_held=is_held, who="ada")) if self.is_up else None)

    def lose(self, kind: type, times: int = 1) -> None:
        """The next answers to (or orders of) this kind of action get lost."""
        self._lost[kind] += times

    def delay(self, kind: type, seconds: float) -> None:
        self._late_s[kind] = seconds

    def repeat(self, kind: type) -> None:
        """Answers of this kind come twice."""
        self._twice.add(kind)

    def freeze(self, at_s: float, seconds: float) -> None:
        """The whole job does not run: scontrol suspend, a paused machine."""

        def thaw() -> None:
            self.now_s += seconds
            self._heap = [(t + seconds, n, call) for t, n, call in self._heap]
            heapq.heapify(self._heap)
            self.skipped_s += seconds
            if self.job is not None:
                self.job.freeze(seconds)
            if self.is_up:
                self._skip(seconds)

        self.at(at_s, thaw)

    def stop_supervisor(self, at_s: float, seconds: float) -> None:
        """SIGSTOP and SIGCONT of the supervisor alone."""
        self.at(at_s, self._go_down)
        self.at(at_s + seconds, lambda: self._come_back(seconds))

    def _go_down(self) -> None:
        self.is_up = False

    def _come_back(self, seconds: float) -> None:
        self.is_up = True
        self._skip(seconds)
        self._hear()

    def _skip(self, seconds: float) -> None:
        self.blind_until_s = self.now_s
        self.feed(ev.TimeSkipped(gap_s=seconds))

    def restart_supervisor(self, at_s: float, seconds: float = 1.0, *, by_replay: bool = True) -> None:
        """SIGKILL of the supervisor; the next one finds its state by the journal, or by a snapshot."""

        def back() -> None:
            if by_replay and self.is_journalled:
                self.engine = Engine(self.replay())
            else:
                self.engine = Engine.restore(self.engine.snapshot())
            self.is_up = True
            self.life += 1
            if self.job is not None:
                for rank in self.job.ranks.values():
                    rank.reported = ()
            self.feed(ev.SupervisorRestarted())
            self._hear()

        self.at(at_s, self._go_down)
        self.at(at_s + seconds, back)

    def _hear(self) -> None:
        facts, self._facts = self._facts, []
        for event in facts:
            self.feed(event)
