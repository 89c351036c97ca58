"""One attempt out of its nodes' parts: in whatever order they answer, fall silent, or come anew."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.membership.node_silence import DROPPED_S
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import ProcessLook, RankLook, Reading
from guardrun.supervisor.fleet.coordinator.event_aggregator import (
    EXITS_S,
    GRACES,
    SETTLE_S,
    SILENT_S,
    START_LIMIT_S,
    STOP_LIMIT_S,
    EventAggregator,
)
from guardrun.supervisor.fleet.protocol.lease import END_MARGIN_S, MOST_STILL_S, STILL_S
from guardrun.supervisor.wire.control_messages import Place, Start, Stop

TERM_S, LOST_S = 15.0, 25.0
NODES = ["a", "b", "c"]
GONE_S = TERM_S * 1.01 + END_MARGIN_S


class Job:
    """A gather, and what the engine has been told by it."""

    def __init__(self, nodes: list[str] | None = None, ranks: int = 2) -> None:
        self.aggregator = EventAggregator(TERM_S, "run", LOST_S)
        self.nodes = NODES if nodes is None else nodes
        self.ranks = ranks
        self.now_s = 100.0
        self.events: list[ev.Event] = []
        for node in self.nodes:
            self.aggregator.joined(node, -1, self.now_s)

    # The engine ----------------------------------------------------------------------------------------------

    def order(self, attempt: int = 0) -> None:
        self.aggregator.start(ac.StartAttempt(attempt=attempt, nodes=self.nodes), dict.fromkeys(self.nodes, self.ranks))

    def stop(self, attempt: int = 0) -> None:
        self.aggregator.stop(ac.StopAttempt(attempt=attempt, grace_s=3.0))

    def told(self, kind: type[ev.Event]) -> list[ev.Event]:
        return [event for event in self.events if isinstance(event, kind)]

    # Nodes -----------------------------------------------------------------------------------------------------

    def orders(self) -> list[tuple[str, object]]:
        orders, self.aggregator.orders = self.aggregator.orders, []
        return list(orders)

    def ordered(self, kind: type) -> list[str]:
        return [node for node, order in self.orders() if isinstance(order, kind)]

    def ranks_of(self, node: str) -> list[ev.Rank]:
        first = self.nodes.index(node) * self.ranks
        return [ev.Rank(global_rank=first + n, local_rank=n, pid=500 + first + n, node=node) for n in range(self.ranks)]

    def tell(self, node: str, event: ev.Event) -> None:
        self.events += self.aggregator.on_node_event(node, event, self.now_s)

    def starts(self, node: str, attempt: int = 0) -> None:
        self.tell(node, ev.AttemptStarted(attempt=attempt, ranks=self.ranks_of(node)))

    def stops(self, node: str, attempt: int = 0, code: int = -15) -> None:
        codes = {rank.global_rank: code for rank in self.ranks_of(node)}
        self.tell(node, ev.AttemptStopped(attempt=attempt, exitcodes=codes, stopped_by_us=list(codes)))

    def skip(self, seconds: float) -> None:
        """The head does not run for so long, and says so when it does."""
        self.now_s += seconds
        self.aggregator.skipped(self.now_s, seconds)

    def pass_s(self, seconds: float, *heard: str) -> None:
        """So much time goes by, and only these are heard."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(self.now_s + 1.0, end_s)
            for node in heard:
                self.events += self.aggregator.on_contact(node, self.now_s)
            self.events += self.aggregator.tick(self.now_s)

    def running(self) -> Job:
        self.order()
        self.aggregator.serving(0, "10.0.0.1", 4000)
        for node in self.nodes:
            self.starts(node)
        self.orders()
        return self


# Starting ------------------------------------------------------------------------------------------------


def test_ranks_are_counted_by_the_role_of_their_node_too() -> None:
    job = Job()
    sizes, roles = {"a": 2, "b": 3, "c": 1}, {"a": "trainer", "b": "evaluator", "c": "trainer"}
    job.aggregator.start(ac.StartAttempt(attempt=0, nodes=job.nodes), sizes, roles)
    job.aggregator.serving(0, "10.0.0.1", 4000)
    places = {node: order.place for node, order in job.orders() if isinstance(order, Start)}
    assert {node: (p.first_rank, p.role_rank, p.role_size) for node, p in places.items() if p is not None} == {
        "a": (0, 0, 3),
        "b": (2, 0, 3),
        "c": (5, 2, 3),
    }


