"""What a node tells of itself as it joins: taken where it is what it should be, and bounded."""

from __future__ import annotations

import pytest

from guardrun.supervisor.fleet.transport.peers import addresses_of
from guardrun.supervisor.wire.listening_addresses import is_loopback, own_addresses, peer_addresses


@pytest.mark.parametrize("told", [None, "10.0.0.7", {"a": 1}, [1], ["x" * 65], ["10.0.0.7"] * 65])
def test_addresses_that_are_none_are_left_out(told: object) -> None:
    assert addresses_of({"addresses": told}) == []


def test_addresses_of_a_node() -> None:
    assert addresses_of({"addresses": ["10.0.0.7", "fd00::1"]}) == ["10.0.0.7", "fd00::1"]


def test_no_peer_knows_a_node_by_its_loopback() -> None:
    known = peer_addresses()
    assert not any(map(is_loopback, known)) and set(known) <= set(own_addresses())
    assert len(peer_addresses(1)) <= 1
