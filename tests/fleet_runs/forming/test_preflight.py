"""Nodes are tried together before they train, on hosts with links of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from guardrun.launcher.base.terminal_lines import NOT_FIT
from guardrun.supervisor.fleet.checks.check_rounds import MEET_S, PROBE_S
from tests.fleet_runs.jobs import CONFIG, Job, flags
from tests.fleet_runs.own_files import lacking_a_module, own_copy
from tests.support import scenes
from tests.support.forkserver import client
from tests.support.netlab import Lab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("netns")

TRIED, FULL = "--guard-preflight=quick", "--guard-preflight=full"
SLOW_BITS_PER_S = 40_000_000
"""A mebibyte takes a fifth of a second: a hundred times what it takes between the others."""


@contextmanager
def lost_ways(lab: Lab, name: str, others: list[str]) -> Iterator[None]:
    """A host that has no way to some others any more, but still one to the head: it joins, and is heard."""
    host, addresses = lab.host(name), [lab.host(other).address for other in others]
    for address in addresses:
        host.run("ip", "route", "add", "blackhole", address)
    try:
        yield
    finally:
        for address in addresses:
            host.run("ip", "route", "del", "blackhole", address)


def checked(job: Job) -> dict[str, Any]:
    """What the engine was told last."""
    told = [line["event"] for line in job.events() if line["event"]["type"] == "nodes_checked"]
    return dict(told[-1])


def is_quarantined(job: Job, name: str) -> bool:
    """Whether the node's own record says so, for network."""
    path = job.state_of(name) / "quarantine.json"
    return path.is_file() and '"network"' in path.read_text()


def record(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.run_dir / "preflight-nodes.json").read_text())
    return found


def test_a_node_that_most_do_not_reach_is_replaced_before_the_first_attempt(job: Job) -> None:
    """Whether the spare is there in time to be tried with the others, or is tried when it comes."""
    with lost_ways(job.lab, "node1", ["node2", "node3", "node4"]):
        job.start(4, ["head", "node1", "node2", "node3", "node4"], TRIED, spares=1)
        assert job.where(0, 4) == ["head", "node2", "node3", "node4"]
    output = job["head"].output
    told = [line["event"].get("faulty", {}) for line in job.events() if line["event"]["type"] == "nodes_checked"]
    assert set(told[0]) == {"node1"} and not any(told[1:]), output
    assert re.search(r"pre-flight: node1 neither reaches nor is reached by (2 of 3|3 of 4) others \(node2, ", output)
    assert "--guard-preflight=off starts all the same" in output
    [incident] = job.incidents()
    assert (incident["kind"], incident["cause"], incident["action"]) == ("node", "network", "isolate_node")
    assert [culprit["node"] for culprit in incident["culprits"]] == ["node1"]
    assert incident["evidence"]["check"] == "reach" and "node2" in incident["evidence"]["failed_with"]
    job.says("head", "guardrun: report: ")
    page = next((job.run_dir / "incidents").glob("001-network/report.html")).read_text()
    assert "pre-flight: node1 neither reaches" in page
    assert record(job)["took_s"] < PROBE_S + 2 * MEET_S, "whoever seems faulty is tried twice"
    wait_until(lambda: is_quarantined(job, "node1"), 10.0, "node1 keeps it on record")
    assert set(job.finish().values()) == {0}
    assert job.incidents()[0]["recovered"], "training got on without it"


def test_without_a_spare_the_run_ends_and_says_why(job: Job) -> None:
    with lost_ways(job.lab, "node1", ["node2", "node3"]):
        job.start(4, ["head", "node1", "node2", "node3"], TRIED)
        codes = job.ended()
    assert codes["head"] == NOT_FIT, codes
    assert "the pre-flight leaves 3 of 4 nodes: without node1" in job["head"].output
    assert job.summary()["outcome"] == "interrupted"
    assert not list(job.marks.glob("first-*"))


def test_other_code_on_a_node_is_said_and_a_spare_takes_over_where_its_import_fails(job: Job) -> None:
    with lacking_a_module(job, "node1", spares=("node2",)):
        job.start(2, ["head", "node1", "node2"], TRIED, spares=1)
        assert job.where(1, 2) == ["head", "node2"]
    assert "pre-flight: node1 would run other code: library.py differs from the other nodes'" in job["head"].output
    [incident] = job.incidents()
    assert (incident["cause"], incident["action"]) == ("import_error", "isolate_node")
    assert [culprit["node"] for culprit in incident["culprits"]] == ["node1"]
    assert incident["evidence"]["only_on"] == "node1"
    assert set(job.finish().values()) == {0}


@pytest.mark.parametrize("level", ["off", "quick"])
def test_another_torch_on_a_node_is_said_and_stops_nobody(job: Job, level: str) -> None:
    """Which it imports and trains with, as it would where everybody has installed his own: it is executed."""
    import torch  # not where this file is only collected: it takes more than a second

    place = Path(torch.__file__).with_name("version.py")
    here = torch.__version__
    other = place.read_text().replace(here, "2.9.1+cpu")
    with own_copy(job.lab.host("node1"), place, other, job.marks):
        job.start(2, ["head"], f"--guard-preflight={level}")
        with client.executed():
            job.start_one("node1", *flags(1), f"--guard-preflight={level}")
        assert job.where(0, 2, timeout_s=150.0) == ["head", "node1"], "which imports all by itself"
    said = job["head"].output
    found = re.search(rf".*node1 .*torch.*2\.9\.1\+cpu.*{re.escape(here)}.*", said)
    assert found is not None, said
    if level == "quick":
        scenes.check("another version", "guardrun --nnodes=2 … train.py", found[0], job.folder)
    assert set(job.finish().values()) == {0}


@pytest.mark.timeout(240)
def test_full_says_whose_link_is_slow(job: Job) -> None:
    """Long: data crosses a link that is slow."""
    job.lab.slow(job.lab.host("node2"), SLOW_BITS_PER_S)
    job.start(3, ["head", "node1", "node2"], FULL, config=CONFIG)
    assert job.where(0, 3, timeout_s=150.0) == ["head", "node1", "node2"]
    event = checked(job)
    assert not event.get("faulty"), event
    assert [line for line in event["said"] if line.startswith("node2 is slow in all-reduces with two others: ")]
    assert not any(one[3] for one in record(job)["all_reduces"]) and len(record(job)["all_reduces"]) == 4
    assert set(job.finish().values()) == {0}