def test_the_first_node_serves_the_store_before_the_others_are_told() -> None:
    job = Job()
    job.order()
    assert job.ordered(Start) == ["a"]
    job.aggregator.serving(0, "10.0.0.1", 4000)
    orders = dict(job.orders())
    assert list(orders) == ["b", "c"]
    start = orders["c"]
    assert isinstance(start, Start)
    assert start.place == Place(
        group_rank=2,
        nodes=3,
        first_rank=4,
        world_size=6,
        role_rank=4,
        role_size=6,
        address="10.0.0.1",
        port=4000,
        run_id="run",
    )
    job.aggregator.serving(1, "10.0.0.9", 1)  # of another attempt
    assert not job.orders()


@given(st.permutations(NODES))
def test_the_engine_hears_of_all_ranks_at_once_and_first(order: list[str]) -> None:
    job = Job()
    job.order()
    for node in order[:-1]:
        job.starts(node)
        first = job.ranks_of(node)[0].global_rank
        job.tell(node, ev.UncaughtExceptionReported(attempt=0, global_rank=first, error=ERROR))
    assert not job.events
    job.starts(order[-1])
    assert [type(event) for event in job.events] == [
        ev.AttemptStarted,
        ev.UncaughtExceptionReported,
        ev.UncaughtExceptionReported,
    ]
    [started] = job.told(ev.AttemptStarted)
    assert isinstance(started, ev.AttemptStarted)
    assert [rank.global_rank for rank in started.ranks] == list(range(6))


ERROR = ev.ErrorRecord(error="ValueError", message="x", at_s=1.0)


def test_what_each_node_was_started_into_is_told_of_all() -> None:
    job = Job()
    job.order()
    waits = {node: ev.MemoryWait(node=node, waited_s=1.0, why="free") for node in job.nodes[:2]}
    job.aggregator.serving(0, "10.0.0.1", 4000)
    for node in job.nodes:
        memory = [waits[node]] if node in waits else []
        job.tell(node, ev.AttemptStarted(attempt=0, ranks=job.ranks_of(node), memory=memory))
    [started] = job.told(ev.AttemptStarted)
    assert isinstance(started, ev.AttemptStarted) and started.memory == list(waits.values())


def test_a_node_that_cannot_start_leaves_the_others_to_be_stopped() -> None:
    job = Job()
    job.order()
    job.starts("a")
    job.starts("c")
    job.tell("b", ev.AttemptNotStarted(attempt=0, error="no memory"))
    started, left = job.events
    assert isinstance(started, ev.AttemptStarted)
    assert {rank.node for rank in started.ranks} == {"a", "c"}
    assert left == ev.NodeLeft(node="b", why="it could not start its ranks: no memory", is_unfit=True)
    job.stop()
    job.stops("a")
    job.stops("c")
    assert job.told(ev.AttemptStopped)


def test_where_nobody_can_start_the_reasons_are_told() -> None:
    job = Job(["a", "b"])
    job.order()
    job.aggregator.serving(0, "10.0.0.1", 4000)
    job.tell("a", ev.AttemptNotStarted(attempt=0, error="no files"))
    assert not job.events
    job.tell("b", ev.AttemptNotStarted(attempt=0, error="no memory"))
    assert job.events == [ev.AttemptNotStarted(attempt=0, error="a: no files; b: no memory")]


def test_where_the_store_cannot_be_served_nobody_else_is_waited_for() -> None:
    job = Job(["a", "b"])
    job.order()
    job.tell("a", ev.AttemptNotStarted(attempt=0, error="no ports"))
    assert job.events == [ev.AttemptNotStarted(attempt=0, error="a: no ports")]


