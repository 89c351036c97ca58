"""Coordinator and deputies as processes that are killed, stopped and cut off: nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.processes import Start, journalled, sent, starting
from tests.support.netlab import Lab

TERM_S = 3.0
STOPPED_S = 5.0
"""Longer than a deputy waits for an answer."""
ROUNDED_S = 0.001
"""Of what a process writes of its clock."""


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as starter:
        yield starter


def test_a_coordinator_that_is_killed_again_and_again_loses_nothing(start: Start, tmp_path: Path) -> None:
    hub = start("hub_process", tmp_path, "127.0.0.1", TERM_S)
    port = hub.wait_for("listening").words[1]
    links = [start("link_process", tmp_path, "127.0.0.1", node, 0.002) for node in ("a", "b")]
    for _ in range(3):
        for node in ("a", "b"):
            hub.wait_for("Joined", node)
        time.sleep(0.3)  # somewhere among its reports
        hub.kill()
        hub = start("hub_process", tmp_path, "127.0.0.1", TERM_S)
        assert hub.wait_for("listening").words[1] == port
    for link, node in zip(links, ("a", "b"), strict=True):
        count = sent(link)
        assert journalled(tmp_path, node) == [str(number) for number in range(count)]
        assert count > 100


@pytest.mark.parametrize(("term_s", "asks_anew"), [(60.0, False), (1.0, True)])
def test_a_deputy_that_was_stopped_keeps_its_connection_while_its_lease_holds(
    start: Start, tmp_path: Path, term_s: float, asks_anew: bool
) -> None:
    """That nothing was heard while it did not run is nobody's silence; after its lease the others may have gone on."""
    hub = start("hub_process", tmp_path, "127.0.0.1", term_s)
    hub.wait_for("listening")
    link = start("link_process", tmp_path, "127.0.0.1", "a", 0.2)
    hub.wait_for("Joined", "a")
    link.wait_for("lease", "held")
    os.kill(link.process.pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    woken_s = time.monotonic()
    os.kill(link.process.pid, signal.SIGCONT)
    if asks_anew:
        link.wait_for("Lost", after_s=woken_s)
        hub.wait_for("Back", "a", after_s=woken_s)
    hub.say("a orders arrive")
    link.wait_for("Body", "orders", after_s=woken_s)
    assert bool(hub.find("Dropped", "a") or hub.find("Back", "a")) is asks_anew
    sent(link)


def test_a_stopped_coordinator_is_waited_for_and_orders_arrive_once(start: Start, tmp_path: Path) -> None:
    hub = start("hub_process", tmp_path, "127.0.0.1", TERM_S)
    hub.wait_for("listening")
    link = start("link_process", tmp_path, "127.0.0.1", "a", 0.01)
    hub.wait_for("Joined", "a")
    hub.say("a first")
    link.wait_for("Body", "first")
    os.kill(hub.process.pid, signal.SIGSTOP)
    link.wait_for("lease", "over")
    link.wait_for("Lost")
    os.kill(hub.process.pid, signal.SIGCONT)
    link.wait_for("lease", "held", after_s=link.said[-1].at_s)
    hub.say("a second")
    link.wait_for("Body", "second")
    count = sent(link)
    assert journalled(tmp_path, "a") == [str(number) for number in range(count)]
    assert [said.words[1] for said in link.said if said.words[0] == "Body"] == ["first", "second"]


def test_a_stopped_deputy_is_given_up_and_comes_back_whole(start: Start, tmp_path: Path) -> None:
    hub = start("hub_process", tmp_path, "127.0.0.1", 1.0)
    hub.wait_for("listening")
    link = start("link_process", tmp_path, "127.0.0.1", "a", 0.05)
    link.wait_for("lease", "held")
    os.kill(link.process.pid, signal.SIGSTOP)
    gone = hub.wait_for("gone", "a")
    os.kill(link.process.pid, signal.SIGCONT)
    hub.wait_for("there", "a", after_s=gone.at_s)
    count = sent(link)
    assert journalled(tmp_path, "a") == [str(number) for number in range(count)]


@pytest.mark.real("netns")
def test_links_that_are_cut(start: Start, tmp_path: Path) -> None:
    """Three nodes at once: cut off, deaf, and mute. Each knows before the head may think so; all come back whole."""
    with Lab.open(names=["head", "cut", "deaf", "mute"]) as lab:
        hub = start("hub_process", tmp_path, "*", TERM_S, host=lab.host("head"))
        hub.wait_for("listening")
        nodes = ["cut", "deaf", "mute"]
        links = {node: start("link_process", tmp_path, "head", node, 0.02, host=lab.host(node)) for node in nodes}
        for node in nodes:
            hub.wait_for("Joined", node)
            links[node].wait_for("lease", "held")
        began_s, cut_s = time.monotonic(), dict[str, float]()
        lab.cut(lab.host("cut"))
        cut_s["cut"] = time.monotonic()
        lab.cut_one_way(lab.host("deaf"), "in")
        cut_s["deaf"] = time.monotonic()
        lab.cut_one_way(lab.host("mute"), "out")
        cut_s["mute"] = time.monotonic()
        for node in nodes:  # when the lease ended, not when a process that had to wait for a core has noticed
            over_s = float(links[node].wait_for("lease", "over", after_s=began_s).words[2])
            gone = hub.wait_for("gone", node, after_s=began_s)
            assert over_s <= gone.at_s + ROUNDED_S
            assert over_s - cut_s[node] <= TERM_S + ROUNDED_S
        restored_s = time.monotonic()
        for node in nodes:
            links[node].wait_for("Lost")
            lab.restore(lab.host(node))
        for node in nodes:
            back = links[node].wait_for("lease", "held", after_s=restored_s, timeout_s=30)
            assert back.at_s - restored_s < 45
        for node in nodes:
            count = sent(links[node])
            assert journalled(tmp_path, node) == [str(number) for number in range(count)], node
            _, _, _, offset_s, _, error_s = links[node].said[-1].words
            assert float(offset_s) <= float(error_s) + 1e-4
