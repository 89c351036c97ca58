"""Where the head of a job listens: a stranger finds nothing at an address that the nodes do not use, and the job runs.

Counted are the sockets of guardrun's own: those of its supervisor, and of guardrun itself before the attempt. Then
torch serves its ranks' store there, at every address, as under torchrun.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from guardrun.supervisor.wire.listening_addresses import LOOPBACK
from tests.fleet_runs.jobs import LASTING, PORT, QUICK, Job, kill, replaced
from tests.support.listeners import read_listeners
from tests.support.munged import munged_of_its_own
from tests.support.netlab import INSIDE, Host

pytestmark = pytest.mark.real("netns")

ALONE = ("--alone",)
SECOND = "10.88.0.1"
"""The head's on another network, which no other node has."""
C10D = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=100")
LATE = "[fleet]\njoin_timeout_s = 60\n"
"""Who is missing after a quarter of that may be coming by another address."""
PATIENT = LASTING.replace("[fleet]\n", "[fleet]\njoin_timeout_s = 600\n")


def listens(job: Job, name: str) -> set[str]:
    """The addresses at which a node's supervisor listens, loopback left out."""
    found = [one for one in job[name].processes() if "guardrund" in one.command]
    return {address for one in found for address, _ in read_listeners(one.pid)} - {*LOOPBACK, "127.0.1.1"}


def wait_for_hub(job: Job, name: str) -> None:
    """Until the head's supervisor listens at all; guardrun itself does not, before it serves an attempt's store."""

    def is_there() -> bool:
        found = [one for one in job[name].processes() if "guardrund" in one.command]
        return any(read_listeners(one.pid) for one in found)

    job.wait_for(is_there, 30.0, f"{name} to listen")
    assert not read_listeners(job[name].launcher().pid)


@contextmanager
def second_network(host: Host) -> Iterator[None]:
    host.run("ip", "link", "add", "eth1", "type", "veth", "peer", "name", "far1")
    host.run("ip", "address", "add", f"{SECOND}/24", "dev", "eth1")
    for end in ("eth1", "far1"):
        host.run("ip", "link", "set", end, "up")
    try:
        yield
    finally:
        host.run("ip", "link", "del", "eth1")


@contextmanager
def known_as(host: Host, folder: Path, *lines: str) -> Iterator[None]:
    """The host's /etc/hosts says this of `head`, where others' say what they said."""
    before = host.run("cat", "/etc/hosts").splitlines()
    hosts = folder / f"hosts-{host.name}"
    kept = [line for line in before if not line.endswith(" head")]
    hosts.write_text("".join(f"{line}\n" for line in [*lines, *kept]))
    host.run("mount", "--bind", str(hosts), "/etc/hosts")
    try:
        yield
    finally:
        host.run("umount", "/etc/hosts")


@contextmanager
def both_networks(job: Job) -> Iterator[None]:
    """The head and node1 are on the second network, too, over the same cable."""
    places = ((job.lab.host("head"), SECOND), (job.lab.host("node1"), "10.88.0.2"))
    for host, address in places:
        host.run("ip", "address", "add", f"{address}/24", "dev", INSIDE)
    try:
        yield
    finally:
        for host, address in places:
            host.run("ip", "address", "del", f"{address}/24", "dev", INSIDE)


def start_two(job: Job, endpoints: Sequence[str], *more: str, config: str = QUICK) -> None:
    """The head, then node1, each with what it calls the head."""
    (job.folder / "guardrun.toml").write_text(config)
    for name, endpoint in zip(("head", "node1"), endpoints, strict=True):
        job.start_one(name, *C10D, *more, f"--rdzv-endpoint={endpoint}:{PORT}", script_args=ALONE)
        if name == "head":
            wait_for_hub(job, "head")


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_at_the_address_of_loopback_it_listens_there_alone(job: Job, address: str) -> None:
    """Both nodes are on one host, where a second network comes for no other."""
    (job.folder / "guardrun.toml").write_text(PATIENT)
    host = job.lab.host("head")
    static = (*C10D[:2], f"--master-addr={address}", f"--master-port={PORT}", "--guard-preflight=quick")
    with second_network(host):
        job.start_one("head", *static, "--node-rank=0", script_args=ALONE, known_as="first")
        wait_for_hub(job, "first")
        assert listens(job, "first") == set()
        job.start_one("head", *static, "--node-rank=1", script_args=ALONE, known_as="second")
        job.first_steps(0, 2)
        assert listens(job, "first") == set()
        assert job.finish() == {"first": 0, "second": 0}