@pytest.mark.parametrize("deaf", ["a", "c"])
def test_a_node_that_is_heard_but_does_not_start_is_left_out_in_the_end(deaf: str) -> None:
    job = Job()
    job.order()
    if deaf != "a":
        job.aggregator.serving(0, "10.0.0.1", 4000)
        job.starts("a")
        job.pass_s(START_LIMIT_S - 10.0, *NODES)
        job.starts("b")  # one after the other is no standstill
    job.pass_s(START_LIMIT_S - 1.0, *NODES)
    assert not job.events
    job.pass_s(2.0, *NODES)
    started, left = job.events
    assert isinstance(started, ev.AttemptStarted)
    assert {rank.node for rank in started.ranks} == (set() if deaf == "a" else {"a", "b"})
    assert left == ev.NodeLeft(
        node=deaf, why="it could not start its ranks: no answer to the order to start for 180 s", is_unfit=True
    )
    job.starts(deaf)  # after all: it has ranks, whose end is waited for
    job.stop()
    for node in set(NODES) - {deaf}:
        job.stops(node)
    job.pass_s(30.0, *NODES)
    assert not job.told(ev.AttemptStopped)
    job.stops(deaf)
    assert job.told(ev.AttemptStopped)


def test_a_node_that_is_heard_but_does_not_stop_is_left_out_in_the_end() -> None:
    job = Job().running()
    job.stop()
    job.pass_s(50.0, *NODES)
    job.stops("a")
    job.stops("b")
    job.orders()
    limit_s = GRACES * 3.0 + STOP_LIMIT_S
    job.pass_s(limit_s - 1.0, *NODES)
    assert not job.told(ev.AttemptStopped)
    job.stop()  # ordered again: that is no reason to wait longer
    job.orders()
    job.pass_s(2.0, *NODES)
    [left] = job.told(ev.NodeLeft)
    assert isinstance(left, ev.NodeLeft)
    assert (left.node, left.is_unfit) == ("c", True)
    assert left.why == "it is there, but has not said for 115 s that its ranks have ended"
    assert isinstance(job.events[-1], ev.AttemptStopped)
    assert job.orders() == [("c", Stop(attempt=0, grace_s=0.0))]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_silent_node_is_waited_for_until_the_engine_has_given_it_up(is_dropped: bool) -> None:
    job = Job()
    job.order()
    job.starts("a")
    job.starts("b")
    if is_dropped:
        job.events += job.aggregator.dropped("c", job.now_s)
    patience_s = DROPPED_S if is_dropped else LOST_S
    job.pass_s(patience_s, "a", "b")
    assert not job.told(ev.AttemptStarted)
    assert [event.node for event in job.events if isinstance(event, ev.NodeSuspected)] == ["c"]
    job.pass_s(SETTLE_S, "a", "b")
    [started] = job.told(ev.AttemptStarted)
    assert isinstance(started, ev.AttemptStarted)
    assert {rank.node for rank in started.ranks} == {"a", "b"}


def test_after_a_silence_a_closure_counts_from_when_it_was_seen() -> None:
    """As where a node was frozen: its last word is long past when it wakes up."""
    job = Job()
    job.order()
    job.starts("a")
    job.starts("b")
    job.pass_s(LOST_S - 2.0, "a", "b")
    job.events += job.aggregator.dropped("c", job.now_s)
    job.pass_s(DROPPED_S, "a", "b")
    assert not job.told(ev.AttemptStarted)
    job.pass_s(SETTLE_S, "a", "b")
    assert job.told(ev.AttemptStarted)


def test_a_deputy_that_is_killed_while_an_attempt_starts_is_waited_for() -> None:
    job = Job()
    job.order()
    job.aggregator.serving(0, "10.0.0.1", 4000)
    job.starts("a")
    job.starts("b")
    job.events += job.aggregator.dropped("c", job.now_s)
    job.pass_s(2.0, "a", "b")
    job.orders()
    job.aggregator.joined("c", 0, job.now_s)
    assert job.ordered(Start) == ["c"]  # its launcher tells again what the deputy before took with it
    job.starts("c")
    [started] = job.told(ev.AttemptStarted)
    assert isinstance(started, ev.AttemptStarted)
    assert len(started.ranks) == 6


def test_a_node_that_ends_while_an_attempt_starts_is_not_waited_for() -> None:
    """It says that it ends, and then its connection is closed: that is no silence to be waited out."""
    job = Job(["a", "b"])
    job.order()
    job.aggregator.serving(0, "a", 4000)
    job.starts("a")
    job.events += job.aggregator.on_node_event("b", ev.NodeLeft(node="b"), job.now_s)
    job.aggregator.forget("b")
    assert job.aggregator.dropped("b", job.now_s) == []
    job.pass_s(2.0, "a")
    [started] = job.told(ev.AttemptStarted)
    assert isinstance(started, ev.AttemptStarted) and {rank.node for rank in started.ranks} == {"a"}


