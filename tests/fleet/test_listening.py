"""Where a listener for other nodes listens: the rule, and what becomes of it on real sockets."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator

import pytest
import zmq

from guardrun.supervisor.engine.model.events import FleetPlan, Settings
from guardrun.supervisor.fleet.checks import reachability_probe
from guardrun.supervisor.fleet.checks.reachability_probe import TOKEN_BYTES, Echo, call
from guardrun.supervisor.fleet.transport.curve import make_key_pair
from guardrun.supervisor.fleet.transport.hub import Hub, HubSettings
from guardrun.supervisor.fleet.transport.link import Head, Link
from guardrun.supervisor.wire import listening_addresses
from guardrun.supervisor.wire.listening_addresses import (
    AGAIN_S,
    EVERYWHERE,
    MISSED_S,
    Listen,
    Missed,
    bind_to,
    join_both,
    open_listeners,
    where_to_listen,
)
from tests.fleet.ends import opened
from tests.support.listeners import read_listeners

V6 = "2001:db8::a"
ETH, IB, DOCKER = "192.0.2.10", "198.51.100.10", "172.17.0.1"
OWN = ["127.0.0.1", "::1", ETH, IB, DOCKER, V6, "fe80::1%eth0", "169.254.7.1"]
"""A machine with Ethernet (of both families), IP over InfiniBand, a bridge for containers, and a cable to its twin."""
BOTH = ["127.0.0.1", "::1"]


@pytest.mark.parametrize(
    ("host", "resolved", "listens", "is_certain"),
    [
        # What the user writes as an address is what the others are given.
        ("127.0.0.1", ["127.0.0.1"], BOTH, True),
        ("::1", ["::1"], ["::1", "127.0.0.1"], True),
        ("127.0.0.7", ["127.0.0.7"], ["127.0.0.7", *BOTH], True),
        (ETH, [ETH], [ETH, *BOTH], True),
        (IB, [IB], [IB, *BOTH], True),
        (V6, [V6], [V6, *BOTH], True),
        ("2001:DB8:0::A", [V6], [V6, *BOTH], True),
        ("169.254.7.1", ["169.254.7.1"], ["169.254.7.1", *BOTH], True),
        # A name may stand for another address elsewhere: those to begin with.
        ("node-a", [ETH], [ETH, *BOTH], False),
        ("node-a", [V6, ETH], [V6, ETH, *BOTH], False),
        ("node-a-ib", [IB], [IB, *BOTH], False),
        ("node-a", [ETH, "127.0.1.1"], [ETH, "127.0.1.1", *BOTH], False),
        ("node-a", [ETH, IB, V6], [ETH, IB, V6, *BOTH], False),
        # A name that is loopback's here: what it is elsewhere, nobody here knows.
        ("localhost", ["127.0.0.1"], [], True),
        ("localhost", ["::1", "127.0.0.1"], [], True),
        ("node-a", ["127.0.1.1"], [], True),
        # What leads here though it is another's: a floating address, address translation, a container's mapped port.
        ("203.0.113.9", ["203.0.113.9"], [], True),
        ("public.example", ["203.0.113.9"], [], True),
        ("cluster", [ETH, "203.0.113.9"], [], True),
        # What can be bound and is nobody's, what holds for one link, what is not known.
        ("0.0.0.0", ["0.0.0.0"], [], True),
        ("::", ["::"], [], True),
        ("fe80::1%eth0", ["fe80::1%eth0"], [], True),
        ("node-a.local", ["fe80::1%eth0", ETH], [], True),
        ("nobody.invalid", [], [], True),
        ("", [], [], True),
    ],
)
def test_where_those_arrive_who_use_a_name(
    host: str, resolved: list[str], listens: list[str], is_certain: bool
) -> None:
    assert where_to_listen(host, resolved, OWN) == Listen(addresses=listens, is_certain=is_certain)


def test_a_host_without_ipv6_and_one_that_may_not_ask_for_its_addresses() -> None:
    assert where_to_listen(ETH, [ETH], ["127.0.0.1", ETH]).addresses == [ETH, "127.0.0.1"]
    assert where_to_listen(ETH, [ETH], []) == where_to_listen("node-a", [ETH], []) == EVERYWHERE
    assert where_to_listen("127.0.0.1", ["127.0.0.1"], []).is_here_alone


def test_who_comes_by_either_of_two() -> None:
    name, address = where_to_listen("node-a-ib", [IB], OWN), where_to_listen(ETH, [ETH], OWN)
    assert join_both(name, address) == Listen(addresses=[IB, *BOTH, ETH], is_certain=False)
    assert join_both(name, EVERYWHERE) == join_both(EVERYWHERE, address) == EVERYWHERE
    assert not name.is_here_alone and not EVERYWHERE.is_here_alone
    assert where_to_listen("::1", ["::1"], OWN).is_here_alone


def test_nodes_that_are_missing_for_long_may_come_by_another_address() -> None:
    missed = Missed(FleetPlan(least=3, most=3), Settings(), 100.0)
    assert not missed.is_due(2, 100.0 + MISSED_S - 1)
    assert missed.is_due(2, 100.0 + MISSED_S) and not missed.is_due(2, 101.0 + MISSED_S)
    assert missed.is_due(1, 100.0 + MISSED_S + AGAIN_S)
    assert not missed.is_due(3, 200.0) and not missed.is_due(2, 200.0 + MISSED_S - 1)
    assert missed.is_due(2, 200.0 + MISSED_S), "one that was there is missing"


@pytest.mark.parametrize(
    ("plan", "wait_s"),
    [
        (FleetPlan(least=2, most=2), 10.0),
        (FleetPlan(least=2, most=4), 6.0),
        (FleetPlan(least=2, most=2, spares=1), 6.0),
    ],
)
def test_they_still_come_in_time(plan: FleetPlan, wait_s: float) -> None:
    missed = Missed(plan, Settings(join_timeout_s=40.0, last_call_s=12.0), 0.0)
    assert not missed.is_due(1, wait_s - 0.1) and missed.is_due(1, wait_s)


# Sockets -------------------------------------------------------------------------------------------------------


def listening_at(port: int) -> set[str]:
    """Addresses at which this process listens on a port."""
    return {address for address, found in read_listeners(os.getpid()) if found == port}


def test_a_port_that_is_free_at_all_of_them_is_found() -> None:
    """Of the first two ports one is taken at the second address."""
    calls: list[tuple[str, int]] = []
    ports = iter([7001, 7002, 7003])

    def bind(address: str, port: int) -> int:
        calls.append((address, port))
        if port in (7001, 7002):
            raise OSError(errno.EADDRINUSE, "taken")
        return port or next(ports)

    undone: list[int] = []
    listen = Listen(addresses=["127.0.0.1", "127.0.0.2"])
    assert bind_to(listen, 0, bind, lambda: undone.append(1)) == 7003
    assert len(undone) == 2 and calls[-1] == ("127.0.0.2", 7003)
    with pytest.raises(OSError, match="taken"):
        bind_to(listen, 7001, bind, lambda: None)


def test_an_address_that_has_gone_leads_everywhere_but_for_loopback() -> None:
    asked: list[str] = []

    def bind(address: str, port: int) -> int:
        asked.append(address)
        return port

    for addresses in (["192.0.2.99", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]):
        bind_to(Listen(addresses=addresses), 7001, bind, lambda: None)
    assert asked == ["", "127.0.0.1", "127.0.0.2"]


def test_plain_listeners_of_one_port() -> None:
    listeners = open_listeners(Listen(addresses=["127.0.0.1", "127.0.0.2"]), 0, 8)
    port = listeners[0].getsockname()[1]
    try:
        assert listening_at(port) == {"127.0.0.1", "127.0.0.2"}
        with pytest.raises(OSError, match="in use"):
            open_listeners(Listen(addresses=["127.0.0.3", "127.0.0.2"]), port, 8)
        assert listening_at(port) == {"127.0.0.1", "127.0.0.2"}, "what was bound before it failed is let go of"
    finally:
        for listener in listeners:
            listener.close()
    [everywhere] = open_listeners(EVERYWHERE, 0, 8)
    with everywhere:
        assert listening_at(everywhere.getsockname()[1]) <= {"::", "0.0.0.0"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    keys = make_key_pair()
    opened_hub = Hub(
        time.monotonic, keys, [], settings=HubSettings(listen=Listen(addresses=["127.0.0.1", "127.0.0.2"]))
    )
    yield opened_hub
    opened_hub.close()


def test_a_hub_listens_where_it_is_to_and_at_more_when_asked(hub: Hub) -> None:
    assert listening_at(hub.port) == {"127.0.0.1", "127.0.0.2"}
    with socket.create_server(("127.0.0.4", hub.port)):
        added = hub.listen_also(["127.0.0.1", "127.0.0.3", "127.0.0.4", "192.0.2.99"])
    assert added == ["127.0.0.3"]
    assert listening_at(hub.port) == {"127.0.0.1", "127.0.0.2", "127.0.0.3"}


def test_a_hub_whose_port_is_taken_at_one_of_them(hub: Hub) -> None:
    settings = HubSettings(listen=Listen(addresses=["127.0.0.3", "127.0.0.2"]))
    with pytest.raises(zmq.ZMQError) as caught:
        Hub(time.monotonic, make_key_pair(), [], hub.port, settings)
    assert caught.value.errno == errno.EADDRINUSE


def test_a_hub_that_listens_everywhere_has_no_more_to_listen_at() -> None:
    opened_hub = Hub(time.monotonic, make_key_pair(), [])
    try:
        assert opened_hub.listen_also(listening_addresses.own_addresses()) == []
        assert listening_at(opened_hub.port) <= {"::", "0.0.0.0"}
    finally:
        opened_hub.close()


def test_a_node_whose_name_for_the_head_leads_past_it_comes_by_the_address_beside() -> None:
    with opened() as ends:
        ends.open_hub()
        link = Link(Head(["127.0.0.9", "127.0.0.1"], ends.hub.port, ends.server.public), ends.client, "n1")
        link.register(ends.poller)
        ends.links.append(link)
        ends.got[link] = []
        ends.joined("n1")
        assert link.counters.connections == 2


def test_a_hub_is_widened_while_nodes_try() -> None:
    with opened() as ends:
        ends.open_hub()
        link = Link(Head(["127.0.0.9"], ends.hub.port, ends.server.public), ends.client, "n1")
        link.register(ends.poller)
        ends.links.append(link)
        ends.got[link] = []
        ends.until(lambda: link.failures >= 2)
        assert ends.hub.listen_also(["127.0.0.9"]) == ["127.0.0.9"]
        ends.joined("n1")


def test_a_checks_listener_is_reached_where_it_listens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability_probe, "CONNECT_S", 60.0)
    token = os.urandom(TOKEN_BYTES)
    echo = Echo("n1", token, keep_s=30.0, listen=Listen(addresses=["127.0.0.2", "127.0.0.3"]))
    try:
        assert listening_at(echo.port) == {"127.0.0.2", "127.0.0.3"}
        assert [call("n1", f"127.0.0.{last}", echo.port, token).error for last in (2, 3)] == ["", ""]
        assert "refused" in call("n1", "127.0.0.1", echo.port, token).error
    finally:
        echo.close()
