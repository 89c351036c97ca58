"""/metrics, of a real agent and as a function of what is known; and the dashboard's queries against them."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from guardrun.supervisor.agent.metric_names import LABELS, NOT_SHOWN, PREFIX, SHOWN, kind_of
from guardrun.supervisor.agent.metrics import AgentFigures, node_series, reason_series, sample_series
from guardrun.supervisor.base import metrics_endpoint
from guardrun.supervisor.base.metrics_endpoint import MetricsServer, NoAnswerError, Series, parse_listen
from guardrun.supervisor.daemon.job_metrics import job_series, start_job_metrics
from guardrun.supervisor.health.base.readings import Readout, Sample, Value
from guardrun.supervisor.sensors.base.sensor_runner import Runner
from guardrun.supervisor.sensors.catalog import host_sensors
from tests.agent.bed import AgentBed
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
OWN = {"instance", "job"}
"""Labels that Prometheus itself gives every series."""

STATUS: dict[str, Any] = {
    "run_id": "r1",
    "state": "training",
    "attempt": 1,
    "world_size": 2,
    "goodput": 0.93,
    "lost_s": {"restart": 12.5},
    "restarts": 1,
    "incidents": [{"id": "001", "kind": "hang", "cause": "rank_blocked", "summary": "", "action": "restart"}] * 2,
    "ranks": [
        {
            "global_rank": number,
            "step": 70 + number,
            "step_time_s": 0.25,
            "loss": 2.5,
            "grad_norm": None,
            "learning_rate": 1e-4,
            "left_out": 3 * number,
            "data_share": None,
            "gc_share": 0.01,
            "last_progress_s": 0.1,
        }
        for number in (0, 1)
    ],
}


def scrape_once(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def scrape(address: str, path: str = "/metrics") -> str:
    """Until it has an answer: the loop of a busy machine may have none within two seconds."""

    def answer() -> str:
        try:
            return scrape_once(address, path)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503:
                raise
            return ""

    return wait_until(answer, 60, "an answer")


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def readout(*samples: tuple[str, str, Value | None]) -> Readout:
    return Readout(sensor="s", at_s=1.0, samples=[Sample(subject=s, name=n, value=v) for s, n, v in samples])


# The agent's -----------------------------------------------------------------------------------------------------


@pytest.fixture
def metrics(agent: AgentBed) -> Callable[[], dict[str, Any]]:
    """What a scrape of a real agent has."""
    agent.tell(
        "gpu:u-1 index 3\ngpu:u-1 temperature_c 81\ngpu:u-1 clock_reasons hw_thermal,sw_power_cap\n"
        "gpu:u-1 is_hot 1\nmount:/a\\b free_bytes 7\n! gpu:u-1 xid 63\n"
    )
    agent.start(env={"GUARDRUN_METRICS_NODE_LISTEN": "0"})
    address = agent.ask("status")["metrics"]
    assert address.startswith("127.0.0.1:")
    return lambda: parsed(scrape(address))


def test_a_scrape_has_devices_findings_and_the_agent_itself(metrics: Callable[[], dict[str, Any]]) -> None:
    found = wait_until(lambda: m if "guardrun_node_happenings_total" in (m := metrics()) else None, 20, "the happening")
    assert found is not None
    gpu = (("gpu", "3.0"), ("uuid", "u-1"))  # the test's sensor knows floats only
    assert found["guardrun_node_gpu_temperature_celsius"] == {gpu: 81.0}
    assert {dict(labels)["reason"] for labels in found["guardrun_node_gpu_clock_reason"]} == {
        "hw_thermal",
        "sw_power_cap",
    }
    assert found["guardrun_node_filesystem_free_bytes"] == {(("mountpoint", "/a\\b"),): 7.0}
    assert found["guardrun_node_findings"] == {(("cause", "thermal"), ("response", "note")): 1.0}
    assert found["guardrun_node_happenings_total"] == {(("name", "xid"),): 1.0}
    assert found["guardrun_node_quarantined"] == {(): 0.0}
    assert found["guardrun_node_sensor_silent"] == {(("sensor", "file"),): 0.0}


def test_every_name_keeps_the_conventions(metrics: Callable[[], dict[str, Any]]) -> None:
    names = {f"{PREFIX}{shown.metric}" for shown in SHOWN.values()} | set(metrics()) | set(job_names())
    for name in names:
        assert re.fullmatch(r"guardrun_(node|job)_[a-z0-9_]+", name), name
        assert not re.search(r"_(c|s|w|hz|ms|mb|kb|pct|percent|bps)(_total)?$", name), name
    for shown in SHOWN.values():
        assert not shown.metric.endswith("_total"), shown
        assert shown.help.endswith("."), shown


def test_a_port_that_is_taken_is_said_and_missed(agent: AgentBed) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        agent.start(env={"GUARDRUN_METRICS_NODE_LISTEN": str(taken.getsockname()[1])})
        assert agent.ask("status")["metrics"] == ""
    assert "no_metrics" in agent.log
    assert "Address already in use" in agent.log


def test_a_reload_moves_them(agent: AgentBed) -> None:
    config = agent.folder / "agent.toml"
    config.write_text("[policy]\nact = true\n")
    process = agent.start("--config", str(config), env={"GUARDRUN_METRICS_NODE_LISTEN": None})
    config.write_text('[metrics]\nnode_listen = "127.0.0.1:0"\n')
    process.send_signal(signal.SIGHUP)

    def moved() -> str:
        address: str = agent.ask("status")["metrics"]
        return "" if address.endswith(":19470") else address

    address = wait_until(moved, 20, "another address")
    assert "guardrun_node_info" in scrape(address)


# What is shown of samples ----------------------------------------------------------------------------------------


def test_every_number_of_the_hosts_sensors_is_shown_or_left_out_on_purpose() -> None:
    told: list[Readout] = []
    sensors = host_sensors()
    runner = Runner(sensors, told.append)
    runner.start()
    try:
        wait_until(lambda: len({readout.sensor for readout in told}) == len(sensors), 30, "every sensor's first word")
    finally:
        runner.close()
    names = {
        (kind_of(sample.subject, sample.name)[0], sample.name)
        for readout in told
        for sample in readout.samples
        if not isinstance(sample.value, str) and sample.value is not None and not sample.name.endswith("_ratio")
    }
    assert names - set(SHOWN) - NOT_SHOWN == set()


def test_what_is_unknown_or_nonsense_is_not_shown() -> None:
    series = sample_series(
        [readout(("gpu:a", "temperature_c", None), ("gpu:b", "temperature_c", float("nan")), ("x:y", "odd", 1.0))]
    )
    assert series == []


def test_units_are_base_units() -> None:
    series = sample_series([readout(("net:eth0", "speed_bps", 8_000_000), ("net:eth0", "is_up", True))])
    assert {one.name: one.values for one in series} == {
        "guardrun_node_network_speed_bytes_per_second": {("eth0",): 1_000_000.0},
        "guardrun_node_network_up": {("eth0",): 1.0},
    }


def test_kinds_of_subjects() -> None:
    assert kind_of("cpu:0", "throttle_count") == ("core", "0")
    assert kind_of("cpu", "busy_s") == ("cpu", "")
    assert kind_of("memory", "stalled_some_s") == ("pressure", "memory")
    assert kind_of("cgroup:/a:b", "periods") == ("cgroup", "/a:b")


# The supervisor's ------------------------------------------------------------------------------------------------


def job_names() -> set[str]:
    return {one.name for one in job_series(STATUS)}


class Loop:
    """A thread that makes calls, as a daemon's loop does."""

    def __init__(self) -> None:
        import queue

        self.calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def post(self, call: Callable[[], object]) -> None:
        self.calls.put(call)

    def _run(self) -> None:
        while (call := self.calls.get()) is not None:
            call()

    def close(self) -> None:
        self.calls.put(None)
        self.thread.join()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def test_a_runs_figures_are_those_of_its_status(loop: Loop) -> None:
    server = start_job_metrics("0", loop.post, lambda: STATUS)
    assert server is not None
    try:
        found = parsed(scrape(server.address))
    finally:
        server.close()
    run = ("run_id", "r1")
    assert found["guardrun_job_goodput_ratio"] == {(run,): 0.93}
    assert found["guardrun_job_incidents_total"] == {(("cause", "rank_blocked"), ("kind", "hang"), run): 2.0}
    assert found["guardrun_job_step"] == {(("rank", "0"), run): 70.0, (("rank", "1"), run): 71.0}
    assert found["guardrun_job_lost_seconds_total"] == {(("reason", "restart"), run): 12.5}
    assert found["guardrun_job_loss"] == {(("rank", "0"), run): 2.5, (("rank", "1"), run): 2.5}
    assert found["guardrun_job_steps_left_out"] == {(("rank", "0"), run): 0.0, (("rank", "1"), run): 3.0}
    assert "guardrun_job_data_wait_ratio" not in found and "guardrun_job_gradient_norm" not in found