def test_without_the_store_nobody_starts() -> None:
    job = Job()
    job.order()
    job.pass_s(LOST_S + SETTLE_S, "b", "c")
    [started] = job.told(ev.AttemptStarted)
    assert isinstance(started, ev.AttemptStarted)
    assert not started.ranks  # the engine stops it, and goes on without the node that it has given up
    job.stop()
    job.stops("b")
    job.stops("c")
    job.pass_s(GONE_S, "b", "c")
    assert job.told(ev.AttemptStopped)


# Ranks -----------------------------------------------------------------------------------------------------


def test_what_an_older_attempt_says_is_not_passed_on() -> None:
    job = Job().running()
    before = list(job.events)
    job.tell("b", ev.RankExited(attempt=-1, global_rank=2, pid=502, exitcode=1, at_s=1.0))
    job.starts("b", attempt=7)
    assert job.events == before


@given(st.permutations(NODES))
def test_an_attempt_is_over_when_all_nodes_have_said_so(order: list[str]) -> None:
    job = Job().running()
    job.stop()
    assert job.ordered(Stop) == NODES
    for node in order:
        assert not job.told(ev.AttemptStopped)
        job.stops(node)
    [stopped] = job.told(ev.AttemptStopped)
    assert isinstance(stopped, ev.AttemptStopped)
    assert stopped.exitcodes == dict.fromkeys(range(6), -15)
    assert stopped.stopped_by_us == list(range(6))
    job.stops("b")  # told again
    assert len(job.told(ev.AttemptStopped)) == 1


def test_ends_that_were_lost_with_who_was_to_tell_them_come_with_the_nodes_own() -> None:
    job = Job().running()
    job.tell("b", ev.RankExited(attempt=0, global_rank=2, pid=502, exitcode=1, at_s=1.0))
    job.tell("b", ev.AttemptStopped(attempt=0, exitcodes={2: 1, 3: 7}, stopped_by_us=[]))
    ends = [(e.global_rank, e.exitcode) for e in job.events if isinstance(e, ev.RankExited)]
    assert ends == [(2, 1), (3, 7)]


def test_a_node_that_is_started_anew_has_lost_its_ranks() -> None:
    job = Job().running()
    job.aggregator.joined("b", -1, job.now_s)
    assert job.ordered(Stop) == ["b"]
    job.tell("b", ev.AttemptStopped(attempt=0, exitcodes={}, stopped_by_us=[]))  # it knows of no such attempt
    ends = [(e.global_rank, e.exitcode) for e in job.events if isinstance(e, ev.RankExited)]
    assert ends == [(2, -9), (3, -9)]
    job.stop()
    job.stops("a")
    job.stops("c")
    assert job.told(ev.AttemptStopped)


def test_a_connection_that_is_made_anew_changes_nothing() -> None:
    job = Job().running()
    before = list(job.events)
    for attempt in (0, -1):  # what it has to say of that, it has said, or will in its place
        job.aggregator.joined("b", attempt, job.now_s, is_new=False)
        assert not job.orders()
    assert job.events == before


def test_ranks_of_an_attempt_that_has_gone_on_are_ended() -> None:
    job = Job(["a", "b", "c", "d"])
    job.nodes = ["a", "b", "c"]
    job.running()
    job.aggregator.joined("d", 0, job.now_s, is_new=False)
    assert [(node, type(order)) for node, order in job.orders()] == [("d", Stop)]
    job.stop()
    for node in NODES:
        job.stops(node)
    job.orders()
    job.aggregator.joined("b", 0, job.now_s)
    assert job.ordered(Stop) == ["b"]


# Lost nodes ------------------------------------------------------------------------------------------------


def test_a_lost_node_is_waited_for_until_its_lease_is_over() -> None:
    job = Job().running()
    job.pass_s(LOST_S, "a", "b")
    job.stop()
    job.stops("a")
    job.stops("b")
    stopped_s = job.now_s
    job.pass_s(STILL_S + END_MARGIN_S - 0.5, "a", "b")
    assert not job.told(ev.AttemptStopped)
    job.pass_s(1.0, "a", "b")
    assert job.told(ev.AttemptStopped)
    assert job.now_s > stopped_s + STILL_S + END_MARGIN_S