def test_who_is_on_another_host_then_is_told_what_to_change(job: Job) -> None:
    """Long on a busy machine: two guardruns start, and one has looked for the other for five seconds."""
    (job.folder / "guardrun.toml").write_text(QUICK)
    for number, (name, address) in enumerate((("head", "127.0.0.1"), ("node1", job.lab.host("head").address))):
        static = (*C10D[:2], f"--node-rank={number}", f"--master-addr={address}", f"--master-port={PORT}")
        job.start_one(name, *static, script_args=ALONE)
    job.says("node1", "(if it is on another host: name it there by an address that this node reaches)")
    assert "nothing listens at 127.0.0.1:" in job["node1"].output
    job["node1"].send(signal.SIGINT)
    job["head"].send(signal.SIGINT)
    assert job.ended() == {"head": 130, "node1": 130}


@pytest.mark.parametrize("named", ["head", "10.77.0.1"])
def test_of_two_networks_it_listens_on_the_one_that_the_nodes_use(job: Job, named: str) -> None:
    """And its next supervisor does, when the first is killed."""
    with second_network(job.lab.host("head")):
        start_two(job, [named, named], config=PATIENT)
        assert listens(job, "head") == {job.lab.host("head").address}
        job.first_steps(0, 2)
        before = job["head"].supervisor()
        kill(before)
        replaced(job, "head", before.pid)
        job.wait_for(lambda: listens(job, "head") == {job.lab.host("head").address}, 20.0, "the next one to listen")
        job.in_touch("node1")
        job.advance(20)
        assert job.finish() == {"head": 0, "node1": 0}


def test_on_the_other_network_where_that_is_what_is_named(job: Job) -> None:
    """node1 is on both, and calls the head by the second."""
    with both_networks(job):
        start_two(job, [SECOND, SECOND], "--guard-preflight=quick", config=PATIENT)
        assert listens(job, "head") == {SECOND}
        job.first_steps(0, 2)
        assert not job.incidents()
        assert job.finish() == {"head": 0, "node1": 0}


def test_a_name_that_means_another_address_elsewhere_is_listened_for_in_time(job: Job, tmp_path: Path) -> None:
    """For itself the head is on the second network, where node1 has no way to it. Whoever is missing for a while may
    come by any address; and comes back by it to the next supervisor."""
    head = job.lab.host("head")
    with second_network(head), known_as(head, tmp_path, f"{SECOND} head"):
        start_two(job, ["head", "head"], config=LASTING.replace("[fleet]\n", LATE))
        assert listens(job, "head") == {SECOND}
        job.first_steps(0, 2)
        assert listens(job, "head") >= {SECOND, head.address}
        job.in_touch("node1")
        before = job["head"].supervisor()
        kill(before)
        replaced(job, "head", before.pid)
        job.wait_for(lambda: listens(job, "head"), 20.0, "the next one to listen")
        job.in_touch("node1")
        job.advance(20)
        assert not job.incidents()
        assert job.finish() == {"head": 0, "node1": 0}


def test_a_name_that_is_loopback_s_here_as_on_debian(job: Job, tmp_path: Path) -> None:
    """What others call by it, nobody here knows: everywhere, as ever."""
    head = job.lab.host("head")
    with second_network(head), known_as(head, tmp_path, "127.0.1.1 head"):
        start_two(job, ["head", "head"], "--guard-preflight=quick", config=PATIENT)
        assert listens(job, "head") == {"::"}
        job.first_steps(0, 2)
        assert not job.incidents()
        assert job.finish() == {"head": 0, "node1": 0}


def test_a_head_that_calls_itself_localhost_is_met_at_its_address(job: Job, tmp_path: Path) -> None:
    """Which it gives to the others itself; and where Debian has it call itself 127.0.1.1 besides."""
    head = job.lab.host("head")
    with second_network(head), known_as(head, tmp_path, "127.0.1.1 head"):
        head.run("ip", "route", "add", "default", "via", "10.77.0.2")
        try:
            start_two(job, ["localhost", head.address], config=PATIENT)
            assert listens(job, "head") == {head.address}
            job.first_steps(0, 2)
            assert job.finish() == {"head": 0, "node1": 0}
        finally:
            head.run("ip", "route", "del", "default")


@pytest.mark.real("munge")
def test_who_is_introduced_may_call_the_head_by_another_address(job: Job, tmp_path: Path) -> None:
    """Both are on both networks; the head goes by the second, node1 looks for it on the first."""
    with both_networks(job), munged_of_its_own() as munge_socket:
        config = QUICK.replace("[fleet]\n", f'{LATE}join = "munge"\nmunge_socket = "{munge_socket}"\n')
        start_two(job, [SECOND, job.lab.host("head").address], config=config)
        assert listens(job, "head") == {SECOND}
        job.first_steps(0, 2)
        assert job.finish() == {"head": 0, "node1": 0}
