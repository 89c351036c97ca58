"""Single calls of collectives: which can meet, how they read, and who is wrong where ranks disagree on one."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import msgspec

from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook, RankLook
from guardrun.supervisor.engine.observation.frames import base_name

_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier"})
"""Operations that every member must call with as many elements. The others (all_to_all, scatter, …) may differ."""
_LISTS = frozenset({"all_gather", "reduce_scatter"})
"""Functions that take a list of tensors, which NCCL lets be uneven; their forms with one tensor may not be."""
_SUFFIXES = ("_object_list", "_object", "_coalesced", "_into_tensor", "_tensor", "_single", "_base")


UNNAMED = "coalesced"
"""A batch of which only the closing entry is known: of which operations, nobody has told."""

_HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc", ""})
"""Those whose calls the host carries out; "" is one that nobody knows. Any other is taken for a device's."""


def runs_on_device(backend: str) -> bool:
    """Whether calls of a backend (nccl, xccl, hccl) go on in a device's own time, after they have returned."""
    return backend not in _HOST_BACKENDS


def pending(told: GroupLook) -> Call | None:
    """The call of this group that a rank waits in: the first that is not completed."""
    return next((call for call in told.calls if call.state != "completed"), None)


def pending_batch(told: GroupLook) -> list[Call]:
    """The call that a rank waits in, with the other sends and receives of its batch; empty where it waits in none.

    One that is done says nothing of the others: a batch may send at once and receive much later.
    """
    first = pending(told)
    if first is None or not is_point_to_point(first):
        return [first] if first is not None else []
    return [
        call
        for call in told.calls
        if call.state != "completed" and is_point_to_point(call) and (call is first or call.at_s == first.at_s > 0)
    ]


def is_point_to_point(call: Call) -> bool:
    """Whether it concerns one peer only, so that the other members of its group need not call it."""
    return call.peer >= 0 or call.op in ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def direction(call: Call) -> str:
    """`send` or `recv`, of a point-to-point call; empty where its name tells neither."""
    name = call.op.lstrip("i")
    return next((way for way in ("send", "recv") if name.startswith(way)), "")


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


# Mismatch attribution -----------------------------------------------------------------------------------------------
# Who is wrong where ranks disagree on a collective: most are right, else whoever left the order kept so far.
#
# Training repeats itself: what follows on a call in one step follows on it in the next. A rank that went on otherwise,
# where the others have not, has called one too many or one too few. This convicts only on what is plain: the call
# before has been seen often, came from a line that is known (torch's own calls look alike), and was always followed by
# something else. A save or an evaluation, which comes seldom, is seen too seldom to convict, or is shared by all.


OFTEN = 3
"""Times that a call has been seen before what follows on it counts as its order."""

CANNOT_BE_TOLD = "which of them is wrong cannot be told"

Step = tuple[object, ...]


class CallVariant(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that agree on what a call of a group is."""

    ranks: list[int]
    call: Call
    group: str


def blamed(sides: list[CallVariant], looks: list[RankLook]) -> tuple[list[int], str]:
    """The ranks to blame, and how they were told (or why they were not)."""
    total = sum(len(side.ranks) for side in sides)
    if len(sides[0].ranks) * 2 > total:
        odd = sorted(rank for side in sides[1:] for rank in side.ranks)
        return odd, "the others agree"
    involved = {rank for side in sides for rank in side.ranks}
    left = {look.global_rank: departures(look) for look in looks if look.global_rank in involved}
    known = {rank: found for rank, found in left.items() if found is not None}
    shared = set.intersection(*known.values()) if len(known) > 1 else set()
    odd = sorted(rank for rank, found in known.items() if found - shared)
    if odd and len(odd) * 2 <= len(known):
        return odd, "until then, other calls followed there"
    return [], CANNOT_BE_TOLD


def departures(look: RankLook) -> set[tuple[Step, Step]] | None:
    """Where a rank left its own order: (a call, what followed on it for the first time); None without an order."""
    steps = _steps(look)
    followed: dict[Step, list[Step]] = {}
    found = set()
    has_order = False
    for before, after in pairwise(steps):
        seen = followed.setdefault(before, [])
        if before[-1] is not None and len(seen) >= OFTEN:
            has_order = True
            if after not in seen:
                found.add((before, after))
        seen.append(after)
    return found if has_order else None


def _steps(look: RankLook) -> list[Step]:
    """A rank's collectives, of all its groups, in the order in which it issued them, from where all are known."""
    calls: list[tuple[float, str, Call]] = []
    begin_s = 0.0
    for told in look.groups:
        collectives = [call for call in told.calls if not is_point_to_point(call)]
        calls += [(call.at_s, told.name, call) for call in collectives]
        if collectives and min(call.seq for call in collectives) > 1:
            begin_s = max(begin_s, min(call.at_s for call in collectives))
    calls = [item for item in calls if item[0] >= begin_s]
    return [_step(group, call) for _, group, call in sorted(calls, key=lambda item: (item[0], item[1], item[2].seq))]


def _step(group: str, call: Call) -> Step:
    where = (call.frame.file, call.frame.function, call.frame.line) if call.frame else None
    return (group, family(call.op), str(call.sizes), where)