def test_of_a_node_that_has_just_fallen_silent_the_whole_lease_is_waited_for() -> None:
    job = Job().running()
    job.events += job.aggregator.dropped("c", job.now_s)
    job.stop()
    job.stops("a")
    job.stops("b")
    job.pass_s(TERM_S + END_MARGIN_S, "a", "b")
    assert not job.told(ev.AttemptStopped)
    job.pass_s(0.5, "a", "b")
    assert job.told(ev.AttemptStopped)


def test_its_lease_counts_from_its_last_word_also_where_its_connection_was_closed_right_after() -> None:
    job = Job().running()
    job.now_s += 0.9  # nobody has been asked since
    job.events += job.aggregator.dropped("c", job.now_s + 0.05, heard_s=job.now_s)
    job.stop()
    job.stops("a")
    job.stops("b")
    job.pass_s(TERM_S + END_MARGIN_S, "a", "b")
    assert not job.told(ev.AttemptStopped)
    job.pass_s(0.5, "a", "b")
    assert job.told(ev.AttemptStopped)


def test_what_was_heard_before_it_fell_silent_is_no_new_sign_of_life() -> None:
    job = Job().running()
    heard_s = job.now_s
    job.pass_s(SILENT_S, "a", "b")
    assert not job.aggregator.on_contact("c", heard_s)
    assert job.aggregator.on_contact("c", heard_s + 0.1) == [ev.NodeContactRestored(node="c")]


def test_a_node_that_was_only_told_to_start_may_have_ranks() -> None:
    job = Job()
    job.order()
    job.aggregator.serving(0, "10.0.0.1", 4000)
    job.starts("a")
    job.starts("b")
    job.pass_s(LOST_S + SETTLE_S, "a", "b")
    job.stop()
    job.stops("a")
    job.stops("b")
    assert not job.told(ev.AttemptStopped)
    job.pass_s(STILL_S + END_MARGIN_S + 0.5, "a", "b")
    assert job.told(ev.AttemptStopped)


def test_a_node_that_says_that_it_ends_is_not_waited_for() -> None:
    job = Job().running()
    job.aggregator.forget("b")
    job.stop()
    job.stops("a")
    job.stops("c")
    assert job.told(ev.AttemptStopped)


def test_a_head_that_was_started_anew_waits_for_leases_from_its_own_start_on() -> None:
    old = Job().running()
    [started] = old.told(ev.AttemptStarted)
    assert isinstance(started, ev.AttemptStarted)
    job = Job(["a", "b"])
    job.nodes = NODES
    job.aggregator.resume(0, started.ranks, job.now_s)
    job.stop()
    assert job.ordered(Stop) == NODES
    job.stops("a")
    job.stops("b")
    # c has not been heard by this one, which does not know how long its steps are.
    job.pass_s(MOST_STILL_S + END_MARGIN_S - 0.5, "a", "b")
    assert not job.told(ev.AttemptStopped)
    job.pass_s(1.0, "a", "b")
    assert job.told(ev.AttemptStopped)
    assert not job.told(ev.AttemptStarted)


def test_time_that_the_head_itself_lost_is_nobodys_silence() -> None:
    job = Job().running()
    job.skip(60.0)
    job.pass_s(1.0)
    assert not job.told(ev.NodeSuspected)
    job.pass_s(SILENT_S)
    assert len(job.told(ev.NodeSuspected)) == 3


def test_time_that_the_head_itself_lost_makes_nobody_late_to_start() -> None:
    """The whole job was suspended while it started. Who does not start afterwards, either, is left out as ever."""
    job = Job()
    job.order()
    job.aggregator.serving(0, "10.0.0.1", 4000)
    job.starts("a")
    job.skip(2 * START_LIMIT_S)
    job.pass_s(START_LIMIT_S - 1.0, *NODES)
    assert not job.told(ev.NodeLeft) and not job.told(ev.AttemptStarted)
    job.starts("b")
    job.pass_s(START_LIMIT_S + 1.0, *NODES)
    assert [left.node for left in job.told(ev.NodeLeft) if isinstance(left, ev.NodeLeft)] == ["c"]