def test_by_default_a_supervisor_serves_nothing_and_imports_nothing(loop: Loop) -> None:
    assert start_job_metrics("", loop.post, lambda: STATUS) is None


def test_an_address_that_is_none_is_said(loop: Loop) -> None:
    assert start_job_metrics("here", loop.post, lambda: STATUS) is None


def test_a_real_run_serves_its_own(start_guardrun: Callable[..., GuardrunRun]) -> None:
    script = "import time\nprint('here', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
    run = start_guardrun(["--nproc_per_node=1", "--guard-metrics-listen", "127.0.0.1:0"], script=script)
    run.wait_for_output("here")
    assert run.run_dir is not None
    words = re.compile(r'"address": "([0-9.:]+)"')
    log = run.run_dir / "guardrun.log"
    address = wait_until(lambda: words.search(log.read_text()), 20, "the address in the log")
    assert address is not None

    def found_started() -> dict[str, dict[tuple[tuple[str, str], ...], float]] | None:
        found = parsed(scrape(address[1]))
        return found if [*found.get("guardrun_job_attempt", {}).values()] == [0.0] else None

    found = wait_until(found_started, 20, "the first attempt")
    assert found is not None
    assert list(found["guardrun_job_world_size"].values()) == [1.0]
    run.send(signal.SIGTERM)
    assert run.wait().returncode == 143


