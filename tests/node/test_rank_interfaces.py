"""Which interfaces a job of several nodes uses, on the interfaces that this machine has."""

from __future__ import annotations

import socket

import pytest

from guardrun.launcher.base.own_address import NOWHERE
from guardrun.supervisor.node.rank_interfaces import links_of_job


def own_address() -> str:
    [nowhere] = [address for family, address in NOWHERE if family is socket.AF_INET]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((nowhere, 9))
        except OSError:
            pytest.skip("no way out of this host")
        return str(probe.getsockname()[0])


def test_the_one_with_the_nodes_address() -> None:
    assert len(links_of_job(own_address(), {})) == 1


def test_those_that_the_user_has_chosen() -> None:
    names = sorted(name for _, name in socket.if_nameindex() if name != "lo")
    if not names:
        pytest.skip("loopback alone")
    assert links_of_job("no-such-host.invalid", {"NCCL_SOCKET_IFNAME": f"={names[0]}"}) == {names[0]}
    assert links_of_job("no-such-host.invalid", {"GLOO_SOCKET_IFNAME": names[-1]}) == {names[-1]}
    assert links_of_job("127.0.0.1", {}) == set(), "loopback is no link between nodes"