def test_time_that_the_head_itself_lost_makes_nobody_late_to_stop() -> None:
    job = Job().running()
    job.stop()
    job.stops("a")
    job.pass_s(1.0, *NODES)
    job.skip(10 * STOP_LIMIT_S)
    job.pass_s(STOP_LIMIT_S - 2.0, *NODES)
    assert not job.told(ev.NodeLeft) and not job.told(ev.AttemptStopped)
    job.stops("b")
    job.pass_s(STOP_LIMIT_S + GRACES * 3.0 + 1.0, *NODES)
    assert [left.node for left in job.told(ev.NodeLeft) if isinstance(left, ev.NodeLeft)] == ["c"]


def test_a_node_whose_connection_was_closed_before_the_head_was_stopped_may_still_start() -> None:
    job = Job()
    job.order()
    job.aggregator.serving(0, "10.0.0.1", 4000)
    job.starts("a")
    job.starts("c")
    job.events += job.aggregator.dropped("b", job.now_s)
    job.skip(60.0)
    job.pass_s(DROPPED_S + SETTLE_S - 1.0, "a", "c")
    assert not job.told(ev.AttemptStarted)
    job.pass_s(2.0, "a", "c")
    assert job.told(ev.AttemptStarted)


# Looks and exits -------------------------------------------------------------------------------------------


LOOK = ac.TakeLook(look=1, attempt=0, reason="suspicion")


def look_of(job: Job, node: str) -> ev.LookTaken:
    reading = Reading(name="disk", value=1.0, note="slow", is_odd=True)
    fine = Reading(name="clock", value=1.0)
    ranks = [
        RankLook(global_rank=rank.global_rank, at_s=job.now_s, process=ProcessLook(pid=rank.pid))
        for rank in job.ranks_of(node)
    ]
    return ev.LookTaken(look=1, attempt=0, ranks=ranks, missing={}, took_s=1.0, folder="f", readings=[reading, fine])


def test_a_look_is_told_once_with_those_that_did_not_answer() -> None:
    job = Job().running()
    job.aggregator.look(LOOK, job.now_s)
    assert job.ordered(ac.TakeLook) == NODES
    job.tell("a", look_of(job, "a"))
    job.tell("c", look_of(job, "c"))
    assert not job.told(ev.LookTaken)
    job.pass_s(SILENT_S, "a", "c")
    [look] = job.told(ev.LookTaken)
    assert isinstance(look, ev.LookTaken)
    assert sorted(rank.global_rank for rank in look.ranks) == [0, 1, 4, 5]
    assert look.missing == {2: "b did not answer", 3: "b did not answer"}
    assert [reading.note for reading in look.readings] == ["a: slow", "c: slow"]
    job.tell("b", look_of(job, "b"))
    assert len(job.told(ev.LookTaken)) == 1


def test_a_look_that_a_living_node_does_not_answer_ends_by_its_time() -> None:
    job = Job().running()
    job.aggregator.look(LOOK, job.now_s)
    job.pass_s(120.0, *NODES)
    assert len(job.told(ev.LookTaken)) == 1


def test_exits_count_the_memory_of_those_nodes_whose_ranks_were_killed() -> None:
    job = Job().running()
    job.tell("b", ev.RankExited(attempt=0, global_rank=2, pid=502, exitcode=-9, at_s=1.0))
    job.aggregator.read_exits(ac.ReadExits(attempt=0), job.now_s)
    for node, kills in (("a", 3), ("b", 1)):
        job.tell(
            node, ev.ExitsRead(attempt=0, traces=[], oom_kills=kills, oom_pids=[kills], disk_free_bytes={"/": kills})
        )
    job.pass_s(EXITS_S, *NODES)
    [read] = job.told(ev.ExitsRead)
    assert isinstance(read, ev.ExitsRead)
    assert (read.oom_kills, read.oom_pids, read.disk_free_bytes) == (1, [1], {"/": 1})


# Whatever the order ----------------------------------------------------------------------------------------


@dataclass
class Machine:
    """A node as its launcher and deputy are: what it answers to orders."""

    name: str
    attempt: int = -1
    """Whose ranks are alive."""
    last: int = -1
    is_there: bool = True
    inbox: list[object] = field(default_factory=list)

    def obey(self, job: Job) -> None:
        """Deal with the oldest order."""
        order = self.inbox.pop(0)
        if isinstance(order, Start):
            if order.attempt >= self.last:
                self.attempt = self.last = order.attempt
                if order.place is not None and order.place.group_rank == 0:
                    job.aggregator.serving(order.attempt, "10.0.0.1", 4000)
                job.starts(self.name, order.attempt)
        elif isinstance(order, Stop) and order.attempt >= self.last:
            self.attempt, self.last = -1, max(self.last, order.attempt)
            job.stops(self.name, order.attempt)