# The server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("19470", ("127.0.0.1", 19470)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:2", ("::1", 2)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "host", "1:2:x", "70000", "-1", "²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        parse_listen(text)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer("0", lambda: [Series("guardrun_job_step", "A step.", ("rank",), {("0",): 1.0})])
    yield server
    server.close()


def test_other_paths_are_not_found(server: MetricsServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        scrape(server.address, "/")
    error.value.close()


def test_openmetrics_is_spoken_where_it_is_asked_for(server: MetricsServer) -> None:
    request = urllib.request.Request(f"http://{server.address}/metrics")
    request.add_header("Accept", "application/openmetrics-text;version=1.0.0")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.read().endswith(b"# EOF\n")


def test_a_loop_that_does_not_answer_is_said() -> None:
    def read() -> list[Series]:
        raise NoAnswerError

    server = MetricsServer("0", read)
    try:
        with pytest.raises(urllib.error.HTTPError, match="503") as error:
            scrape_once(server.address)
        error.value.close()
    finally:
        server.close()


def connect(server: MetricsServer) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def scrape_threads() -> int:
    return sum(thread.name == "guardrun-scrape" for thread in threading.enumerate())


def test_who_says_nothing_holds_nobody_up(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 120.0)
    with connect(server):
        began_s = time.monotonic()
        assert "guardrun_job_step" in scrape(server.address)
        assert time.monotonic() - began_s < metrics_endpoint.REQUEST_S / 2


def test_who_sends_a_letter_at_a_time_is_let_go_in_time(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 1.0)
    with connect(server) as slow:
        began_s = time.monotonic()
        slow.settimeout(0.1)
        while True:
            try:
                slow.sendall(b"G")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                assert time.monotonic() - began_s < 60
            except ConnectionError:
                break
        assert time.monotonic() - began_s > 0.5
    wait_until(lambda: scrape_threads() == 0, 10, "the end of its thread")


def test_64_are_connected_at_once_and_no_more(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 120.0)
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(metrics_endpoint.MAX_AT_ONCE)]
        wait_until(lambda: scrape_threads() == metrics_endpoint.MAX_AT_ONCE, 10, "all of them being served")
        with connect(server) as refused:
            assert refused.recv(1) == b""
        silent[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"guardrun_job_step" in silent[0].makefile("rb").read()
        wait_until(lambda: scrape_threads() < metrics_endpoint.MAX_AT_ONCE, 10, "room for another")
        assert "guardrun_job_step" in scrape(server.address)
    wait_until(lambda: scrape_threads() == 0, 10, "the end of all")


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text;version=1.0.0"])
def test_labels_come_back_as_they_were(accept: str) -> None:
    labels = ["/a\\b", 'say "hi"', "two\nlines", "\\n", 'all\\"\n', "\udcff"]
    server = MetricsServer("0", lambda: [Series("guardrun_job_x", "X.", ("of",), {(one,): 1.0 for one in labels})])
    try:
        request = urllib.request.Request(f"http://{server.address}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as answer:
            [family] = text_string_to_metric_families(answer.read().decode().replace("# EOF\n", ""))
    finally:
        server.close()
    assert [sample.labels["of"] for sample in family.samples] == [*labels[:-1], "\\udcff"]


# The dashboard ---------------------------------------------------------------------------------------------------


def all_series() -> dict[str, set[str]]:
    """Every metric that there is, with its labels."""
    found: dict[str, set[str]] = {}
    for (kind, _), shown in SHOWN.items():
        found[PREFIX + shown.metric + ("_total" if shown.is_counter else "")] = set(LABELS.get(kind, ()))
    for one in (*job_series(STATUS), *reason_series([]), *agent_series()):
        found[one.name + ("_total" if one.is_counter else "")] = set(one.labels)
    return found


def agent_series() -> list[Series]:
    """Of the agent itself: made from an agent that knows nothing."""
    nothing = AgentFigures(
        node="n",
        now_s=1.0,
        wall_s=1.0,
        began_s=0.0,
        readouts={},
        findings=[],
        happenings={},
        is_quarantined=False,
        jobs=0,
        leftovers=0,
        ended_leftovers=0,
        clients=0,
        has_history_trouble=False,
    )
    return node_series(nothing)


def queries() -> list[tuple[str, str]]:
    dashboard = json.loads(DASHBOARD.read_text())
    found = [(p["title"], t["expr"]) for p in dashboard["panels"] for t in p.get("targets", [])]
    return found + [(v["label"], v["query"]) for v in dashboard["templating"]["list"] if v["type"] == "query"]


@pytest.mark.parametrize(("title", "query"), queries())
def test_a_query_of_the_dashboard_asks_for_what_there_is(title: str, query: str) -> None:
    known = all_series()
    names = re.findall(r"\bguardrun_[a-z0-9_]+", query)
    assert names, query
    for name in names:
        assert name in known, f"{title}: there is no {name}"
    labels = set().union(*(known[name] for name in names)) | OWN
    asked = set(re.findall(r"[{,]\s*(\w+)\s*[=!]~?\"", query))
    for words in re.findall(r"\bby \(([^)]*)\)", query):
        asked |= {word.strip() for word in words.split(",")}
    asked |= set(re.findall(r"^label_values\(\w+, (\w+)\)$", query))
    assert asked <= labels, f"{title}: {asked - labels}"
    for name in re.findall(r"(?:rate|increase)\((\w+)", query):
        assert name.endswith("_total"), f"{title}: {name} is no counter"


def test_the_dashboards_legends_name_labels_that_there_are() -> None:
    known = all_series()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            by = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            names = re.findall(r"\bguardrun_[a-z0-9_]+", target["expr"])
            left = {w.strip() for words in by for w in words.split(",")} if by else known[names[0]] | OWN
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, target


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own
