"""Nodes are tried together before they train, on hosts with links of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fleet.jobs import Job
from tests.support.netlab import Host

pytestmark = pytest.mark.real("netns")

QUICK, FULL = "--guard-preflight=quick", "--guard-preflight=full"
NOT_FIT = 71


def refuse_newcomers(host: Host) -> None:
    """A firewall that lets a host's own connections through, and nobody else's."""
    rules = "add table inet wall; add chain inet wall in { type filter hook input priority 0; policy accept; }; "
    rules += "add rule inet wall in iifname eth0 tcp flags & (syn | ack) == syn drop"
    host.run("nft", rules)


def take_anybody(host: Host) -> None:
    host.run("nft", "delete table inet wall")


def checked(job: Job) -> dict[str, Any]:
    """The last that the engine was told."""
    told = [line["event"] for line in job.events() if line["event"]["type"] == "nodes_checked"]
    return dict(told[-1])


def test_a_node_that_nobody_reaches_is_replaced_before_the_first_attempt(job: Job) -> None:
    host = job.lab.host("node1")
    refuse_newcomers(host)
    try:
        job.start(3, ["head", "node1", "node2", "node3"], QUICK, spares=1)
        assert job.where(0, 3) == ["head", "node3", "node2"]
    finally:
        take_anybody(host)
    assert set(checked(job)["faulty"]) == {"node1"}
    said = job["head"].output
    assert "pre-flight: node1 is not reached by any of 3 others (head, node2, node3; head to node1: no answer" in said
    assert "--guard-preflight=off starts all the same" in said
    assert not job.incidents()
    record = json.loads((job.run_dir / "preflight-nodes.json").read_text())
    assert record["took_s"] < 4.0 and len(record["meetings"]) == 12
    assert set(job.finish().values()) == {0}


def test_without_a_spare_the_run_ends_and_says_why(job: Job) -> None:
    host = job.lab.host("node2")
    refuse_newcomers(host)
    try:
        job.start(3, ["head", "node1", "node2"], QUICK)
        codes = job.ended()
    finally:
        take_anybody(host)
    assert set(codes.values()) == {NOT_FIT}
    assert "the pre-flight leaves 2 of 3 nodes: without node2" in job["head"].output
    assert job.summary()["outcome"] == "interrupted"


def test_other_code_on_a_node_is_said_and_stops_nobody(job: Job) -> None:
    """A folder that is a node's own, with an older copy of the script beside the others'."""
    older = job.marks / "older.py"
    lab_host = job.lab.host("node1")
    script = job.folder / "helper.py"
    script.write_text("VERSION = 2\n")
    older.write_text("VERSION = 1\n")
    train = job.folder / "train.py"
    train.write_text((__import__("pathlib").Path(__file__).parent / "scripts" / "train.py").read_text())
    lab_host.run("mount", "--bind", str(older), str(script))
    try:
        job.script = train
        job.start(2, ["head", "node1"], QUICK)
        assert job.where(0, 2) == ["head", "node1"]
    finally:
        lab_host.run("umount", str(script))
    assert "pre-flight: node1 would run other code: helper.py differs" in job["head"].output
    assert set(job.finish().values()) == {0}


@pytest.mark.timeout(240)
def test_full_says_whose_link_is_slow(job: Job) -> None:
    host = job.lab.host("node2")
    job.lab.slow(host, 40_000_000)
    job.start(3, ["head", "node1", "node2"], FULL)
    assert job.where(0, 3) == ["head", "node1", "node2"]
    event = checked(job)
    assert not event.get("faulty")
    [line] = [line for line in event["said"] if "all-reduces" in line]
    assert line.startswith("node2 is slow in all-reduces with two others:")
    record = json.loads((job.run_dir / "preflight-nodes.json").read_text())
    assert len(record["all_reduces"]) == 4 and not any(one[3] for one in record["all_reduces"])
    assert set(job.finish().values()) == {0}
