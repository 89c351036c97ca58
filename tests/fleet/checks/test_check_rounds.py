"""Nodes tried together: the head's steps, with nodes that answer, are late, or are not there; and real ones."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from guardrun.supervisor.engine.membership.node_checks import LIMITS_S
from guardrun.supervisor.engine.membership.reachability import ProbeResult
from guardrun.supervisor.engine.membership.version_skew import NodeEnvironment
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import CheckNodes
from guardrun.supervisor.fleet.checks import check_rounds, node_probes, reachability_probe
from guardrun.supervisor.fleet.checks.check_rounds import ADD_S, MEET_S, PROBE_S, WARM_S, FleetChecks
from guardrun.supervisor.fleet.checks.node_probes import ADD_S as NODE_ADD_S
from guardrun.supervisor.fleet.checks.node_probes import MEET_S as NODE_MEET_S
from guardrun.supervisor.fleet.checks.node_probes import READY_S, SERVE_S, About, NodeChecks
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.wire.listening_addresses import EVERYWHERE
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

TOKEN = b"0123456789abcdef"
Answer = msg.Probed | msg.Met | msg.Warmed | msg.Added


class Nodes:
    """Stand in for nodes: each answers a step at once, unless it is mute, deaf or broken."""

    def __init__(self, count: int = 4, level: str = "quick") -> None:
        self.names = [f"n{number}" for number in range(count)]
        self.level = level
        self.mute: set[str] = set()
        self.deaf: set[str] = set()
        """Nobody reaches them, and they reach nobody."""
        self.broken: set[str] = set()
        """They fail in all-reduces."""
        self.late: set[str] = set()
        """Nobody reaches them the first time."""
        self.torchless: set[str] = set()
        self.slow: dict[str, float] = {}
        self.torch: dict[str, str] = {}
        self.ended: list[str] = []
        self.steps: list[str] = []
        self.checks = FleetChecks()
        self.now_s = 100.0

    def run(self) -> ev.NodesChecked:
        self.checks.begin(CheckNodes(check=7, nodes=self.names, level=self.level), TOKEN, self.now_s)
        for _ in range(1000):
            for node, order in self._take():
                if isinstance(order, msg.EndCheck):
                    self.ended.append(node)
                elif node not in self.mute:
                    message = msg.CheckAnswer(check=order.check, step=order.step, answer=self.answer(node, order.what))
                    # As it would come over a wire, and once more, and one of another check.
                    message = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=msg.CheckAnswer)
                    self.checks.on_answer(node, msgspec.structs.replace(message, check=6), self.now_s)
                    if (done := self.checks.on_answer(node, message, self.now_s)) is not None:
                        return self._done(done)
            self.now_s += 1.0
            if (done := self.checks.tick(self.now_s)) is not None:
                return self._done(done)
        raise AssertionError("it never ends")

    def _done(self, event: ev.NodesChecked) -> ev.NodesChecked:
        self.ended += [node for node, order in self._take() if isinstance(order, msg.EndCheck)]
        assert sorted(self.ended) == sorted(self.names), "everybody is told that it is over"
        return event

    def _take(self) -> list[tuple[str, msg.CheckStep | msg.EndCheck]]:
        orders, self.checks.orders = self.checks.orders, []
        return orders

    def answer(self, node: str, what: msg.Probe | msg.Meet | msg.Warm | msg.Add) -> Answer:
        self.steps.append(type(what).__name__)
        if isinstance(what, msg.Probe):
            assert what.token == TOKEN
            torch = self.torch.get(node, "2.6.0")
            return msg.Probed(address=f"{node}.cluster", port=4000, facts=NodeEnvironment(versions={"torch": torch}))
        if isinstance(what, msg.Meet):
            assert all(place.address == f"{place.node}.cluster" for place in what.places)
            return msg.Met(meetings=[self.meeting(node, place.node) for place in what.places])
        if isinstance(what, msg.Warm):
            return msg.Warmed(error="no module torch") if node in self.torchless else msg.Warmed(devices=2, port=5000)
        assert what.ranks == 4 and what.first_rank in (0, 2)
        pair = {node, what.address.partition(".")[0]}
        if pair & self.broken:
            return msg.Added(error="timed out")
        return msg.Added(took_s=max(self.slow.get(one, 0.01) for one in pair))

    def meeting(self, source: str, target: str) -> ProbeResult:
        late = self.late if self.steps.count("Meet") <= len(self.names) else set()
        error = "timed out" if {source, target} & (self.deaf | self.mute | late) else ""
        return ProbeResult(source=source, target=target, took_s=0.0 if error else 0.0004, error=error)


def test_well_nodes_have_nothing_to_say() -> None:
    nodes = Nodes()
    assert nodes.run() == ev.NodesChecked(check=7, took_s=1.0)
    assert nodes.checks.record["level"] == "quick" and len(nodes.checks.record["meetings"]) == 12


def test_what_differs_and_who_is_not_reached() -> None:
    nodes = Nodes()
    nodes.torch, nodes.deaf = {"n1": "2.5.1"}, {"n3"}
    event = nodes.run()
    assert event.said == ["n1 has torch 2.5.1, n0, n2, n3 have 2.6.0"]
    assert set(event.faulty) == {"n3"} and "neither reaches nor is reached by any of 3 others" in event.faulty["n3"]
    measured = event.evidence["n3"]
    assert (measured["check"], measured["others"], measured["failed_with"]) == ("reach", 3, ["n0", "n1", "n2"])
    assert "n3 to n0: timed out" in measured["failed"] and len(measured["failed"]) == 6


def test_a_node_is_faulty_only_where_it_fails_twice() -> None:
    """It is kept out of more than this run for it."""
    nodes = Nodes()
    nodes.late = {"n3"}
    event = nodes.run()
    assert not event.faulty and not event.said
    assert nodes.steps.count("Meet") == 8 and not any(one[3] for one in nodes.checks.record["meetings"])


def test_a_node_that_does_not_answer_is_said_and_never_faulty() -> None:
    nodes = Nodes()
    nodes.mute = {"n2"}
    event = nodes.run()
    assert not event.faulty and event.said == ["n2 did not answer in time"]
    assert nodes.now_s == pytest.approx(100.0 + PROBE_S, abs=1.0)


def test_nobody_answers() -> None:
    nodes = Nodes()
    nodes.mute = set(nodes.names)
    assert nodes.run().said == ["n0, n1, n2, n3 did not answer in time"]


def test_a_node_that_has_gone_is_not_waited_for() -> None:
    nodes = Nodes()
    nodes.mute = {"n2"}
    began_s = nodes.now_s
    nodes.checks.begin(CheckNodes(check=7, nodes=nodes.names, level="quick"), TOKEN, began_s)
    nodes.checks.gone("n2")
    for node, order in nodes._take():
        assert isinstance(order, msg.CheckStep)
        if node != "n2":
            message = msg.CheckAnswer(check=7, step=order.step, answer=nodes.answer(node, order.what))
            nodes.checks.on_answer(node, message, began_s)
    assert {type(order.what) for _, order in nodes._take() if isinstance(order, msg.CheckStep)} == {msg.Meet}
    nodes.checks.end()
    assert [node for node, _ in nodes._take()] == nodes.names


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_full_names_who_fails_both_rounds(count: int) -> None:
    nodes = Nodes(count, "full")
    nodes.broken = {"n1"}
    event = nodes.run()
    if count == 2:
        assert not event.faulty and event.said == ["the all-reduce of n0 and n1 fails (timed out)"]
    else:
        assert set(event.faulty) == set(event.evidence) == {"n1"} and not event.said
        assert event.evidence["n1"]["check"] == "all_reduce" and len(event.evidence["n1"]["failed"]) >= 2


def test_full_says_who_straggles() -> None:
    nodes = Nodes(5, "full")
    nodes.slow = {"n4": 0.2}
    event = nodes.run()
    assert not event.faulty and event.said == ["n4 is slow in all-reduces with two others: 200 ms, the median is 10 ms"]


def test_full_without_torch_on_a_node() -> None:
    nodes = Nodes(4, "full")
    nodes.torchless = {"n2"}
    event = nodes.run()
    assert not event.faulty and event.said == ["torch does not start on n2: no module torch"]


def test_full_leaves_out_who_is_not_reached() -> None:
    nodes = Nodes(4, "full")
    nodes.deaf = {"n0"}
    assert set(nodes.run().faulty) == {"n0"}


def test_thousands_of_nodes_are_tried_in_time_that_grows_with_their_number() -> None:
    """Long: four thousand nodes, and twice as many."""
    nodes = Nodes(4000)
    nodes.deaf, nodes.torch = {"n1234"}, {"n77": "2.5.1"}
    began_s = time.process_time()
    event = nodes.run()
    assert set(event.faulty) == {"n1234"} and event.said[0].startswith(
        "n77 has torch 2.5.1, n0, n1, n2, n3 and 3995 more"
    )
    assert time.process_time() - began_s < 20.0


def test_limits_leave_room_for_each_other() -> None:
    """What a node takes at most, the head waits for; and all of it fits into what the engine waits for."""
    assert NODE_MEET_S < MEET_S and READY_S + SERVE_S < WARM_S and NODE_ADD_S < ADD_S
    assert LIMITS_S["quick"] > PROBE_S + 2 * MEET_S


# Real ones --------------------------------------------------------------------------------------------------


class Lab:
    """Nodes in this process, each with a listener and torch of its own, on loopback."""

    def __init__(self, names: list[str], addresses: dict[str, str]) -> None:
        self.inbox: queue.SimpleQueue[tuple[str, msg.CheckAnswer]] = queue.SimpleQueue()
        self.checks = FleetChecks()
        self.names = names
        self.nodes = {name: self._node(name, addresses.get(name, "127.0.0.1")) for name in names}

    def _node(self, name: str, address: str) -> NodeChecks:
        about = About(name, address, EVERYWHERE, ["python", "train.py"], os.getcwd(), lambda: 1.8e9)
        return NodeChecks(about, lambda answer: self.inbox.put((name, answer)))

    def run(self, level: str, timeout_s: float = 90.0) -> ev.NodesChecked:
        self.checks.begin(CheckNodes(check=1, nodes=self.names, level=level), TOKEN, time.monotonic())
        ends_s = time.monotonic() + timeout_s
        while time.monotonic() < ends_s:
            self.pass_on()
            try:
                node, answer = self.inbox.get(timeout=0.5)
            except queue.Empty:
                event = self.checks.tick(time.monotonic())
            else:
                event = self.checks.on_answer(node, answer, time.monotonic())
            if event is not None:
                self.pass_on()
                return event
        raise AssertionError("no end")

    def pass_on(self) -> None:
        orders, self.checks.orders = self.checks.orders, []
        for node, order in orders:
            self.nodes[node].obey(order)

    def close(self) -> None:
        for node in self.nodes.values():
            node.end()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lab]]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for module, name in (
        (check_rounds, "PROBE_S"),
        (check_rounds, "MEET_S"),
        (node_probes, "MEET_S"),
        (reachability_probe, "CONNECT_S"),
    ):
        monkeypatch.setattr(module, name, 60.0)
    opened: list[Lab] = []

    def start(names: list[str], **addresses: str) -> Lab:
        opened.append(Lab(names, addresses))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_real_nodes_reach_each_other(lab: Callable[..., Lab]) -> None:
    event = lab(["n0", "n1", "n2"]).run("quick")
    assert not event.faulty and not event.said and event.took_s < 20.0


def test_a_real_name_that_nobody_resolves(lab: Callable[..., Lab]) -> None:
    event = lab(["n0", "n1", "n2"], n1="n1.invalid").run("quick")
    assert set(event.faulty) == {"n1"}
    assert "is not reached by any of 2 others" in event.faulty["n1"]
    assert "its name n1.invalid is not resolved" in event.faulty["n1"]


@pytest.mark.timeout(120)
def test_real_nodes_sum_together(lab: Callable[..., Lab]) -> None:
    opened = lab(["n0", "n1"])
    event = opened.run("full")
    assert not event.faulty and not event.said
    assert [one[:2] + one[3:] for one in opened.checks.record["all_reduces"]] == [["n0", "n1", ""]] * 2


def test_what_is_ended_in_the_middle_leaves_no_process(lab: Callable[..., Lab]) -> None:
    """Also while torch is being imported."""
    opened = lab(["n0"])
    node = opened.nodes["n0"]
    node.obey(msg.CheckStep(check=1, step=1, what=msg.Probe(token=TOKEN, keep_s=30.0)))
    node.obey(msg.CheckStep(check=1, step=2, what=msg.Warm()))
    worker = node._worker
    assert worker is not None
    wait_until(lambda: worker._trials, 30.0, "torch's process")
    [pid] = [trial.pid for trial in worker._trials]
    assert is_alive(pid)
    began_s = time.monotonic()
    node.end()
    assert not is_alive(pid) and time.monotonic() - began_s < 20
    wait_until(lambda: worker._echo is None, 5.0, "the listener's end")
