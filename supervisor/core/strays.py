"""Who is wrong where ranks disagree on a collective: most are right, else whoever left the order kept so far."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.core.calls import family, is_point_to_point
from guardrun.supervisor.core.looks import Call, RankLook


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that agree on what a call of a group is."""

    ranks: list[int]
    call: Call
    group: str


def blamed(sides: list[Side], looks: list[RankLook]) -> tuple[list[int], str]:
    """The ranks to blame, and how they were told (or why they were not)."""
    total = sum(len(side.ranks) for side in sides)
    if len(sides[0].ranks) * 2 > total:
        odd = sorted(rank for side in sides[1:] for rank in side.ranks)
        return odd, "the others agree"
    by_rank = {look.global_rank: look for look in looks}
    strayed = [side for side in sides if all(_has_strayed(by_rank[rank], side) for rank in side.ranks)]
    regular = [side for side in sides if any(_keeps_order(by_rank[rank], side) for rank in side.ranks)]
    if strayed and len(strayed) < len(sides) and regular:
        odd = sorted(rank for side in strayed for rank in side.ranks)
        return odd, "until then, other calls followed there"
    return [], "which of them is wrong cannot be told"


def _has_strayed(look: RankLook, side: Side) -> bool:
    seen = _followers(look, side)
    return bool(seen) and _step(side.group, side.call) not in seen


def _keeps_order(look: RankLook, side: Side) -> bool:
    return _step(side.group, side.call) in _followers(look, side)


def _step(group: str, call: Call) -> tuple[object, ...]:
    where = (call.frame.file, call.frame.function, call.frame.line) if call.frame else None
    return (group, family(call.op), where)


def _followers(look: RankLook, side: Side) -> set[tuple[object, ...]]:
    """What has followed, earlier in this rank's own history, on the call before the one that a side is about."""
    calls = sorted(
        ((call.at_s, told.name, call) for told in look.groups for call in told.calls), key=lambda item: item[0]
    )
    steps = [_step(group, call) for _, group, call in calls]
    at = next(
        (
            i
            for i, (_, group, call) in enumerate(calls)
            if group == side.group and call.seq == side.call.seq and not is_point_to_point(call)
        ),
        0,
    )
    if at < 1:
        return set()
    before = steps[at - 1]
    return {steps[i + 1] for i in range(at - 1) if steps[i] == before}
