"""Several nodes, told from the command line and Slurm's environment: who leads, and where the others look for it."""

from __future__ import annotations

import argparse
import socket
import threading
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from guardrun.launcher.base.own_address import names_of, own_names
from guardrun.launcher.run import job_nodes
from guardrun.launcher.run.job_nodes import (
    Fleet,
    FleetError,
    Lead,
    check_lead,
    join_path,
    meeting_port,
    open_lead,
    plan_fleet,
)
from guardrun.launcher.run.start_failure import Asked, begin, tell_waiting
from guardrun.supervisor.config import load_config
from guardrun.supervisor.fleet.rendezvous.coordinator_liveness import is_listening
from guardrun.supervisor.fleet.rendezvous.join_file import (
    EVERY,
    NotThere,
    find_join_file,
    on_host,
    write_join_file,
)
from guardrun.supervisor.fleet.rendezvous.start_failure_files import Began, find_refused, heed_absences
from guardrun.supervisor.fleet.transport.curve import make_key_pair
from guardrun.supervisor.fleet.transport.hub import Hub, HubSettings
from guardrun.supervisor.wire.listening_addresses import Listen
from tests.fleet.joins import made
from tests.launcher.run.slurm_step import STEP


def parse(arguments: list[str]) -> argparse.Namespace:
    """As torchrun does."""
    import torch.distributed.run as torchrun  # not where this file is only collected: it takes more than a second

    return torchrun.get_args_parser().parse_args(arguments)


def plan(
    flags: str, environ: dict[str, str] | None = None, is_node_rank_given: bool = True, **settings: str
) -> Fleet | None:
    args = parse([*flags.split(), "train.py"])
    config = load_config(
        None, {f"--guard-{name.replace('_', '-')}": text for name, text in settings.items()}, {}, Path("/")
    )
    return plan_fleet(args, config, environ or {}, is_node_rank_given)


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
    assert here.key == away.key == "x-29400" and (here.plan.least, here.plan.most) == (2, 4)


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


def test_switches_count_where_the_user_has_no_order_of_his_own() -> None:
    named = {"SLURM_TOPOLOGY_ADDR": "top.s1.n2", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
    fleet = plan("", {**STEP, **named})
    assert fleet is not None and (fleet.slot, fleet.switches) == (1, ("top", "s1"))
    arbitrary = plan("", {**STEP, **named, "SLURM_DISTRIBUTION": "arbitrary", "SLURM_PROCID": "0"})
    assert arbitrary is not None and (arbitrary.slot, arbitrary.switches) == (0, ())
    assert not arbitrary.may_lead, "the head is the step's first node all the same"
    static = plan("--node-rank=1 --master-addr=n1 --master-port=29501", {**STEP, **named})
    assert static is not None and static.switches == ()


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
        ("--nnodes=2 --standalone", {}, {}, "--standalone is a run of this node alone"),
        ("--nnodes=2 --node-rank=2", {}, {}, "there are nodes 0 to 1"),
        ("--nnodes=2 --node-rank=-1", {}, {}, "there are nodes 0 to 1"),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=2001:db8::1", {}, {}, "stands in brackets"),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=::1", {}, {}, "stands in brackets"),
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
    assert path == tmp_path / "runs" / f".join-a_b-29400@{socket.gethostname()}"
    path.parent.mkdir()
    first, second = Lead(path), Lead(path)
    assert first.acquire() and not second.acquire()
    first.close()
    assert second.acquire(), "a head that has ended, however it did, leads no more"
    second.close()


def test_a_node_rank_that_was_forgotten_leads_nowhere() -> None:
    flags = "--nnodes=2 --master-addr=192.0.2.7 --master-port=29501"
    with pytest.raises(FleetError, match=r"192\.0\.2\.7, which is not this host, and --node-rank is missing"):
        plan(flags, is_node_rank_given=False)
    said = plan(f"{flags} --node-rank=0")
    assert said is not None and said.warning == (
        "--node-rank=0 leads, but --master-addr names 192.0.2.7, which is no name of this host"
    )
    here = plan("--nnodes=2 --master-addr=localhost", is_node_rank_given=False)
    assert here is not None and here.may_lead and not here.warning