def settle(job: Job, machines: dict[str, Machine], is_stopping: bool) -> None:
    """Those that are there answer everything; the engine asks again as its deadlines have it."""
    for _ in range(8):
        if is_stopping:
            job.stop()
        elif not job.told(ev.AttemptStarted) and not job.told(ev.AttemptNotStarted):
            job.order()
        for _ in range(4):
            for node, order in job.orders():
                machines[node].inbox.append(order)
            for machine in machines.values():
                while machine.is_there and machine.inbox:
                    machine.obey(job)
        job.pass_s(10.0, *(name for name, machine in machines.items() if machine.is_there))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["obey", "kill", "deputy", "cut", "heal", "leave", "tick", "stop"]), st.sampled_from(NODES)
        ),
        max_size=25,
    )
)
def test_nothing_is_waited_for_for_ever(story: list[tuple[str, str]]) -> None:
    job = Job()
    machines = {node: Machine(node) for node in NODES}
    job.order()
    is_stopping = False
    for what, node in story:
        machine = machines[node]
        for name, order in job.orders():
            machines[name].inbox.append(order)
        if what == "obey" and machine.is_there and machine.inbox:
            machine.obey(job)
        elif what == "kill":  # its guardrun; a new one joins
            machine.attempt, machine.last, machine.is_there = -1, -1, True
            machine.inbox.clear()
            job.events += job.aggregator.dropped(node, job.now_s)
            job.aggregator.joined(node, -1, job.now_s)
        elif what == "deputy" and machine.is_there:  # what was on its way is lost
            machine.inbox.clear()
            job.events += job.aggregator.dropped(node, job.now_s)
            job.aggregator.joined(node, machine.attempt, job.now_s)
        elif what == "cut":
            machine.is_there = False
        elif what == "heal" and not machine.is_there:
            machine.is_there = True
            job.aggregator.joined(node, machine.attempt, job.now_s, is_new=False)
        elif what == "leave":
            machine.attempt, machine.is_there = -1, False
            job.aggregator.forget(node)
        elif what == "tick":
            job.pass_s(4.0, *(name for name, one in machines.items() if one.is_there))
        elif what == "stop" and job.told(ev.AttemptStarted):
            is_stopping = True
            job.stop()
    settle(job, machines, is_stopping=is_stopping)
    assert len(job.told(ev.AttemptStarted)) + len(job.told(ev.AttemptNotStarted)) == 1
    if job.told(ev.AttemptStarted):
        settle(job, machines, is_stopping=True)
        assert len(job.told(ev.AttemptStopped)) == 1
        assert not [name for name, machine in machines.items() if machine.is_there and machine.attempt >= 0]
    exits = [event.global_rank for event in job.events if isinstance(event, ev.RankExited)]
    assert len(exits) == len(set(exits))


def test_what_is_done_with_an_answer_does_not_grow_with_the_nodes() -> None:
    """Each of many nodes answers an order to start, a question and an order to stop; seconds, were each looked for."""
    began = time.process_time()
    names = [f"n{number}" for number in range(6000)]
    job = Job(names, ranks=1)
    job.order()
    job.aggregator.serving(0, "10.0.0.1", 4242)
    for place, node in enumerate(names):
        rank = ev.Rank(global_rank=place, local_rank=0, pid=1, node=node)
        job.events += job.aggregator.on_node_event(node, ev.AttemptStarted(attempt=0, ranks=[rank]), job.now_s)
    job.aggregator.look(ac.TakeLook(look=1, attempt=0, reason=""), job.now_s)
    job.stop()
    for node in names:
        job.events += job.aggregator.on_node_event(node, ev.LookTaken(look=1, attempt=0, ranks=[]), job.now_s)
        stopped = ev.AttemptStopped(attempt=0, exitcodes={}, stopped_by_us=[])
        job.events += job.aggregator.on_node_event(node, stopped, job.now_s)
    assert {type(e) for e in job.events} >= {ev.AttemptStarted, ev.LookTaken, ev.AttemptStopped}
    assert time.process_time() - began < 2.0
