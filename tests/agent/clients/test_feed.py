"""What a run's supervisor makes of its node's agent: what concerns the run goes on to the engine, in its time."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.hooks.wire.messages import DeviceReported
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.engine.model.events import Device, NodeFindingsReported
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Readout, Sample, Value
from guardrun.supervisor.health.gpu.rank_device import INITIAL_PID_NAMESPACE
from guardrun.supervisor.node.node_feed import BEFORE_S, NodeFeed, Using
from guardrun.supervisor.node.rank_devices import RankDevices, RankSaid
from guardrun.supervisor.wire.agent_messages import (
    PROTOCOL,
    Facts,
    Findings,
    FromAgent,
    RegisterJob,
    Welcome,
    pack,
)
from tests.agent.bed import AgentBed, start_time
from tests.support.waiting import wait_until

PIDS = {0: 4241, 1: 4242}
SKEW_S = 1000.0
"""The engine's clock is so far ahead of the monotonic one, which begins at 0 where the machine was just started."""
USING = Using(pids=PIDS, mounts=lambda: {"/data"})
Make = Callable[..., NodeFeed]


class ScriptedAgent:
    """Says over a real socket what it is told to."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(60)
        self._peer: socket.socket | None = None

    def say(self, *messages: FromAgent) -> None:
        if self._peer is None:
            self._peer, _ = self._listener.accept()
            messages = (Welcome(protocol=PROTOCOL, version="1", node="n", pid=1), *messages)
        self._peer.sendall(b"".join(map(pack, messages)))

    def close(self) -> None:
        for each in filter(None, (self._peer, self._listener)):
            each.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    feeds: list[NodeFeed] = []

    def make(path: Path, patience_s: float = 60.0) -> NodeFeed:
        job = RegisterJob(
            run_id="run",
            run_dir=str(tmp_path),
            launcher_pid=os.getpid(),
            launcher_start=start_time(os.getpid()),
            token="0",
        )
        clock = EngineClock(SKEW_S, 0.0)
        feed = NodeFeed("node-a", clock, job, path=path, patience_s=patience_s, pid_namespace=INITIAL_PID_NAMESPACE)
        feeds.append(feed)
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close(is_over=True)


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedAgent]:
    agent = ScriptedAgent(tmp_path / "scripted.sock")
    yield agent
    agent.close()


def hear(feed: NodeFeed, using: Using = USING) -> NodeFindingsReported:
    return wait_until(lambda: feed.step(using), 20, "news")


def told(feed: NodeFeed) -> list[tuple[str, bool]]:
    return [(finding.id, finding.is_over) for finding in hear(feed).findings]


def test_what_concerns_the_run_is_told_and_told_to_be_over(agent: AgentBed, make: Make) -> None:
    agent.tell("cpu is_hot 1\nnet:eth0 is_hot 1\nmount:/data is_hot 1\nmount:/other is_hot 1\n")
    agent.start()
    feed = make(agent.socket)
    found = hear(feed).findings
    assert sorted(finding.id for finding in found) == ["is_hot/cpu", "is_hot/mount:/data"]
    assert all(abs(finding.since_s - (time.monotonic() + SKEW_S)) < 30 for finding in found)
    agent.tell("mount:/data is_hot 1\n")
    assert told(feed) == [("is_hot/cpu", True)]


def test_of_links_those_that_the_job_uses_are_told(agent: AgentBed, make: Make) -> None:
    """Only a job of several nodes has any."""
    agent.tell("cpu is_hot 1\nnet:eth0 is_hot 1\nnet:eth1 is_hot 1\nib:mlx5_0/1 is_hot 1\n")
    agent.start()
    several = USING._replace(links=lambda: {"eth1"})
    found = hear(make(agent.socket), several).findings
    assert {finding.id for finding in found} == {"is_hot/cpu", "is_hot/ib:mlx5_0/1", "is_hot/net:eth1"}


def test_what_an_agent_that_is_back_does_not_know_any_more_is_over(agent: AgentBed, make: Make) -> None:
    agent.tell("cpu is_hot 1\n")
    process = agent.start()
    feed = make(agent.socket)
    assert told(feed) == [("is_hot/cpu", False)]
    agent.end(process, signal.SIGKILL)
    agent.tell("cpu temperature_c 40\n")
    agent.start()
    assert told(feed) == [("is_hot/cpu", True)]


def test_what_several_messages_say_in_one_second_is_told_once(
    scripted: ScriptedAgent, make: Make, tmp_path: Path
) -> None:
    feed = make(tmp_path / "scripted.sock")
    feed.step(USING)
    scripted.say(told_hot("cpu", "memory", is_whole=True), told_hot("cpu"), told_hot(is_whole=True), told_hot("gpu:A"))
    assert told(feed) == [("is_hot/gpu:A", False)], "what was over before it was told is not told"
    scripted.say(told_hot("cpu"), told_hot("cpu", "gpu:A", is_whole=True), told_hot("cpu", is_whole=True))
    assert told(feed) == [("is_hot/cpu", False), ("is_hot/gpu:A", True)]


def test_what_an_agent_says_again_is_no_news(scripted: ScriptedAgent, make: Make, tmp_path: Path) -> None:
    """Whoever subscribes between a finding and its news gets it in the whole account, and as news."""
    feed = make(tmp_path / "scripted.sock")
    feed.step(USING)
    whole = told_hot("cpu", is_whole=True)
    scripted.say(whole)
    assert told(feed) == [("is_hot/cpu", False)]
    scripted.say(Findings(at_s=whole.at_s, findings=[*whole.findings, *told_hot("gpu:A").findings]))
    assert told(feed) == [("is_hot/gpu:A", False)]


def told_hot(*subjects: str, is_whole: bool = False) -> Findings:
    now_s = time.monotonic()
    found = [
        Finding(id=f"is_hot/{subject}", cause="is_hot", subject=subject, since_s=now_s, told_s=now_s, summary="Hot.")
        for subject in subjects
    ]
    return Findings(at_s=now_s, findings=found, is_whole=is_whole)


def test_own_senses_until_there_is_an_agent(agent: AgentBed, make: Make) -> None:
    feed = make(agent.socket, patience_s=0.0)
    wait_until(lambda: feed.step(USING) or feed.has_local_sensors, 10, "senses of its own")
    agent.tell("cpu is_hot 1\n")
    agent.start()
    assert told(feed) == [("is_hot/cpu", False)]
    assert not feed.has_local_sensors


def test_a_person_who_isolates_the_node_meanwhile_is_named(agent: AgentBed, make: Make) -> None:
    agent.start()
    agent.ask("isolate", cause="earlier", reason="before this run")
    time.sleep(0.01)  # the record's times have milliseconds
    feed = make(agent.socket)
    wait_until(lambda: feed.step(USING) or agent.ask("status")["clients"], 20, "the feed")
    agent.ask("isolate", cause="cable", reason="to be moved.")
    [found] = hear(feed).findings
    name = pwd.getpwuid(os.getuid()).pw_name
    assert (found.cause, found.subject, found.is_over) == ("quarantined", "node", False)
    assert found.summary == f"{name} has put this node under quarantine for cable (to be moved)."
    agent.ask("release")
    assert told(feed) == [(found.id, True)]


def listed(at_s: float, *uuids: str, namespace: int = INITIAL_PID_NAMESPACE) -> Readout:
    """What NVML says of the node, and in whose process ids."""
    told: dict[str, Value] = {"gpus": " ".join(uuids), "gpus_hidden": 0, "pid_namespace": namespace}
    return Readout(
        sensor="gpu",
        at_s=at_s,
        is_partial=True,
        samples=[Sample(subject="node", name=name, value=value) for name, value in told.items()],
    )


def gpu(subject: str, index: int, held: str, at_s: float, temperature_c: float) -> list[Sample]:
    values: dict[str, Value] = {"index": index, "holders": held, "temperature_c": temperature_c}
    return [Sample(subject=subject, name=name, value=value) for name, value in values.items()]


def test_ranks_are_known_by_the_memory_that_they_hold_and_gauges_by_what_is_wrong(
    scripted: ScriptedAgent, make: Make, tmp_path: Path
) -> None:
    feed, now_s = make(tmp_path / "scripted.sock"), time.monotonic()
    feed.step(USING)
    scripted.say(Facts(at_s=now_s, readouts=[listed(now_s, "A", "B")]))
    for back_s in range(200, 0, -10):
        samples = gpu("gpu:A", 0, "4241=5 9=1", now_s, 50) + gpu("gpu:B", 1, "4242=5 4241=1", now_s, 60 + back_s)
        scripted.say(Facts(at_s=now_s, readouts=[Readout(sensor="gpu", at_s=now_s - back_s, samples=samples)]))
    news = hear(feed)
    assert news.devices == {0: Device(subject="gpu:A", index=0), 1: Device(subject="gpu:B", index=1)}
    assert news.gauges == [], "nothing is wrong yet"
    finding = Finding(
        id="throttle/gpu:B", cause="throttle", subject="gpu:B", since_s=now_s - 50, told_s=now_s, summary="x"
    )
    scripted.say(Findings(at_s=now_s, findings=[finding]))
    news = hear(feed)
    assert {gauge.subject for gauge in news.gauges} == {"gpu:B"}
    times = [gauge.at_s for gauge in news.gauges]
    assert times == sorted(times) and len(times) == 20 and BEFORE_S > max(times) - min(times) > 180
    assert news.gauges[-1].value == 70 and abs(news.gauges[-1].at_s - (now_s + SKEW_S - 10)) < 0.01


def test_a_look_is_told_what_ranks_devices_draw_beside_what_they_usually_do(
    scripted: ScriptedAgent, make: Make, tmp_path: Path
) -> None:
    """A device that nobody of the run trains on is not in it."""
    feed, now_s = make(tmp_path / "scripted.sock"), time.monotonic()
    feed.step(USING)
    assert feed.power_readings() == []
    scripted.say(Facts(at_s=now_s, readouts=[listed(now_s, "A", "B", "C")]))
    for back_s in range(200, -1, -10):
        watts = {"A": 600.0, "B": 400.0 if back_s else 150.0, "C": 300.0}
        held = {"A": "4241=5", "B": "4242=5", "C": "9=1"}
        samples = [one for at, x in enumerate("ABC") for one in gpu(f"gpu:{x}", at, held[x], now_s, 50)]
        samples += [Sample(subject=f"gpu:{x}", name="power_w", value=value) for x, value in watts.items()]
        scripted.say(Facts(at_s=now_s, readouts=[Readout(sensor="gpu", at_s=now_s - back_s, samples=samples)]))
    hear(feed)
    told = {reading.name: (reading.value, reading.unit, reading.note) for reading in feed.power_readings()}
    assert told == {
        "power of GPU 0 (rank 0)": (600.0, "W", "usually 600 W"),
        "power of GPU 1 (rank 1)": (150.0, "W", "usually 400 W"),
    }


class Devices:
    """A node with GPUs A and B, its ranks' processes, and what they say."""

    def __init__(self, namespace: int = INITIAL_PID_NAMESPACE, *, is_own_view: bool = True) -> None:
        self.devices = RankDevices(INITIAL_PID_NAMESPACE)
        self.pids = dict(PIDS)
        self.attempt = 0
        self.said: dict[int, DeviceReported] = {}
        self.variables: dict[int, dict[str, str]] = {}
        self.hold("", "")
        self.devices.note(listed(0.0, "A", "B", namespace=namespace), is_own_view)

    def hold(self, a: str, b: str) -> None:
        samples = [*gpu("gpu:A", 0, a, 0.0, 50), *gpu("gpu:B", 1, b, 0.0, 50)]
        samples += [Sample(subject=f"gpu:{x}", name="bus", value=f"0000:0{x.lower()}:00") for x in "AB"]
        self.devices.note(Readout(sensor="gpu", at_s=0.0, samples=samples, is_partial=True), is_own_view=True)

    def tell(self, rank: int, kind: str = "cuda", *, uuid: str = "", bus: str = "", is_alone: bool = True) -> None:
        self.said[rank] = DeviceReported(
            attempt=0,
            global_rank=rank,
            pid=self.pids[rank],
            device_type=kind,
            index=0,
            uuid=uuid,
            bus=bus,
            is_alone=is_alone,
        )

    def changes(self) -> dict[int, Device | None]:
        return self.devices.changes(self.pids, RankSaid(self.variables, self.said, self.attempt))


