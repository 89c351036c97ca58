"""Single calls of collectives: which can meet, and how they read."""

from __future__ import annotations

from math import prod

from guardrun.supervisor.engine.model.looks import Call, Frame
from guardrun.supervisor.engine.observation.frames import base_name

_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier"})
"""Operations that every member must call with as many elements. The others (all_to_all, scatter, …) may differ."""
_LISTS = frozenset({"all_gather", "reduce_scatter"})
"""Functions that take a list of tensors, which NCCL lets be uneven; their forms with one tensor may not be."""
_SUFFIXES = ("_object_list", "_object", "_coalesced", "_into_tensor", "_tensor", "_single", "_base")


def is_point_to_point(call: Call) -> bool:
    """Whether it concerns one peer only, so that the other members of its group need not call it."""
    return call.peer >= 0 or call.op in ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def family(op: str) -> str:
    """The operation as the backends know it: `all_gather` for all_gather_into_tensor and its other forms."""
    name = op.lstrip("_")
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return {"allreduce": "all_reduce", "allgather": "all_gather", "monitored_barrier": "barrier"}.get(name, name)


def may_be_uneven(call: Call, backend: str) -> bool:
    """Whether members may call it with as many elements as each likes, and torch's own comparison would raise."""
    return backend != "gloo" and (call.op in _LISTS or family(call.op) == "all_to_all")


def _signature(call: Call, backend: str) -> tuple[object, ...]:
    """Equal for two calls that can meet."""
    kind = family(call.op)
    if kind not in _SAME_SIZES or may_be_uneven(call, backend) or call.op.endswith(("object", "list")):
        return (kind,)
    if kind == "barrier" or not call.sizes:
        return (kind,)
    return (kind, sum(prod(size) for size in call.sizes), call.dtype)


def meet(one: Call, other: Call, backend: str = "") -> bool:
    """Whether two calls of the same number can meet; what is not told (sizes) is taken for equal."""
    a, b = _signature(one, backend), _signature(other, backend)
    return a[0] == b[0] and (len(a) != len(b) or a == b)


def call_text(call: Call) -> str:
    """`all_reduce of [512] float32 (train.py:60)`, as far as it is known."""
    sizes = " and ".join(str(size) for size in call.sizes[:2]) + (" …" if len(call.sizes) > 2 else "")
    what = f" of {sizes}{' ' + call.dtype if call.dtype else ''}" if sizes else ""
    return f"{call.op}{what}{place_text(call.frame)}"


def place_text(frame: Frame | None) -> str:
    """` (train.py:60)`, or nothing."""
    return f" ({base_name(frame.file)}:{frame.line})" if frame else ""


def group_text(name: str, desc: str = "") -> str:
    """A group as a person knows it."""
    if desc in ("default_pg", "") and name in ("0", "default_pg"):
        return "the default group"
    return f"group {desc if desc and desc != 'undefined' else name}"
