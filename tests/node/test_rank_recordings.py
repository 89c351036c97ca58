"""Ranks that are sampled from outside, as the loop goes on: who is, who can't be, and that nothing is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from guardrun.supervisor.collect.host.procfs import read_threads
from guardrun.supervisor.collect.ranks import flame_samples
from guardrun.supervisor.node import rank_recordings as module
from guardrun.supervisor.report.flame_graph import Sampled, build, training_thread
from tests.node.idle_node import Node
from tests.support.waiting import wait_until


def ask(node: Node, *ranks: int, seconds: float = 1.0, **arguments: Any) -> None:
    terms = {"rate": 20, **arguments}
    node.examinations.ask(ranks, "flame", terms, seconds, lambda *told: node.told.append(cast(Any, told)))


@pytest.mark.real("py-spy")
def test_both_are_sampled_and_answer_together(node: Node, process: subprocess.Popen[bytes]) -> None:
    ask(node, 4, 5)
    assert node.told == []
    answers, missing = node.wait_for_end()
    assert missing == {} and sorted(answers) == [4, 5]
    sampled = Sampled(**answers[4])
    assert (sampled.pid, sampled.rate, sampled.native, sampled.left_out) == (process.pid, 20, False, 0)
    thread = training_thread(build(sampled.folded()), sampled.pid)
    assert thread is not None and thread.count >= 2
    assert list(node.sockets.glob("flame-*")) == []


@pytest.mark.real("py-spy")
def test_one_at_a_time(node: Node) -> None:
    ask(node, 4, seconds=100)
    ask(node, 4)
    answers, missing = node.told.pop()
    assert answers == {} and re.fullmatch(r"it is being sampled already, for (100|9\d) s more", missing[4])
    node.examinations.close()
    node.turn()
    assert node.told == [] and list(node.sockets.glob("flame-*")) == []


@pytest.mark.real("py-spy")
def test_one_that_takes_too_long_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_S", -99.9)
    ask(node, 4, seconds=100)
    answers, missing = node.wait_for_end()
    assert answers == {} and "py-spy was not done" in missing[4]
    assert list(node.sockets.glob("flame-*")) == []


IN_THE_KERNEL = """
import os, sys, threading, time
# The parent of a vfork waits, as one that reads from a dead mount does (state D), until its child has opened a FIFO.
opens = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
threading.Thread(target=os.posix_spawn, args=("/bin/true", ["true"], {}), kwargs={"file_actions": opens}).start()
"""


@pytest.mark.real("py-spy")
def test_a_rank_that_stays_stopped_for_native_frames_is_let_go(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that stands in the kernel: py-spy has stopped all others, and waits for it."""
    monkeypatch.setattr(module, "HELD_S", 0.5)
    fifo = tmp_path_factory.mktemp("fifo") / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-S", "-c", IN_THE_KERNEL, str(fifo)]) as process:
        try:
            wait_until(lambda: "D" in states(process.pid), 20, "a thread in the kernel")
            node = Node(tmp_path, process.pid)
            try:
                ask(node, 4, seconds=100, native=True)
                node.wait(lambda: "t" in states(process.pid), "the others are stopped")
                answers, missing = node.wait_for_end()
                assert answers == {} and "stands in the kernel" in missing[4]
                wait_until(lambda: "t" not in states(process.pid), 20, "they go on")
            finally:
                node.examinations.close()
                node.close()
        finally:
            os.close(os.open(fifo, os.O_RDWR))
            process.kill()


def states(pid: int) -> str:
    return "".join(thread.state for thread in read_threads(pid))


@pytest.mark.parametrize("arguments", [{"rate": 0}, {"rate": 201}, {"rate": "x"}, {"native": 1}, {"rate": None}])
def test_terms_that_are_none(node: Node, arguments: dict[str, Any]) -> None:
    ask(node, 4, **arguments)
    assert node.told.pop() == ({}, {4: "a rank is sampled 1 to 200 times a second"})


def test_a_rank_that_is_not_there(node: Node, process: subprocess.Popen[bytes]) -> None:
    ask(node, 9)
    assert node.told.pop() == ({}, {9: "there is no such rank"})
    process.kill()
    process.wait()
    ask(node, 4)
    assert node.told.pop() == ({}, {4: "there is no such rank"})


def test_without_py_spy(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flame_samples, "find_pyspy", lambda: "")
    ask(node, 4)
    assert node.told.pop() == ({}, {4: "py-spy is not installed"})


def test_what_cannot_be_read_is_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in py-spy's place that ends well, and writes nothing."""
    monkeypatch.setattr(flame_samples, "find_pyspy", lambda: "/bin/true")
    ask(node, 4)
    answers, missing = node.wait_for_end()
    assert answers == {} and missing == {4: "py-spy left no samples: No such file or directory"}
    assert not any(Path(node.sockets).glob("flame-*"))