def test_an_endpoint_that_does_not_resolve_is_said() -> None:
    fleet = plan("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=nobody.invalid:1")
    assert fleet is not None
    assert fleet.warning.startswith("--rdzv-endpoint names nobody.invalid, which does not resolve on this host")
    assert fleet.awaited == "the guardrun on nobody.invalid, which --rdzv-endpoint names"


@pytest.mark.parametrize(("endpoint", "host"), [("fe80::1:2", "fe80::1"), ("[::1]", "::1"), (" node-a:7 ", "node-a")])
def test_endpoints_are_read_as_torchrun_reads_them(endpoint: str, host: str) -> None:
    args = parse(["--nnodes=2", "--rdzv-backend=c10d", "train.py"])
    args.rdzv_endpoint = endpoint
    fleet = plan_fleet(args, load_config(None, {}, {}, Path("/")), {})
    assert fleet is not None and fleet.endpoint == host


def test_the_head_is_who_goes_by_a_name_that_was_given(tmp_path: Path) -> None:
    """Two jobs of one id and port, in one folder; each of the other nodes writes its head's name as it likes."""
    config = load_config(None, {}, {}, tmp_path)
    flags = "--nnodes=2 --rdzv-backend=c10d --rdzv-id=x --rdzv-endpoint="
    away, here = plan(f"{flags}192.0.2.7"), plan(f"{flags}localhost")
    assert away is not None and here is not None
    base = tmp_path / ".join-x-29400"
    assert join_path(away, config, tmp_path, tmp_path) == on_host(base, EVERY)
    ours, theirs = on_host(base, socket.gethostname()), on_host(base, "node-b")
    assert join_path(here, config, tmp_path, tmp_path) == ours
    write_join_file(theirs, made(names=["node-b", "192.0.2.7"], head="node-b"))
    write_join_file(ours, made(names=[*names_of("localhost"), *own_names()], head="here"))
    Lead(ours).close()
    for host in ("192.0.2.7", "NODE-B."):
        assert find_join_file(on_host(base, EVERY), names_of(host)).head == "node-b"
    for host in ("localhost", "127.0.0.1", socket.gethostname()):
        assert find_join_file(on_host(base, EVERY), names_of(host)).head == "here"
    with pytest.raises(NotThere):
        find_join_file(on_host(base, EVERY), names_of("192.0.2.8"))


def test_who_cannot_lead_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "join", Path("/proc/join")):
        with pytest.raises(FleetError, match=r"--guard-dir=DIR .* or --guard-join=FILE"):
            check_lead(path, None)
        with pytest.raises(FleetError, match="cannot write"):
            open_lead(path)


def test_one_that_leads_another_run_by_the_same_file_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_nodes, "is_listening", lambda join: is_listening(join, 60.0))
    server, client = make_key_pair(), make_key_pair()
    settings = HubSettings(listen=Listen(addresses=["127.0.0.1"]))
    hub = Hub(time.monotonic, server, [client.public], settings=settings)
    poller = zmq.Poller()
    hub.register(poller)
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            hub.read(dict(poller.poll(20)))

    thread = threading.Thread(target=serve)
    thread.start()
    path = tmp_path / "join"
    join = made("first", head="node-a", addresses=["127.0.0.1"], port=hub.port, server_key=server.public, client=client)
    try:
        write_join_file(path, join)
        with pytest.raises(FleetError, match=r"node-a leads run first by the same .*, and is alive"):
            check_lead(path, None)
        check_lead(path, "first")  # another session of it: sessions say who is the newer
        check_lead(path, None, is_scheduled=True)
        assert not is_listening(msgspec.structs.replace(join, server_key=make_key_pair().public), 0.5)
        assert is_listening(msgspec.structs.replace(join, addresses=["127.0.0.9", "no name", "127.0.0.1"]), 60.0)
    finally:
        is_over.set()
        thread.join()
        hub.close()
    check_lead(path, None)


def test_all_nodes_work_out_the_same_port_to_meet_at() -> None:
    assert meeting_port("7.0") == meeting_port("7.0") != meeting_port("8.0")
    assert 20000 <= meeting_port("7.0") < 30000


def asked(tmp_path: Path, flags: str, **settings: str) -> Asked:
    args = parse([*flags.split(), "train.py"])
    told = {f"--guard-{name.replace('_', '-')}": text for name, text in settings.items()}
    return Asked(args, True, load_config(None, told, {}, tmp_path), tmp_path / "runs", tmp_path)


