"""What the ranks of a job have issued, in a notation that a test can be read in; recorder_dumps.py writes their dumps.

    all: all_reduce[64]*3 barrier           each rank: three all_reduces of 64 floats, then a barrier; all are done
    0-2: all_reduce[64]?                    three ranks have issued a fourth, which is not done
    2,3/tp: all_gather_into_tensor[8]       in the group tp; `all` is its members
    1: {send>2 recv<0[4x8]}?                a batch, which is not done; ranks are global
    ---                                     what follows came after the first of two looks

An item is `NAME[SIZES]:DTYPE*COUNT` with marks behind it, in this order:

    @    the host has not come back from the call
    &    asynchronous: a handle was returned
    ?    scheduled · > started (told with timing) · ! timed out: retired, and not done · . done, as without a mark
    ?.   scheduled at the first look, done at the second
    +    not recorded yet: the host makes the communicator

and before it `~` where torch itself issues it in C++, unseen by the hooks, and `gloo.` where a group of two backends
carries it out by gloo. Sizes are shapes (`4x8`), with a comma between tensors; an all_gather or a reduce_scatter of
several is uneven.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

FIRST, SECOND = 0, 1
"""The looks."""
WORLD = "world"

_ITEM = re.compile(
    r"(?P<own>~)?(?P<gloo>gloo\.)?(?P<name>[a-z_]+)(?P<way>[<>]\d+)?(\[(?P<sizes>[\dx,]*)\])?"
    r"(:(?P<dtype>\w+))?(\*(?P<count>\d+))?(?P<marks>@?&?)(?P<state>\?\.|[?>!+.]?)"
)
_BATCH = re.compile(r"\{(?P<inside>[^}]*)\}(\*(?P<count>\d+))?(?P<marks>@?&?)(?P<state>\?\.|[?>!+.]?)")
_TOKEN = re.compile(r"\{[^}]*\}\S*|\S+")


@dataclass(frozen=True)
class Item:
    """One call, or a batch of them."""

    name: str
    sizes: tuple[tuple[int, ...], ...] = ((16,),)
    dtype: str = "Float"
    peer: int = -1
    """Global."""
    backend: str = "nccl"
    state: str = ""
    is_torchs: bool = False
    is_open: bool = False
    is_async: bool = False
    parts: tuple[Item, ...] = ()

    @property
    def is_p2p(self) -> bool:
        return self.peer >= 0 or any(part.peer >= 0 for part in self.parts)

    def state_at(self, look: int) -> str:
        """One of `?`, `>`, `!`, `+`, and empty: done."""
        return ("?" if look == FIRST else "") if self.state == "?." else self.state.strip(".")


@dataclass(frozen=True)
class Line:
    """Items that some ranks issue one after the other."""

    number: int
    ranks: tuple[int, ...] | None
    """None: the group's members."""
    group: str
    items: tuple[Item, ...]
    look: int
    """Before which it was issued."""


def parse_script(text: str) -> list[Line]:
    """Raises ValueError for what is not in the notation."""
    lines: list[Line] = []
    look = FIRST
    for number, line in enumerate(map(str.strip, text.strip().splitlines()), 1):
        if line == "---":
            look = SECOND
        elif line:
            who, _, what = line.partition(": ")
            ranks, _, group = who.partition("/")
            items = tuple(item for token in _TOKEN.findall(what) for item in _items(token))
            members = None if ranks == "all" else tuple(parse_ranks(ranks))
            lines.append(Line(number, members, group or WORLD, items, look))
    return lines


def parse_ranks(text: str) -> list[int]:
    """`0-2,5`. Raises ValueError."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def _items(token: str) -> list[Item]:
    if batch := _BATCH.fullmatch(token):
        parts = tuple(part for each in batch["inside"].split() for part in _items(each))
        item = Item("coalesced", parts=parts, state=batch["state"])
        return [_marked(item, batch["marks"])] * int(batch["count"] or 1)
    told = _ITEM.fullmatch(token)
    if told is None or (told["name"] in ("send", "recv")) != bool(told["way"]):
        raise ValueError(f"{token!r} is not in the notation")
    item = Item(
        told["name"],
        sizes=_sizes(told["sizes"])
        if told["sizes"] is not None
        else ((1,),)
        if told["name"] == "barrier"
        else ((16,),),
        dtype=told["dtype"] or "Float",
        peer=int(told["way"][1:]) if told["way"] else -1,
        backend="gloo" if told["gloo"] else "nccl",
        state=told["state"],
        is_torchs=bool(told["own"]),
    )
    return [_marked(item, told["marks"])] * int(told["count"] or 1)


def _marked(item: Item, marks: str) -> Item:
    return replace(item, is_open="@" in marks, is_async="&" in marks)


def _sizes(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(dim) for dim in shape.split("x")) for shape in text.split(","))
