"""What the flight recorder writes of each operation: its name, and the shapes of what goes in and comes out.

After torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

from tests.support.recorder_script import Item

_NAMES = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "barrier": "all_reduce_barrier",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_to_all_single": "all_to_all",
}
_UNEVEN = {"all_gather": ("_broadcast_oop", "ALLGATHER"), "reduce_scatter": ("_reduce_oop", "REDUCE_SCATTER")}
Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


def parts_of(item: Item) -> tuple[tuple[Item, ...], str]:
    """What is recorded of a call, and its closing entry's name; empty where it has none."""
    if item.parts:
        return item.parts, "coalesced"
    if item.name in _UNEVEN and len(item.sizes) > 1:
        part, closing = _UNEVEN[item.name]
        return tuple(Item(part, (size,), item.dtype) for size in item.sizes), f"{closing}_coalesced"
    return (item,), "coalesced" if item.name == "all_reduce_coalesced" else ""


def operation_of(item: Item, ranks: tuple[int, ...], rank: int) -> tuple[str, Shapes, Shapes]:
    """(name, what goes in, what comes out) of an entry. ranks: the group's."""
    name, sizes, members = item.name, item.sizes, len(ranks)
    first = sizes[0]
    if item.peer >= 0:
        me, peer = ranks.index(rank), ranks.index(item.peer)
        return f"{name} {me}{'->' if name == 'send' else '<-'}{peer}", sizes, sizes
    if name == "all_gather_into_tensor":
        return _NAMES[name], sizes, ((first[0] * members, *first[1:]),)
    if name == "reduce_scatter_tensor":
        return _NAMES[name], sizes, ((first[0] // members, *first[1:]),)
    if name == "all_gather":
        return name, sizes, ((members, *first),)
    if name == "reduce_scatter":
        return name, ((members, *first),), sizes
    return (name if item.backend == "gloo" else _NAMES.get(name, name)), sizes, sizes
