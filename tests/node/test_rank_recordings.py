"""Ranks that are sampled from outside, as the loop goes on: who is, who can't be, and that nothing is left."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from guardrun.supervisor.collect.ranks import flame_samples
from guardrun.supervisor.node import rank_recordings as module
from guardrun.supervisor.report.flame_graph import Sampled, build, training_thread
from tests.node.idle_node import Node


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
    assert thread is not None and thread.count >= 5
    assert list(node.sockets.glob("flame-*")) == []


@pytest.mark.real("py-spy")
def test_one_at_a_time(node: Node) -> None:
    ask(node, 4, seconds=100)
    ask(node, 4)
    answers, missing = node.told.pop()
    assert answers == {} and missing == {4: "it is being sampled already, for 100 s more"}
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
