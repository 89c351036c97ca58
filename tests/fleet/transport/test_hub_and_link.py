"""Hub and link over real sockets: joining, packets either way, going and coming back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
from pytest import MonkeyPatch

from guardrun.supervisor.fleet.protocol.leader_loss_policy import Obstacle
from guardrun.supervisor.fleet.protocol.lease import boot_s
from guardrun.supervisor.fleet.transport import hub as hub_module
from guardrun.supervisor.fleet.transport import link as link_module
from guardrun.supervisor.fleet.transport.curve import make_key_pair
from guardrun.supervisor.fleet.transport.envelopes import MAX_BODY_BYTES
from guardrun.supervisor.fleet.transport.hub import Back, Body, Dropped, Joined, Known
from guardrun.supervisor.fleet.transport.link import Head, Refused, Welcomed
from guardrun.supervisor.node.node_supervisor import NodeSupervisor
from tests.fleet.ends import Bench, kinds, opened
from tests.support.waiting import wait_until


@pytest.fixture
def ends() -> Iterator[Bench]:
    with opened() as bench:
        yield bench


def test_packets_arrive_in_order_either_way(ends: Bench) -> None:
    ends.open_hub()
    link = ends.open_link("a", slot=1, info={"version": "1"})
    for number in range(100):
        link.send(b"%d" % number)  # before it has joined
    ends.joined("a")
    assert ends.seen[0] == ("a", Joined({"version": "1"}, 1, link.incarnation, False))
    for number in range(100, 3000):
        link.send(b"%d" % number)
        ends.hub.send("a", b"order %d" % number)
    ends.until(lambda: len(ends.bodies("a")) == 3000 and len(ends.orders(link)) == 2900)
    assert ends.bodies("a") == [b"%d" % number for number in range(3000)]
    assert ends.orders(link) == [b"order %d" % number for number in range(100, 3000)]
    ends.until(lambda: not link.has_waiting and not ends.hub.waiting_bytes("a"))


def test_many_nodes_and_their_order_of_joining(ends: Bench) -> None:
    ends.open_hub()
    links = [ends.open_link(f"n{number}", slot=number) for number in range(20)]
    ends.joined(*(f"n{number}" for number in range(20)))
    for link in links:
        link.send(b"here")
    ends.until(lambda: all(ends.bodies(f"n{number}") == [b"here"] for number in range(20)))
    assert not any(ends.hub.send(node, b"") for node in ("", "n20"))


def test_a_link_waits_for_a_hub_that_is_not_there_yet(ends: Bench) -> None:
    port = ends.open_hub().port
    ends.close_hub()
    link = ends.open_link("a", port=port)
    link.send(b"early")
    ends.until(lambda: link.obstacle is Obstacle.NOBODY)
    ends.open_hub(port)
    ends.until(lambda: ends.bodies("a") == [b"early"])
    assert isinstance(ends.got[link][0], Welcomed)


def test_a_head_that_does_not_run_is_told_from_one_that_is_not_there(
    ends: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped: its kernel takes the connection, and nobody answers."""
    monkeypatch.setattr(link_module, "WELCOME_S", 1.0)
    port = ends.open_hub().port
    stopped, ends.hubs = ends.hubs, []
    link = ends.open_link("a", port=port, server=ends.server.public)
    assert not link.is_unanswered
    ends.until(lambda: link.is_unanswered)
    ends.until(lambda: link.failures > 1)
    for _ in range(20):
        ends.turn()
        assert link.is_unanswered, "between two connections, too"
    ends.hubs = stopped
    ends.joined("a")
    assert not link.is_unanswered
    ends.close_hub()
    ends.until(lambda: link.failures > 1 and link.obstacle is Obstacle.NOBODY and not link.is_unanswered)


def test_a_dead_deputy_is_known_at_once(ends: Bench) -> None:
    ends.open_hub()
    link = ends.open_link("a")
    ends.joined("a")
    link.send(b"last words")
    began_s = time.monotonic()
    ends.close_link(link)
    ends.until(lambda: ("a", "Dropped") in kinds(ends.seen))
    assert time.monotonic() - began_s < 30.0, "and not for its silence"
    assert ends.bodies("a") == [b"last words"]
    assert not ends.hub.is_connected("a")
    assert ends.hub.nodes == ["a"]