ON_A, ON_B = Device(subject="gpu:A", index=0), Device(subject="gpu:B", index=1)


def test_what_a_rank_says_of_its_device_counts_whatever_its_number_there() -> None:
    """Rank 0 trains on the second one: LOCAL_RANK says nothing."""
    node = Devices()
    assert node.changes() == {}
    node.tell(0, uuid="b")
    node.tell(1, bus="0000:0a:00")
    assert node.changes() == {0: ON_B, 1: ON_A}
    assert node.changes() == {}, "it is told once"


def test_a_rank_that_goes_to_another_device_is_followed_there() -> None:
    node = Devices()
    node.tell(0, uuid="a")
    assert node.changes() == {0: ON_A}
    node.tell(0, uuid="b")
    assert node.changes() == {0: ON_B}
    node.tell(0, uuid="b", is_alone=False)
    assert node.changes() == {0: None}


def test_what_contradicts_itself_is_taken_back() -> None:
    node = Devices()
    node.tell(0, uuid="a")
    assert node.changes() == {0: ON_A}
    node.hold("", "4241=5")
    assert node.changes() == {0: None}
    node.hold("4241=5", "4241=1")
    assert node.changes() == {0: ON_A}


def test_a_rank_that_has_ended_keeps_its_device_and_the_next_process_has_none() -> None:
    node = Devices()
    node.hold("4241=5", "4242=5")
    assert node.changes() == {0: ON_A, 1: ON_B}
    node.hold("", "")
    assert node.changes() == {}, "what is found of the device right afterwards is to reach its rank"
    node.pids, node.attempt = {0: 4251, 1: 4252}, 1
    assert node.changes() == {0: None, 1: None}
    node.hold("4251=5", "4252=5")
    assert node.changes() == {0: ON_A, 1: ON_B}


def test_a_rank_that_comes_from_another_node_brings_no_device_along() -> None:
    node = Devices()
    node.attempt = 1
    assert node.changes() == {0: None, 1: None}
    assert node.changes() == {}


def test_the_hosts_process_ids_are_nobodys_in_a_container() -> None:
    node = Devices(namespace=4026532000)
    node.hold("4242=5", "77=5")
    assert node.changes() == {}, "4242 is another process of the host's"
    node.hold("4242=5", "4241=5")
    assert node.changes() == {1: ON_A, 0: ON_B}, "a driver that translates"


def test_numbers_count_where_the_ranks_are() -> None:
    for is_own_view, expected in ((True, {0: ON_B}), (False, {})):
        node = Devices(is_own_view=is_own_view)
        node.variables[0] = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert node.changes() == expected


def test_devices_without_sensors_are_named_once() -> None:
    node = Devices()
    node.tell(0, kind="xpu")
    node.tell(1, kind="xpu")
    said = RankSaid(devices=node.said)
    assert node.devices.news_unsensed(said) == {"xpu": [0, 1]}
    assert node.devices.news_unsensed(said) == {}
    assert node.changes() == {}
