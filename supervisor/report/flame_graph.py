"""What a rank did over some time: its samples as numbers, and drawn as a flame graph (`guardctl flame`)."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import decompressobj
from zlib import error as NotPacked

import msgspec

from guardrun.supervisor.engine.observation.frames import is_users_file, short_path
from guardrun.supervisor.report.elements.html_page import render

MAX_UNPACKED_BYTES = 64 << 20
MAX_DRAWN = 20_000
"""Boxes of a graph."""
LEAST_SHARE = 0.0005
"""Of the whole width: what is narrower is not drawn."""
ROW = 18
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)")
_THREAD = re.compile(r"thread \((?P<tid>[^)]*)\)(?:: (?P<name>.*))?")


class Sampled(msgspec.Struct, frozen=True):
    """What a node tells of one rank (supervisor/node/rank_recordings.py)."""

    pid: int
    seconds: float
    rate: int
    native: bool
    samples: int
    """Of all threads; …"""
    errors: int
    """… how many could not be taken; …"""
    left_out: int
    """… and how many there was no room for."""
    stacks: str

    def folded(self) -> str:
        """Lines `thread;outermost;…;innermost COUNT`. Raises ValueError where that is no such text."""
        try:
            unpacking = decompressobj()
            text = unpacking.decompress(b64decode(self.stacks, validate=True), MAX_UNPACKED_BYTES)
        except (NotBase64, NotPacked) as error:
            raise ValueError(f"samples that can't be unpacked: {error}") from None
        if not unpacking.eof:
            raise ValueError(f"samples of more than {MAX_UNPACKED_BYTES >> 20} MiB, or cut off")
        return text.decode("utf-8", "replace")


class Call(NamedTuple):
    """A frame, as py-spy writes it."""

    function: str
    file: str
    """A library of C code for a native frame; empty where py-spy names none."""
    line: int
    """0: not known."""

    def place(self) -> str:
        """In a few words, without the function."""
        return f"{short_path(self.file)}:{self.line}" if self.line else short_path(self.file)

    @property
    def kind(self) -> str:
        """Whose it is: `users`, `library`, or `native`."""
        if not self.line:
            return "native"
        return "users" if is_users_file(self.file) else "library"


def parse_call(text: str) -> Call:
    """Split `function (file:line)`."""
    found = _FRAME.fullmatch(text)
    return Call(found["function"], found["file"], int(found["line"] or 0)) if found else Call(text, "", 0)


@dataclass
class Box:
    """A frame below the same others, or a thread: how often it was seen, and what it called."""

    text: str
    count: int = 0
    inner: dict[str, Box] = field(default_factory=dict)

    @property
    def own(self) -> int:
        """How often it was innermost."""
        return self.count - sum(box.count for box in self.inner.values())


def build(folded: str) -> Box:
    """All threads as one tree; what is no line of it is passed over."""
    whole = Box("all threads")
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        if not stack or not count.isdecimal():
            continue
        box = whole
        box.count += int(count)
        for part in stack.split(";"):
            box = box.inner.setdefault(part, Box(part))
            box.count += int(count)
    return whole


def training_thread(whole: Box, pid: int) -> Box | None:
    """The main thread: by its id, else by its name (Python before 3.11 shows no ids), else the one seen most."""
    boxes = list(whole.inner.values())
    told = {id(box): found for box in boxes if (found := _THREAD.fullmatch(box.text))}
    by_id = [box for box in boxes if id(box) in told and told[id(box)]["tid"] == str(pid)]
    by_name = [box for box in boxes if id(box) in told and told[id(box)]["name"] == "MainThread"]
    return next(iter([*by_id, *by_name, *sorted(boxes, key=lambda box: -box.count)]), None)


class Hot(NamedTuple):
    """A line of code, and how much of the samples it had."""

    call: Call
    own: float
    """Share in which it was innermost; …"""
    total: float
    """… in which it was anywhere."""
    under: Call | None
    """The user's line that it was called from, most often."""


