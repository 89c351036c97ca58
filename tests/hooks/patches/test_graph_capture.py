"""While a graph is captured the board says so; a capture waits for who is just asking the device, and not for long."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guardrun.hooks.patches import graph_capture
from guardrun.hooks.rank.rank import Rank, private_words
from guardrun.hooks.rank.save_gate import SaveGate
from guardrun.hooks.wire.board import Field
from tests.hooks.bed import Bed
from tests.support.waiting import wait_until


class Captured(Exception):
    """What a capture raises that came to nothing."""


class Graphs:
    """torch.cuda.graphs, and the board of a rank that uses it."""

    def __init__(self) -> None:
        self.words = words = private_words()
        self.begun: list[int] = []
        graphs = self

        class CUDAGraph:
            def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
                if pool == "bad":
                    raise Captured
                graphs.begun.append(words[Field.CAPTURES])

            def capture_end(self) -> None:
                if graphs.begun[-1] > 1:
                    raise Captured

        self.graph = CUDAGraph
        self.rank: Any = SimpleNamespace(words=words, in_time=None)
        graph_capture.install(SimpleNamespace(CUDAGraph=CUDAGraph), self.rank)

    @property
    def count(self) -> int:
        count: int = self.words[Field.CAPTURES]
        return count


def test_the_board_says_how_many_are_under_way() -> None:
    graphs = Graphs()
    one, other = graphs.graph(), graphs.graph()
    one.capture_begin(capture_error_mode="thread_local")
    assert graphs.count == 1
    other.capture_begin()
    assert (graphs.count, graphs.begun) == (2, [1, 2])
    with pytest.raises(Captured):
        other.capture_end()
    assert graphs.count == 1
    with pytest.raises(Captured):
        other.capture_begin("bad")
    assert graphs.count == 1
    graphs.begun.append(0)
    one.capture_end()
    assert graphs.count == 0
    one.capture_end()
    assert graphs.count == 0, "one that began before the hooks were there"


def test_a_capture_waits_until_nobody_saves_what_lies_on_the_device() -> None:
    graphs = Graphs()
    graphs.rank.in_time = gate = SaveGate(cast(Rank, graphs.rank))
    gate.is_shut, gate.until_ns = True, time.monotonic_ns() + 3600 * 10**9
    thread = threading.Thread(target=graphs.graph().capture_begin)
    thread.start()
    wait_until(lambda: graphs.count == 1, 5, "a capture that would begin")
    thread.join(0.05)  # else it would have begun by now
    assert graphs.begun == []
    gate.reopen()
    thread.join()
    assert graphs.begun == [1]
    gate.is_shut, gate.until_ns = True, time.monotonic_ns()
    graphs.graph().capture_begin()
    assert graphs.begun == [1, 2], "nobody waits for that save any more"


def test_a_capture_waits_until_nobody_asks_the_device() -> None:
    graphs = Graphs()
    graphs.words[Field.READING_NS] = time.monotonic_ns() + 3600 * 10**9
    thread = threading.Thread(target=graphs.graph().capture_begin)
    thread.start()
    wait_until(lambda: graphs.count == 1, 5, "a capture that would begin")
    assert graphs.begun == []
    graphs.words[Field.READING_NS] = 0
    thread.join()
    assert graphs.begun == [1]


def test_it_does_not_wait_for_who_has_died_in_it() -> None:
    graphs = Graphs()
    graphs.words[Field.READING_NS] = time.monotonic_ns() - graph_capture.READING_NS
    graphs.graph().capture_begin()
    assert graphs.begun == [1]


def test_torch_s_graphs_are_hooked(bed: Bed) -> None:
    code = """
import torch
for name in ("capture_begin", "capture_end"):
    print(getattr(torch.cuda.CUDAGraph, name).__wrapped__.__module__)
"""
    assert bed.run(code).stdout == "torch.cuda.graphs\n" * 2
