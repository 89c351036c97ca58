"""Where the head of several nodes listens for the others, told from the command line, with this machine's addresses."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.launcher.run.command_line import parse_flags
from guardrun.launcher.run.job_nodes import fleet_file, plan_fleet
from guardrun.supervisor.config import load_config
from guardrun.supervisor.rundir.run_directory import FleetFile
from guardrun.supervisor.wire.listening_addresses import EVERYWHERE, own_addresses
from tests.launcher.run.slurm_step import STEP

HERE = {"127.0.0.1", "::1"} & set(own_addresses())


def part(flags: str, environ: dict[str, str] | None = None, *, is_head: bool = True, join: str = "") -> FleetFile:
    """What the supervisor of a node with this command line is told."""

    def parser() -> argparse.ArgumentParser:
        import torch.distributed.run as torchrun  # not where this file is only collected

        return torchrun.get_args_parser()

    given = parse_flags([*flags.split(), "train.py"], parser)
    config = load_config(None, {"--guard-join": join} if join else {}, {}, Path("/"))
    fleet = plan_fleet(given.torch, config, environ or {}, given.is_node_rank_given, given.is_master_given)
    assert fleet is not None
    plan: Any = SimpleNamespace(config=SimpleNamespace(local_addr=given.torch.local_addr, role=""), arguments=[])
    return fleet_file(fleet, plan, config, Path("/join"), is_head)


def own_address() -> str:
    """One that other hosts could reach, or would if there were any."""
    found = [one for one in own_addresses() if "." in one and not one.startswith("127.")]
    if not found:
        pytest.skip("no network")
    return found[0]


@pytest.mark.parametrize(
    ("flags", "join"),
    [
        ("--nnodes=2 --node-rank=0 --master-addr=127.0.0.1 --master-port=29501", ""),
        ("--nnodes=2 --node-rank=0 --master-addr=127.0.0.1 --master-port=29501", "munge"),
        ("--nnodes=2 --node-rank=0 --master-addr=127.0.0.1", ""),
        ("--nnodes=2 --node-rank=0 --rdzv-endpoint=127.0.0.1:29501", ""),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-id=x --rdzv-endpoint=127.0.0.1:29400", ""),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-id=x --rdzv-endpoint=127.0.0.1:29400", "munge"),
    ],
)
def test_who_writes_the_address_of_loopback_means_this_host_alone(flags: str, join: str) -> None:
    head = part(flags, join=join)
    assert head.address == "127.0.0.1"
    for listen in (head.listen, head.meet_listen, head.check_listen):
        assert set(listen.addresses) == HERE and listen.is_certain


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        # torchrun's default for --master-addr: the other nodes may have been given this one's name.
        ("--nnodes=2 --node-rank=0 --master-port=29501", {}),
        ("--nnodes=2 --node-rank=0", {}),
        ("--nnodes=2 --node-rank=0 --master-addr=localhost --master-port=29501", {}),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-id=x --rdzv-endpoint=localhost:29400", {}),
        # Slurm says who leads; nodes on several hosts do not meet at any one's loopback.
        ("--nnodes=3 --master-addr=127.0.0.1 --master-port=29501", {**STEP, "SLURM_NODEID": "0"}),
        ("", {**STEP, "SLURM_NODEID": "0"}),
    ],
)
def test_what_may_be_habit_is_listened_for_where_this_host_is_known(flags: str, environ: dict[str, str]) -> None:
    head = part(flags, environ)
    assert not head.listen.is_here_alone and head.address != "127.0.0.1"
    reached = {str(found[4][0]) for found in socket.getaddrinfo(head.address, None)}
    assert head.listen == EVERYWHERE or reached <= set(head.listen.addresses)


def test_an_address_of_this_hosts_is_listened_for_there() -> None:
    address = own_address()
    head = part(f"--nnodes=2 --node-rank=0 --master-addr={address} --master-port=29501")
    assert head.address == address
    assert set(head.listen.addresses) == {address, *HERE} and head.listen.is_certain
    assert head.check_listen == head.listen
    other = part(f"--nnodes=2 --node-rank=1 --master-addr=192.0.2.77 --local-addr={address}", is_head=False)
    assert other.listen == other.meet_listen == EVERYWHERE, "it does not listen at all"
    assert set(other.check_listen.addresses) == {address, *HERE}


def test_who_is_introduced_may_have_been_given_another_name() -> None:
    address = own_address()
    head = part(f"--nnodes=2 --node-rank=0 --master-addr={address} --master-port=29501", join="munge")
    assert head.listen.is_certain and not head.meet_listen.is_certain
    assert set(head.listen.addresses) == set(head.meet_listen.addresses)


@pytest.mark.parametrize("address", ["203.0.113.9", "0.0.0.0", "nobody.invalid"])
def test_an_address_that_is_not_this_hosts_may_lead_here_all_the_same(address: str) -> None:
    """A container's mapped port, a floating address: whoever has --node-rank=0 leads."""
    head = part(f"--nnodes=2 --node-rank=0 --master-addr={address} --master-port=29501", join="munge")
    assert head.meet_listen.addresses == []
    if address == "0.0.0.0":
        assert head.listen == head.check_listen == EVERYWHERE