def hottest(thread: Box, limit: int) -> list[Hot]:
    """Lines in which a thread was, the most frequent first."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    users: dict[str, Counter[str]] = {}
    for path, count, is_own in _walk(thread):
        text = path[-1]
        if text not in path[:-1]:  # of a recursion, once
            total[text] += count
        if is_own:
            own[text] += is_own
            caller = next((one for one in reversed(path) if parse_call(one).kind == "users"), "")
            if caller and caller != text:
                users.setdefault(text, Counter())[caller] += is_own
    whole = max(1, thread.count)
    return [
        Hot(
            parse_call(text),
            count / whole,
            total[text] / whole,
            parse_call(users[text].most_common(1)[0][0]) if text in users else None,
        )
        for text, count in own.most_common(limit)
    ]


def _walk(thread: Box) -> Iterator[tuple[list[str], int, int]]:
    """Every box below: the way to it, how often it was seen, and how often as the innermost."""
    stack = [([box.text], box) for box in thread.inner.values()]
    while stack:
        path, box = stack.pop()
        yield path, box.count, box.own
        stack += [([*path, one.text], one) for one in box.inner.values()]


class Flame(NamedTuple):
    """A rank's samples, unpacked and added up."""

    sampled: Sampled
    folded: str
    whole: Box
    """All threads."""
    training: Box | None
    """The thread that trains; None: none was seen."""


def unpack(sampled: Sampled) -> Flame:
    """Raises ValueError as Sampled.folded does."""
    folded = sampled.folded()
    whole = build(folded)
    return Flame(sampled, folded, whole, training_thread(whole, sampled.pid))


def as_data(flame: Flame, limit: int = 50) -> dict[str, Any]:
    """A rank's samples for programs: the hottest lines of its training thread."""
    sampled, thread = flame.sampled, flame.training
    lines = [
        {
            "function": hot.call.function,
            "file": hot.call.file,
            "line": hot.call.line,
            "own": round(hot.own, 4),
            "total": round(hot.total, 4),
            "called_from": [hot.under.function, hot.under.file, hot.under.line] if hot.under else None,
        }
        for hot in (hottest(thread, limit) if thread else [])
    ]
    told = {name: getattr(sampled, name) for name in ("pid", "seconds", "rate", "native", "samples", "errors")}
    return {**told, "left_out": sampled.left_out, "lines": lines}


# The drawing --------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A box on the drawing: `x` and `width` as shares of 1, `row` from the top."""

    x: float
    width: float
    row: int
    kind: str
    label: str
    title: str


def draw(whole: Box, first: Box | None, rate: int) -> list[Drawn]:
    """Boxes of all threads, `first` leftmost, the outermost calls on top; each box's title says it in full."""
    drawn: list[Drawn] = []
    scale = max(1, whole.count)
    # By rows, so that where there are too many the innermost are left out.
    row, boxes = 0, [(0, whole)]
    while boxes and len(drawn) < MAX_DRAWN:
        below: list[tuple[int, Box]] = []
        for begin, box in boxes:
            if box.count < LEAST_SHARE * scale:
                continue
            kind, label, title = _words(box, row, rate, scale)
            drawn.append(Drawn(begin / scale, box.count / scale, row, kind, label, title))
            end = begin
            for one in sorted(box.inner.values(), key=lambda one: (one is not first, -one.count)):
                below.append((end, one))
                end += one.count
        row, boxes = row + 1, below
    return drawn[:MAX_DRAWN]


def _words(box: Box, row: int, rate: int, scale: int) -> tuple[str, str, str]:
    """A box's kind, label and title."""
    times = f"{box.count / rate:.1f} s" + (f", {box.own / rate:.1f} s of it itself" if box.inner and box.own else "")
    if row < 2:  # what is no call
        return "thread", box.text, f"{box.text}: {times}"
    call = parse_call(box.text)
    place = f" ({call.file}:{call.line})" if call.line else f" ({call.file})" if call.file else ""
    return call.kind, call.function, f"{call.function}{place}: {times} ({box.count / scale:.0%})"


def flame_svg(flame: Flame, title: str) -> str:
    """The drawing, an SVG by itself: the training thread, and by clicks what is below a box, or all threads."""
    whole, first = flame.whole, flame.training
    drawn = draw(whole, first, flame.sampled.rate)
    rows = 1 + max((one.row for one in drawn), default=0)
    shown = first.count / whole.count if first else 1.0
    return render("flame.svg", title=title, boxes=drawn, first=shown, row=ROW, height=rows * ROW)