C10D = "--nnodes=2 --rdzv-backend=c10d --rdzv-id=x --rdzv-endpoint="


@pytest.mark.parametrize("flags", ["--nnodes=2 --node-rank=0", "--nnodes=2 --node-rank=0 --master-addr=here", C10D])
def test_a_head_that_does_not_start_leaves_word_where_the_others_look(tmp_path: Path, flags: str) -> None:
    host = socket.gethostname()
    head = asked(tmp_path, f"{flags}{host}" if flags == C10D else flags.replace("here", host))
    tell_waiting(head, None, "A is wrong.\nguardrun: refused: B is\nguardrun: off runs all the same", 71)
    fleet = plan_fleet(head.args, head.config, {})
    assert fleet is not None
    place = join_path(fleet, head.config, head.directory, tmp_path)
    base = place.with_name(place.name.partition("@")[0])
    found = find_refused(on_host(base, EVERY) if fleet.is_by_host else place, names_of(host), fleet.key)
    assert found is not None
    assert (found.text, found.exit_code) == ("A is wrong. B is; off runs all the same", 71)
    assert place.name.startswith(".join-") and find_refused(place, [], "another") is None
    begin(head, fleet)
    assert find_refused(place, [], fleet.key) is None


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("", {}),
        ("--nnodes=2 --node-rank=1 --master-addr=192.0.2.7", {}),
        (f"{C10D}192.0.2.7", {}),
        ("--nnodes=2 --node-rank=7", {}),
        ("--nnodes=2 --node-rank=0", {"join": "munge"}),
    ],
)
def test_who_leads_nothing_or_has_no_place_leaves_none(tmp_path: Path, flags: str, settings: dict[str, str]) -> None:
    tell_waiting(asked(tmp_path, flags, **settings), None, "why", 2)
    assert not list(tmp_path.rglob("*.refused"))


@pytest.mark.parametrize("flags", ["--nnodes=2 --node-rank=1", "--nnodes=2 --node-rank=1 --master-addr=192.0.2.7"])
@pytest.mark.parametrize("is_step", [False, True])
def test_another_node_leaves_word_for_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, is_step: bool
) -> None:
    if is_step:
        monkeypatch.setenv("SLURM_STEP_ID", "0")
    node = asked(tmp_path, flags)
    before_s = time.time()
    tell_waiting(node, None, "it is quarantined.\nguardrun: release it", 69)
    fleet = plan_fleet(node.args, node.config, {})
    assert fleet is not None
    place = join_path(fleet, node.config, node.directory, tmp_path)
    if fleet.is_by_host:
        place = place.with_name(place.name.replace(EVERY, "another-name"))
    names = ["192.0.2.7"] if fleet.is_by_host else []
    head = Began(before_s, before_s)
    if names:
        assert not heed_absences(place, fleet.key, ["192.0.2.8"], head, time.time()), "another head"
    [said] = heed_absences(place, fleet.key, names, head, time.time())
    assert (said.text, said.exit_code, said.slot) == ("it is quarantined. release it", 69, 1)
    assert (said.node, said.is_final) == (socket.gethostname(), is_step)

    tell_waiting(node, None, "why", 69)
    begin(node, fleet)
    assert not heed_absences(place, fleet.key, names, head, time.time()), "it was started again"
    tell_waiting(node, None, "no such script", 2)
    assert not heed_absences(place, fleet.key, names, head, time.time()), "as on all nodes, mostly"


def test_none_is_left_where_another_leads(tmp_path: Path) -> None:
    head = asked(tmp_path, f"{C10D}localhost")
    fleet = plan_fleet(head.args, head.config, {})
    assert fleet is not None
    lead = open_lead(join_path(fleet, head.config, head.directory, tmp_path))
    assert lead.acquire()
    tell_waiting(head, None, "why", 2)
    assert not list(tmp_path.rglob("*.refused"))
    tell_waiting(head, lead, "why", 2)
    lead.close()
    assert len(list(tmp_path.rglob("*.refused"))) == 1


def test_no_word_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    tell_waiting(asked(tmp_path, "--nnodes=2 --node-rank=0"), None, "why", 2)
