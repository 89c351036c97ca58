"""Several nodes, told from the command line and Slurm's environment: who leads, and where the others look for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch.distributed.run as torchrun

from guardrun.launcher.fleet import Fleet, FleetError, Lead, join_path, meeting_port, plan_fleet
from guardrun.supervisor.config import load_config

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}


def plan(flags: str, environ: dict[str, str] | None = None, **settings: str) -> Fleet | None:
    args = torchrun.get_args_parser().parse_args([*flags.split(), "train.py"])
    config = load_config(
        None, {f"--guard-{name.replace('_', '-')}": text for name, text in settings.items()}, {}, Path("/")
    )
    return plan_fleet(args, config, environ or {})


@pytest.mark.parametrize("flags", ["", "--nnodes=1", "--standalone", "--nnodes=1 --node-rank=0 --master-port=29501"])
def test_one_node_is_no_fleet(flags: str) -> None:
    assert plan(flags) is None


def test_static_rendezvous_leads_where_node_rank_is_0() -> None:
    head = plan("--nnodes=2 --node-rank=0 --master-addr=node-a --master-port=29501")
    other = plan("--nnodes=2 --node-rank=1 --master-addr=node-a --master-port=29501")
    assert head is not None and other is not None
    assert (head.may_lead, head.is_chosen, head.slot) == (True, True, 0)
    assert (other.may_lead, other.slot) == (False, 1)
    assert head.key == other.key and head.endpoint == "node-a"
    assert (head.plan.least, head.plan.most, head.plan.spares) == (2, 2, 0)


def test_c10d_leads_on_the_host_that_the_endpoint_names() -> None:
    here = plan(f"--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint={socket.gethostname()}:29400 --rdzv-id=x")
    local = plan("--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=localhost:29400 --rdzv-id=x")
    away = plan("--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=192.0.2.7:29400 --rdzv-id=x")
    assert here is not None and local is not None and away is not None
    assert (here.may_lead, local.may_lead, away.may_lead) == (True, True, False)
    assert not here.is_chosen, "another guardrun on the same host may be first"
    assert here.key == away.key == "x" and (here.plan.least, here.plan.most) == (2, 4)


def test_ipv6_endpoints_keep_their_colons() -> None:
    fleet = plan("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[2001:db8::1]:29400 --rdzv-id=x")
    assert fleet is not None and fleet.endpoint == "2001:db8::1"


def test_slurm_says_all_that_is_needed() -> None:
    fleet = plan("", STEP, fleet_spares="1")
    assert fleet is not None
    assert (fleet.plan.most, fleet.plan.spares, fleet.slot, fleet.may_lead) == (2, 1, 1, False)
    assert fleet.key == "7.0" and fleet.head == "n1" and fleet.endpoint == ""
    first = plan("", {**STEP, "SLURM_NODEID": "0"}, fleet_spares="1")
    assert first is not None and first.may_lead and first.is_chosen


def test_nnodes_of_one_in_a_larger_step_is_a_run_on_each_node() -> None:
    assert plan("--nnodes=1", STEP) is None


@pytest.mark.parametrize(
    ("flags", "environ", "settings", "says"),
    [
        ("", STEP, {"fleet_spares": "3"}, "this step has 3 nodes, and the command line asks for 4"),
        ("--nnodes=4", STEP, {}, "this step has 3 nodes, and the command line asks for 4"),
        ("--nnodes=2", {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, {}, "srun --ntasks-per-node=1"),
        ("--nnodes=2", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, {}, "srun is missing"),
        ("--nnodes=2 --rdzv-backend=c10d", {}, {}, "--rdzv-endpoint"),
        ("--nnodes=2 --node-rank=2", {}, {}, "there are nodes 0 to 1"),
    ],
)
def test_what_does_not_fit_is_said(flags: str, environ: dict[str, str], settings: dict[str, str], says: str) -> None:
    with pytest.raises(FleetError, match=says.replace("(", r"\(")):
        plan(flags, environ, **settings)


def test_of_two_on_one_machine_the_first_leads(tmp_path: Path) -> None:
    fleet = plan("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost --rdzv-id=a/b")
    assert fleet is not None
    config = load_config(None, {}, {}, tmp_path)
    path = join_path(fleet, config, tmp_path / "runs", tmp_path)
    assert path == tmp_path / "runs" / ".join-a_b"
    first, second = Lead(path), Lead(path)
    assert first.take() and not second.take()
    first.close()
    assert second.take(), "a head that has ended, however it did, leads no more"
    second.close()


def test_all_nodes_work_out_the_same_port_to_meet_at() -> None:
    assert meeting_port("7.0") == meeting_port("7.0") != meeting_port("8.0")
    assert 20000 <= meeting_port("7.0") < 30000
