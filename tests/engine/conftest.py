"""A run told event by event. When a test ends, what it told is replayed and the engine's invariants are checked.

Of a long run its end, from a snapshot: a replay takes as long as the run itself did.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec
import pytest

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import first_ranks
from guardrun.supervisor.engine.state.state import State
from tests.engine.invariants import check_cheap, check_costly, is_same

REPLAYED = 300
"""Events at the end of a run that are replayed at least, where it has so many."""

ERROR = ev.ErrorRecord(error="ValueError", message="bad batch", frames=[("/home/user/train.py", "train", 60)])


class Told:
    """An engine, and all that it was told."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.now_s = 0.0
        self.journal: list[tuple[float, ev.Event, bytes]] = []
        self.incidents: dict[str, ac.Incident] = {}
        self._replays = [(0, self.engine.snapshot())]
        """Where in the journal a replay may begin, and from what: the two last ones, REPLAYED events apart."""

    def begin_with(self, **fields: object) -> None:
        """Begin with another memory than a new engine's."""
        for name, value in fields.items():
            setattr(self.engine.state, name, value)
        self._replays = [(len(self.journal), self.engine.snapshot())]

    @property
    def state(self) -> State:
        return self.engine.state

    @property
    def phase(self) -> Phase:
        return self.engine.state.phase

    def tell(self, event: ev.Event, at_s: float | None = None) -> list[ac.Action]:
        """Feed one event (at the time of the last one where none is given)."""
        self.now_s = max(self.now_s, at_s if at_s is not None else self.now_s)
        actions = self.engine.handle(event, self.now_s)
        self.journal.append((self.engine.last_s, event, msgspec.json.encode(actions)))
        if len(self.journal) == self._replays[-1][0] + REPLAYED:
            self._replays = [self._replays[-1], (len(self.journal), self.engine.snapshot())]
        check_cheap(self.engine)
        for action in actions:
            if isinstance(action, ac.WriteIncident):
                self.incidents[action.incident.id] = action.incident
        return actions

    def tick(self) -> list[ac.Action]:
        """Let time pass until something is due, and do it."""
        due_s = self.engine.next_deadline_s()
        assert due_s is not None, "nothing will ever be due"
        return self.tell(ev.Ticked(), max(due_s, self.now_s))

    def check(self) -> None:
        """The journal decides the same again, and the invariants hold."""
        now = check_costly(self.engine)
        begin, snapshot = self._replays[0]
        again = Engine.restore(snapshot)
        for at_s, event, actions in self.journal[begin:]:
            assert msgspec.json.encode(again.handle(event, at_s)) == actions
        assert is_same(again.snapshot(), now)

    def branch(self) -> Told:
        """Another, which goes on from here: as the next supervisor would, from a snapshot."""
        other = Told()
        snapshot = self.engine.snapshot()
        other._replays, other.engine = [(0, snapshot)], Engine.restore(snapshot)
        other.now_s, other.incidents = self.now_s, dict(self.incidents)
        return other

    # To where a test begins ------------------------------------------------------------------------------------

    def opened(self, ranks: int = 2, fleet: ev.FleetPlan | None = None, **settings: object) -> list[ac.Action]:
        """A run, whose first attempt has been ordered (or, of several nodes, waits for them)."""
        return self.tell(
            ev.RunOpened(
                run_id="run",
                settings=msgspec.convert(settings, ev.Settings),
                node="node-a",
                command=[],
                world_size=ranks,
                wall_s=0.0,
                fleet=fleet,
            ),
            0.1,
        )

    def joined(
        self, node: str, slot: int = -1, ranks: int = 2, attempt: int = -1, switches: str = ""
    ) -> list[ac.Action]:
        """switches: as `top.s0`."""
        above = switches.split(".") if switches else []
        return self.tell(ev.NodeJoined(node=node, slot=slot, ranks=ranks, attempt=attempt, switches=above))

    def fleet_opened(self, most: int = 2, spares: int = 0, least: int | None = None, **settings: object) -> None:
        """Nodes n0, n1, …, all there: the first attempt has been ordered."""
        plan = ev.FleetPlan(least=most if least is None else least, most=most, spares=spares)
        self.opened(2, plan, **settings)
        for slot in range(most + spares):
            self.joined(f"n{slot}", slot)

    def fleet_started(self, at_s: float | None = None) -> list[ac.Action]:
        """The next attempt runs, on the nodes that were chosen."""
        assert self.state.fleet is not None
        number, placed = self.state.next_attempt, self.state.fleet.placed
        firsts = first_ranks(self.state.fleet, placed)
        alive = [
            ev.Rank(global_rank=first + n, local_rank=n, pid=100 * (number + 1) + first + n, node=node)
            for node, first, end in zip(placed, firsts, firsts[1:], strict=False)
            for n in range(end - first)
        ]
        return self.tell(ev.AttemptStarted(attempt=number, ranks=alive, resumed_from=self.state.checkpoint), at_s)

    def started(
        self, attempt: int = 0, ranks: int | None = None, at_s: float | None = None, forked: Container[int] = ()
    ) -> list[ac.Action]:
        """forked: ranks that were, of a warm process."""
        count, first = ranks or self.state.world_size, 100 * (attempt + 1)
        alive = [
            ev.Rank(global_rank=n, local_rank=n, pid=first + n, node="node-a", is_forked=n in forked)
            for n in range(count)
        ]
        return self.tell(ev.AttemptStarted(attempt=attempt, ranks=alive, resumed_from=self.state.checkpoint), at_s)

    def running(self, ranks: int = 2, **settings: object) -> Told:
        """Training since one second, at step 10."""
        self.opened(ranks, **settings)
        self.started(at_s=1.0)
        self.step(10, 2.0)
        return self

    def step(self, step: int, at_s: float, ranks: range | None = None, attempt: int | None = None) -> list[ac.Action]:
        """Ranks report that they have got to a step; on several nodes they do collectives together."""
        number = attempt if attempt is not None else self.attempt
        world = ranks or range(self.state.world_size)
        joint = step if self.state.fleet is not None and len(self.state.fleet.placed) > 1 else 0
        reports = [ev.RankReport(global_rank=n, progress=step, progress_s=at_s, step=step, joint=joint) for n in world]
        return self.tell(ev.NodeReport(node="node-a", attempt=number, ranks=reports), at_s)

    @property
    def attempt(self) -> int:
        return self.state.attempt.number if self.state.attempt else 0

    def exits(self, rank: int, exitcode: int, at_s: float | None = None) -> list[ac.Action]:
        at_s = self.now_s if at_s is None else at_s
        pid = 100 * (self.attempt + 1) + rank
        return self.tell(
            ev.RankExited(attempt=self.attempt, global_rank=rank, pid=pid, exitcode=exitcode, at_s=at_s), at_s
        )

    def stopped(self, at_s: float | None = None, **codes: int) -> list[ac.Action]:
        """Nothing of the attempt is alive; codes: r0=…, -15 where none is given."""
        assert self.state.attempt is not None
        exitcodes = {
            n: codes.get(f"r{n}", -15 if rank.exitcode is None else rank.exitcode)
            for n, rank in self.state.attempt.ranks.items()
        }
        return self.tell(ev.AttemptStopped(attempt=self.attempt, exitcodes=exitcodes, stopped_by_us=[]), at_s)

    def read(self, at_s: float | None = None, **more: object) -> list[ac.Action]:
        """Exits have been read."""
        return self.tell(msgspec.convert({"attempt": self.attempt, "traces": [], **more}, ev.ExitsRead), at_s)

    def chosen(self, checkpoint: ev.Checkpoint | None = None, **more: object) -> list[ac.Action]:
        return self.tell(ev.CheckpointChosen(choice=self.state.choice, checkpoint=checkpoint, **more))  # type: ignore[arg-type]

    def crashed(self, exitcode: int = -11, error: ev.ErrorRecord | None = None, rank: int = 1) -> list[ac.Action]:
        """A rank falls, its cause is told, everything is stopped: returns what follows from that."""
        if error is not None:
            raised = msgspec.structs.replace(error, at_s=self.now_s)
            self.tell(ev.UncaughtExceptionReported(attempt=self.attempt, global_rank=rank, error=raised))
        self.exits(rank, exitcode)
        self.tick()
        self.read(self.now_s + 0.1)
        actions = self.stopped(self.now_s + 1.0)
        return self.read(self.now_s + 0.1) if "ReadExits" in kinds(actions) else actions

    def restarted(self, step: int = 10, checkpoint: ev.Checkpoint | None = None) -> None:
        """The next attempt starts and gets to a step."""
        self.chosen(checkpoint)
        self.started(self.state.next_attempt, at_s=self.now_s + 0.5)
        self.step(step, self.now_s + 5.0)


@pytest.fixture
def told() -> Iterator[Told]:
    run = Told()
    yield run
    run.check()


def kinds(actions: list[ac.Action]) -> list[str]:
    """The actions' names, without what is only said."""
    return [type(action).__name__ for action in actions if not isinstance(action, ac.Say)]
