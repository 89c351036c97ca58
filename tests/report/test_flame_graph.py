"""Samples as numbers, and as a drawing."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from typing import Any
from xml.etree import ElementTree
from zlib import compress

import pytest

from guardrun.supervisor.collect.ranks.flame_samples import pack
from guardrun.supervisor.report import flame_graph as module
from guardrun.supervisor.report.flame_graph import (
    Call,
    Sampled,
    as_data,
    build,
    draw,
    flame_svg,
    hottest,
    parse_call,
    training_thread,
    unpack,
)

LOOP = "<module> (/home/me/train.py:9);main (/home/me/train.py:5)"
FORWARD = f"{LOOP};forward (/v/lib/python3.11/site-packages/torch/nn/modules/linear.py:134)"
STACKS = Counter(
    {
        "thread (70): waiter;wait (/usr/lib/python3.11/threading.py:320)": 100,
        f"thread (7): MainThread;{LOOP}": 20,
        f"thread (7): MainThread;{FORWARD}": 60,
        f"thread (7): MainThread;{LOOP};walk (/home/me/tree.py:3);walk (/home/me/tree.py:3)": 15,
        f"thread (7): MainThread;{LOOP};gemm (/v/lib/libtorch_cpu.so)": 5,
    }
)


def sampled(stacks: Counter[str] = STACKS, packed: str = "") -> Sampled:
    terms: dict[str, Any] = {"pid": 7, "seconds": 2.0, "rate": 50, "native": False}
    return Sampled(**terms, samples=200, errors=0, left_out=0, stacks=packed or pack(stacks)[0])


def test_frames_are_split() -> None:
    assert parse_call("main (/home/me/train.py:5)") == Call("main", "/home/me/train.py", 5)
    assert parse_call("f.<locals>.<lambda> (<string>:3)") == Call("f.<locals>.<lambda>", "<string>", 3)
    assert parse_call("gemm (/v/libtorch_cpu.so)") == Call("gemm", "/v/libtorch_cpu.so", 0)
    assert parse_call("operator() (int) (x.cpp:4)") == Call("operator() (int)", "x.cpp", 4)
    assert parse_call("0x7f00") == Call("0x7f00", "", 0)
    kinds = [parse_call(text).kind for text in ("a (/home/me/a.py:1)", "a (/x/site-packages/a.py:1)", "a (b.so)", "a")]
    assert kinds == ["users", "library", "native", "native"]


def test_the_training_thread_is_told_from_the_others() -> None:
    def of(*threads: str, pid: int = 7) -> str:
        found = training_thread(build("\n".join(f"{name};f (a.py:1) {n + 1}" for n, name in enumerate(threads))), pid)
        return found.text if found else ""

    assert of("thread (7): trainer", "thread (8): MainThread") == "thread (7): trainer"
    assert of("thread (0x7f1): MainThread", "thread (0x7f2)") == "thread (0x7f1): MainThread", "before Python 3.11"
    assert of("thread (0x7f1)", "thread (0x7f2)") == "thread (0x7f2)", "the one that was seen most"
    assert of("thread (8): a", "x", "thread (9): MainThread") == "thread (9): MainThread", "in another pid namespace"
    assert of() == ""


def test_the_hottest_lines_with_who_called_them() -> None:
    thread = training_thread(build(sampled().folded()), 7)
    assert thread is not None and thread.count == 100
    forward, main, walk, gemm = hottest(thread, 9)
    assert (forward.call.function, forward.own, forward.total) == ("forward", 0.6, 0.6)
    assert forward.under == Call("main", "/home/me/train.py", 5)
    assert (main.call.function, main.own, main.total, main.under) == ("main", 0.2, 1.0, None)
    assert (walk.own, walk.total) == (0.15, 0.15), "a recursion is counted once"
    assert (gemm.call.kind, gemm.own) == ("native", 0.05)
    assert len(hottest(thread, 2)) == 2


def test_as_data() -> None:
    data = as_data(unpack(sampled()), limit=1)
    assert data["lines"] == [
        {
            "function": "forward",
            "file": "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py",
            "line": 134,
            "own": 0.6,
            "total": 0.6,
            "called_from": ["main", "/home/me/train.py", 5],
        }
    ]
    assert (data["pid"], data["rate"], data["left_out"]) == (7, 50, 0)
    assert as_data(unpack(sampled(Counter())))["lines"] == []


def test_a_drawing_has_every_box_within_the_one_that_called_it() -> None:
    whole = build(sampled().folded())
    boxes = draw(whole, training_thread(whole, 7), 50)
    assert [(box.label, box.x, box.width) for box in boxes if box.row == 0] == [("all threads", 0.0, 1.0)]
    assert [box.label for box in boxes if box.row == 1] == ["thread (7): MainThread", "thread (70): waiter"]
    for box in boxes[1:]:
        above = [one for one in boxes if one.row == box.row - 1 and one.x <= box.x + 1e-9]
        outer = max(above, key=lambda one: one.x)
        assert box.x + box.width <= outer.x + outer.width + 1e-9, box
    (forward,) = [box for box in boxes if box.label == "forward"]
    assert (forward.kind, forward.width) == ("library", 0.3)
    assert forward.title.endswith("linear.py:134): 1.2 s (30%)")
    assert any(box.title.endswith("main (/home/me/train.py:5): 2.0 s, 0.4 s of it itself (50%)") for box in boxes)


def test_too_many_boxes_are_cut_from_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DRAWN", 4)
    whole = build(sampled().folded())
    assert [box.row for box in draw(whole, None, 50)] == [0, 1, 1, 2]
    thin = build("a;b 1\na;c 9999")
    assert [box.label for box in draw(thin, None, 50)] == ["all threads", "a", "c"]


def test_the_drawing_is_an_svg_in_which_names_stay_text() -> None:
    bad = "</text><script>alert(1)</script>\x1b[2J\u202e]]>"
    text = flame_svg(unpack(sampled(Counter({f"thread (7): {bad};{bad} (/x/{bad}.py:1)": 4}))), f"Rank 0 {bad}")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}script")) == 1 and "\x1b" not in text and "\u202e" not in text
    assert [box.get("class") for box in root.iter(f"{space}svg")][1:] == ["box thread", "box thread", "box native"]
    assert "alert(1)" in (root.findtext(f"{space}title") or "")
    ElementTree.fromstring(flame_svg(unpack(sampled(Counter())), "nothing was seen"))


def test_an_answer_that_is_none() -> None:
    def refused(packed: str, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            sampled(packed=packed).folded()

    refused("%%%", "can't be unpacked")
    refused(b64encode(b"plain").decode(), "can't be unpacked")
    refused(b64encode(compress(b"a;b 1\n" * 50)[:-5]).decode(), "cut off")
    refused(b64encode(compress(b"\0" * (65 << 20))).decode(), "more than 64 MiB")


def test_lines_that_are_none_are_passed_over() -> None:
    assert build("\n 5\nx\na;b c\na -1\na;b 2").count == 2