def test_a_hub_that_comes_back_gets_what_it_had_not_dealt_with_and_nothing_twice(ends: Bench) -> None:
    ends.open_hub()
    link = ends.open_link("a")
    link.send(b"1")
    ends.joined("a")
    ends.until(lambda: not link.has_waiting)
    ends.is_acknowledging = False
    link.send(b"2")
    link.send(b"3")
    ends.until(lambda: len(ends.bodies("a")) == 3)
    # It journalled the second, and was killed before it could say so; the third it never dealt with.
    second = next(what for _, what in ends.seen if isinstance(what, Body) and what.body == b"2")
    port = ends.hub.port
    ends.close_hub()
    ends.until(lambda: not link.is_joined)
    link.send(b"4")
    ends.seen.clear()
    ends.is_acknowledging = True
    ends.open_hub(port, known={"a": Known(second.incarnation, second.seq)})
    ends.until(lambda: len(ends.bodies("a")) >= 2 and not link.has_waiting)
    assert ends.bodies("a") == [b"3", b"4"]
    assert [what.is_new_hub for what in ends.got[link] if isinstance(what, Welcomed)] == [True, True]
    assert ends.hub.counters.malformed == 0


def test_orders_for_a_node_that_is_away_wait_for_it(ends: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.open_hub()
    link = ends.open_link("a")
    ends.joined("a")
    link._drop(time.monotonic(), 0.5)
    ends.until(lambda: not ends.hub.is_connected("a"))
    ends.hub.send("a", b"status 1", replaces="status")
    ends.hub.send("a", b"stop")
    ends.hub.send("a", b"status 2", replaces="status")
    ends.joined("a")
    ends.until(lambda: len(ends.orders(link)) == 2)
    assert ends.orders(link) == [b"stop", b"status 2"]
    assert kinds(ends.seen) == [("a", "Joined"), ("a", "Dropped"), ("a", "Back")]
    back = ends.seen[-1][1]
    assert isinstance(back, Back)
    assert 0.4 < back.away_s < 60
    assert [type(what) for what in ends.got[link]][-3:] == [Welcomed, link_module.Body, link_module.Body]


def test_a_second_guardrun_of_a_node_must_wait_until_the_first_is_gone(
    ends: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "REFUSED_RETRY_S", 0.2)
    ends.open_hub()
    first = ends.open_link("a", slot=1)
    ends.joined("a")
    second = ends.open_link("a", slot=1)
    ends.until(lambda: ends.got[second])
    assert ends.got[second] == [
        Refused("a has joined already, and its first guardrun is still there: start one a node")
    ]
    assert ends.hub.counters.joins_refused == 1
    first.send(b"still here")
    ends.until(lambda: ends.bodies("a") == [b"still here"])
    ends.close_link(first)
    ends.until(lambda: second.is_joined)
    assert kinds(ends.seen) == [("a", "Joined"), ("a", "Body"), ("a", "Dropped"), ("a", "Joined")]
    assert ends.seen[-1][1] == Joined({}, 1, second.incarnation, True)


def test_a_replaced_deputy_is_told_so(ends: Bench) -> None:
    ends.open_hub(decide=lambda join, rivals: "")
    first = ends.open_link("a", slot=1)
    ends.joined("a")
    ends.hub.send("a", b"for the first")
    ends.until(lambda: ends.orders(first) == [b"for the first"])
    second = ends.open_link("a", slot=1)
    ends.until(lambda: second.is_joined and any(isinstance(what, Refused) for what in ends.got[first]))
    ends.close_link(first)
    assert kinds(ends.seen) == [("a", "Joined"), ("a", "Dropped"), ("a", "Joined")]
    second.send(b"mine")
    ends.until(lambda: ends.bodies("a") == [b"mine"])
    assert ends.orders(second) == []


@pytest.mark.parametrize(
    ("node", "slot", "reason"),
    [
        (
            "a",
            2,
            "a has joined as number 1 of the job, and now says 2: start one guardrun a node, each with a --node-rank "
            "of its own",
        ),
        ("b", 1, "number 1 of the job is a: give each node a --node-rank of its own"),
    ],
)
def test_another_place_or_another_name_is_refused(ends: Bench, node: str, slot: int, reason: str) -> None:
    ends.open_hub()
    ends.open_link("a", slot=1)
    ends.joined("a")
    other = ends.open_link(node, slot=slot)
    ends.until(lambda: ends.got[other])
    assert ends.got[other] == [Refused(reason)]
    assert ends.hub.nodes == ["a"]


def test_a_key_that_was_not_admitted_is_told_nothing(ends: Bench) -> None:
    ends.open_hub(handshake_ms=300)
    stranger = ends.open_link("a", keys=make_key_pair())
    ends.until(lambda: ends.hub.counters.keys_refused)
    ends.until(lambda: stranger.obstacle)
    assert (ends.got[stranger], ends.seen) == ([], [])
    assert stranger.obstacle is Obstacle.TURNED_AWAY
    ends.hub.admit(stranger._keys.public)
    ends.until(lambda: stranger.is_joined)
    assert stranger.obstacle is Obstacle.NONE


def test_the_wrong_key_of_the_server_gets_nowhere(ends: Bench) -> None:
    ends.open_hub()
    link = ends.open_link("a", server=make_key_pair().public)
    ends.until(lambda: ends.hub.counters.strangers and link.failures > 1)
    assert (ends.got[link], ends.seen) == ([], [])
    assert link.obstacle is Obstacle.TURNED_AWAY


def test_a_forgotten_node_is_told_why_and_its_place_is_free(ends: Bench) -> None:
    ends.open_hub()
    link = ends.open_link("a", slot=0)
    ends.joined("a")
    ends.hub.forget("a", "the job has ended")
    ends.until(lambda: Refused("the job has ended") in ends.got[link])
    assert ends.hub.nodes == []
    ends.open_link("b", slot=0)
    ends.until(lambda: "b" in ends.hub.nodes)


def test_what_is_too_large_is_not_taken(ends: Bench) -> None:
    ends.open_hub()
    link = ends.open_link("a")
    ends.joined("a")
    assert not link.send(bytes(MAX_BODY_BYTES + 1))
    assert not ends.hub.send("a", bytes(MAX_BODY_BYTES + 1))
    assert link.send(bytes(MAX_BODY_BYTES - 300_000))
    ends.until(lambda: ends.bodies("a"))
    assert [len(body) for body in ends.bodies("a")] == [MAX_BODY_BYTES - 300_000]


def test_no_socket_is_opened_with_an_endless_linger(ends: Bench, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A listener hands on what it was made with: two ends that closed at once waited for each other for ever.

    That takes some 5,000 tries to be seen; this is what it came of.
    """
    lingers: list[int] = []

    def noting(open_it: Any) -> Any:
        def opened(socket: Any, place: str) -> Any:
            lingers.append(socket.get(zmq.LINGER))
            return open_it(socket, place)

        return opened

    monkeypatch.setattr(zmq.Socket, "bind", noting(zmq.Socket.bind))
    monkeypatch.setattr(zmq.Socket, "connect", noting(zmq.Socket.connect))
    ends.open_hub()
    ends.open_link("a")
    ends.joined("a")
    with zmq.Context() as context:
        station = cast(NodeSupervisor, SimpleNamespace(_context=context, sockets=tmp_path))
        NodeSupervisor._bind(station, zmq.ROUTER, "control", 1000).close()
    assert len(lingers) == 6  # hub, doorman, station, link, and whoever reads the two monitors
    assert set(lingers) == {0}


def test_what_a_deputy_had_to_drop_is_said(ends: Bench) -> None:
    port = ends.open_hub().port
    ends.close_hub()
    link = ends.open_link("a", port=port, limit_bytes=10_000)
    for number in range(100):
        link.send(b"%03d" % number)
        link.send(b"step %d" % number, replaces="step")
    assert link.lost > 0
    ends.open_hub(port)
    ends.until(lambda: not link.has_waiting and ends.bodies("a"))
    missed = [what.packets for _, what in ends.seen if isinstance(what, hub_module.Missed)]
    assert missed == [link.lost]
    assert len(ends.bodies("a")) == 101 - link.lost
    assert ends.bodies("a")[-2:] == [b"099", b"step 99"]


def test_the_clocks_are_compared_and_contact_is_leased(ends: Bench) -> None:
    ends.open_hub(term_s=5.0)
    link = ends.open_link("a")
    ends.joined("a")
    ends.turns(1.3)  # one pulse
    truth_s = ends.now() - time.monotonic()
    assert abs(link.offset.offset_s - truth_s) <= link.offset.error_s(time.monotonic()) < 5.0
    assert link.contact_lost_s() == 0.0
    ends_s = link.lease.contact_s + link.lease.term_s
    assert link.lease.is_held(ends_s - 0.001)
    assert not link.lease.is_held(ends_s)
    assert ends.hub.heard_s("a") > ends.now() - 10.0
    assert ends.hub.heard_s("b") == float("-inf")


def test_dropped_says_when(ends: Bench) -> None:
    ends.open_hub()
    link = ends.open_link("a")
    ends.joined("a")
    ends.close_link(link)
    ends.until(lambda: len(ends.seen) == 2)
    dropped = ends.seen[-1][1]
    assert isinstance(dropped, Dropped)
    assert 0 <= ends.now() - dropped.at_s < 10


def test_what_was_sent_before_a_suspend_extends_no_lease(ends: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine sleeps for an hour: CLOCK_MONOTONIC shows nothing of it, and an old answer arrives after it."""
    ends.open_hub(term_s=5.0)
    link = ends.open_link("a")
    ends.joined("a")
    real_boot_s, real_suspended_s = boot_s, link_module._suspended_s
    ends.is_acknowledging = False
    link.send(b"before")
    ends.until(lambda: ends.bodies("a"))
    monkeypatch.setattr(link_module, "boot_s", lambda: real_boot_s() + 3600)
    monkeypatch.setattr(link_module, "_suspended_s", lambda: real_suspended_s() + 3600)
    ends.is_acknowledging = True
    ends.hub.acknowledge()
    ends.until(lambda: not link.has_waiting)
    assert link.contact_lost_s() > 3500
    ends.until(lambda: link.contact_lost_s() == 0.0)  # the next pulse is answered


def test_a_redirected_link_goes_to_the_new_head(ends: Bench) -> None:
    first, second = ends.open_hub(), ends.open_hub()
    link = ends.open_link("a", port=first.port)
    ends.until(lambda: link.is_joined)
    link.redirect(Head(["127.0.0.1"], second.port, ends.server.public), ends.client)
    ends.until(lambda: link.is_joined)
    assert second.is_connected("a")
    ends.until(lambda: not first.is_connected("a"))
    assert [what.is_new_hub for what in ends.got[link] if isinstance(what, Welcomed)] == [True, True]


def test_each_address_is_tried_in_turn(ends: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "WELCOME_S", 0.2)
    hub = ends.open_hub()
    link = ends.open_link("a")
    link.redirect(Head(["127.0.0.2", "::1", "127.0.0.1"], hub.port, ends.server.public), ends.client)
    ends.until(lambda: link.is_joined)


def test_a_name_that_is_no_utf8_is_escaped(ends: Bench) -> None:
    ends.open_hub()
    ends.open_link("a", info={"cwd": "/home/\udcff"})
    ends.joined("a")
    assert ends.seen[0][1] == Joined({"cwd": "/home/\\udcff"}, -1, ends.links[0].incarnation, False)


def test_what_is_heard_in_one_turn_is_not_heard_at_one_time(ends: Bench, monkeypatch: MonkeyPatch) -> None:
    """A frame that came while others were read: its way would seem to have been shorter than it was."""
    nodes = [f"n{number}" for number in range(20)]
    ends.open_hub()
    links = [ends.open_link(node) for node in nodes]
    ends.joined(*nodes)
    ends.is_acknowledging = False
    for link in links:
        link.send(b"x")
    ends.until(lambda: len(ends.hub._unanswered) == len(nodes))
    now = ends.hub._now

    def late() -> float:
        """As where each frame takes a hundredth of a second to deal with."""
        time.sleep(0.01)
        return now()

    monkeypatch.setattr(ends.hub, "_now", late)

    def heard_in_a_turn() -> list[float]:
        """When each was heard of those whose next words are read in one turn."""
        before_s = {node: ends.hub.heard_s(node) for node in nodes}
        for link in links:
            link.send(b"y")
        time.sleep(0.2)  # most of them are there, mostly
        ends.turn()
        return sorted(heard_s for node in nodes if (heard_s := ends.hub.heard_s(node)) > before_s[node])

    times_s = wait_until(lambda: len(found := heard_in_a_turn()) > 1 and found, 60.0, "two in one turn")
    assert times_s and all(later_s - sooner_s >= 0.01 for sooner_s, later_s in pairwise(times_s))
