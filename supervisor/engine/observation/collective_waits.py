"""Who waits for whom, from what every rank tells of its process groups.

Pure. The rules:
- A rank waits in the first call of a group that it has issued and that is not completed.
- There it waits for every member that has not issued that call yet. Those may wait in another group for somebody else:
  whoever is at the end of such chains, and waits for nobody, is a root.
- Members whose call of the same number is another operation, or of another size, will never meet: a mismatch. So will
  ranks that wait for each other in a circle, through groups that they enter in different orders.
- Who of them is wrong: most are right; where that does not tell, whoever left the order that it kept until then.

What a rank has not told is not held against it. The numbers per group and rank are Aegis' counters, the graph is
Mycroft's (papers of 2025; both compare what was issued).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook, RankLook
from guardrun.supervisor.engine.observation.collective_calls import (
    CANNOT_BE_TOLD,
    UNNAMED,
    CallVariant,
    blamed,
    direction,
    is_point_to_point,
    may_be_uneven,
    meet,
    pending,
    pending_batch,
    runs_on_device,
)
from guardrun.supervisor.engine.observation.device_counts import is_still, pending_groups
from guardrun.supervisor.engine.observation.frames import active_stack, is_users, user_frame

CIRCLE = "circle"
SIDES = "sides"
HOOKS = "hooks"
"""GroupLook's source where there is no recorder."""
HOOKED = (HOOKS, "both")
"""Its sources where the hooks tell of the group."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that wait for others in one call of one group."""

    ranks: list[int]
    waits_for: list[int]
    """Members that have not issued it; empty where all have."""
    unseen: list[int] = []
    """Members of which nothing is known."""
    elsewhere: list[int] = []
    """Members that have counted as many calls, and do not tell of this one: theirs is one of torch's own (DDP's)."""
    group: str
    desc: str = ""
    seq: int
    op: str
    frame: Frame | None = None
    is_on_device: bool = False
    """The call goes on in a device's own time, whatever the host does."""
    size: int = 0
    """How many members the group has."""
    not_started: list[int] = []
    """Ranks whose device has not begun with it, where devices of others tell that they have."""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that can never meet."""

    form: str
    """SIDES: one call of one group, called differently. CIRCLE: ranks that wait for each other, through groups."""
    sides: list[CallVariant]
    """The largest first; for a circle, in the order in which they wait for each other."""
    culprits: list[int]
    """Empty where it cannot be told."""
    why: str
    """How the culprits were told, or why they were not."""
    is_pending: bool = True
    """Ranks of two sides at least are still in these calls: nothing can end that."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks' accounts say together."""

    waits: list[Wait] = []
    roots: list[int] = []
    """Those that others wait for, directly or through chains, and that wait for nobody in any collective."""
    mismatch: Mismatch | None = None
    is_all_in: bool = False
    """Everybody who waits has company: every member of its group that is known has issued the same call."""
    untold: list[int] = []
    """Ranks that count as waiting because others' devices are in a call that they have counted, too: their own
    recorder does not tell of it, or was not read."""
    hooked: list[int] = []
    """Ranks whose hooks tell of all groups that they have made; a recorder tells of those that were called in."""
    is_uneven: bool = False
    """Some of the calls may have other sizes on each rank, which torch's own comparison takes for a mistake."""


class _Group:
    """One process group as its members tell it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.desc = ""
        self.backend = ""
        self.members: set[int] = set()
        self.issued: dict[int, int] = {}
        self.calls: dict[int, dict[int, Call]] = {}
        """rank → number → call; without point-to-point."""
        self.unread: set[int] = set()
        """Ranks of which the hooks alone have told."""
        self.exchanged: dict[int, Counter[tuple[str, int]]] = {}
        """rank → how many it has (sent or received, with which rank)."""

    def is_in(self, rank: int, seq: int) -> bool:
        """Whether a rank has issued this call, and it is not completed."""
        call = self.calls[rank].get(seq)
        return call is not None and call.state != "completed"

    def is_untold(self, rank: int, seq: int) -> bool:
        """Whether a rank has counted so many calls, and what its device makes of this one is not known."""
        newest = 0 if rank in self.unread else max(self.calls[rank], default=0)
        return newest < seq <= self.issued[rank]

    def not_started(self, seq: int) -> list[int]:
        """Members whose device has not begun with a call, where some tell that theirs has."""
        states = {rank: calls[seq].state for rank, calls in self.calls.items() if seq in calls}
        return (
            sorted(rank for rank, state in states.items() if state == "issued") if "started" in states.values() else []
        )

    def is_uneven(self) -> bool:
        return any(may_be_uneven(call, self.backend) for calls in self.calls.values() for call in calls.values())


def match(looks: Iterable[RankLook]) -> Match:
    """Put together what every rank tells. Where nobody tells anything, an empty answer."""
    looks = list(looks)
    groups = _groups(looks)
    waits, untold = _waits(looks, groups)
    mismatch = _by_sides(groups, looks) or _by_circle(waits, looks)
    return Match(
        waits=_merged(waits),
        roots=_roots(waits),
        mismatch=mismatch,
        is_all_in=bool(waits) and not any(wait.waits_for or wait.unseen for wait in waits.values()),
        untold=untold,
        hooked=[look.global_rank for look in looks if any(told.source in HOOKED for told in look.groups)],
        is_uneven=any(group.is_uneven() for group in groups.values()),
    )


def _groups(looks: list[RankLook]) -> dict[Key, _Group]:
    groups: dict[Key, _Group] = {}
    for look in looks:
        for told in look.groups:
            group = groups.setdefault(key_of(told), _Group(told.name))
            group.desc = group.desc or told.desc
            group.backend = group.backend or told.backend
            group.members.update(told.ranks, [look.global_rank])
            group.issued[look.global_rank] = told.issued
            if told.source == HOOKS:
                group.unread.add(look.global_rank)
            group.calls[look.global_rank] = {call.seq: call for call in told.calls if not is_point_to_point(call)}
            exchanged = group.exchanged[look.global_rank] = Counter()
            for call in told.calls:
                if is_point_to_point(call):
                    way = direction(call), call.peer
                    exchanged[way] = max(exchanged[way], call.seq)
    return groups


Key = tuple[str, str, tuple[int, ...]]


def key_of(told: GroupLook) -> Key:
    """What tells a group from others: names are torch's, and may be equal for groups that have no member in common."""
    return told.name, told.part, tuple(told.ranks)


def waits_on_device(before: RankLook, after: RankLook) -> str:
    """The operation that a rank's device has not completed between two looks; empty where none, or no device does it.

    A script goes on after it has issued a collective to a device: where it waits in the end (`.item()`, a
    synchronisation) says nothing of torch.distributed.
    """
    old = {(key_of(told), call.op, call.seq) for told in before.groups if (call := pending(told))}
    # A look that found other numbers than the one before it has no calls: equal ones say that they were the same.
    counts = after.device_counts
    was_same = bool(counts) and bool(pending_groups(counts)) and is_still(before.device_counts, counts)
    for told in after.groups:
        call = pending(told)
        if not runs_on_device(told.backend) or call is None:
            continue
        if was_same or (key_of(told), call.op, call.seq) in old:
            return call.op
    return ""


# Waits -------------------------------------------------------------------------------------------------


def _waits(looks: list[RankLook], groups: dict[Key, _Group]) -> tuple[dict[int, Wait], list[int]]:
    """Per rank, the wait that holds it up: the earliest of its pending calls that lacks somebody, else the earliest.

    And the ranks that are in one for all that they have counted: nothing tells what their own device makes of it.
    """
    waits = {}
    in_calls: dict[tuple[Key, int], Wait] = {}
    for look in looks:
        mine = []
        for told in look.groups:
            calls = pending_batch(told)
            if calls:
                key = key_of(told)
                wait = _wait(look, calls, groups[key])
                mine.append((calls[0].at_s, wait))
                if wait.is_on_device and told.source != HOOKS and not is_point_to_point(calls[0]):
                    in_calls.setdefault((key, wait.seq), wait)
        if mine:
            lacking = [pair for pair in mine if pair[1].waits_for]
            waits[look.global_rank] = min(lacking or mine, key=lambda pair: pair[0])[1]
    untold: dict[int, Wait] = {}
    for (key, seq), wait in sorted(in_calls.items(), key=lambda item: not item[1].waits_for):
        group = groups[key]
        for rank in group.calls.keys() - waits.keys() - untold.keys():
            if group.is_untold(rank, seq):
                untold[rank] = msgspec.structs.replace(wait, ranks=[rank])
    return waits | untold, sorted(untold)


def _wait(look: RankLook, calls: list[Call], group: _Group) -> Wait:
    """The wait in a call, or in a batch of sends and receives."""
    call = calls[0]
    elsewhere: list[int] = []
    if is_point_to_point(call):
        sides = [(each, *_peer(look, each, group)) for each in calls]
        waits_for = sorted({rank for _, lacking, _ in sides for rank in lacking})
        unseen = sorted({rank for *_, unknown in sides for rank in unknown})
        call = next((each for each, lacking, _ in sides if lacking), call)
    else:
        elsewhere = sorted(
            rank
            for rank, known in group.calls.items()
            if group.issued[rank] >= call.seq and call.seq not in known and any(seq < call.seq for seq in known)
        )
        waits_for = sorted(m for m in group.members if group.issued.get(m, call.seq) < call.seq)
        unseen = sorted(group.members - group.issued.keys())
    return Wait(
        ranks=[look.global_rank],
        waits_for=waits_for,
        unseen=unseen,
        elsewhere=elsewhere,
        group=group.name,
        desc=group.desc,
        seq=call.seq,
        op=call.op,
        frame=call.frame or _place(look),
        is_on_device=runs_on_device(group.backend),
        size=len(group.members),
        not_started=[] if is_point_to_point(call) else group.not_started(call.seq),
    )


def _peer(look: RankLook, call: Call, group: _Group) -> tuple[list[int], list[int]]:
    """(who is waited for, who is not seen) in a send or a receive: nobody where the other side has issued its own."""
    if call.peer in (-1, look.global_rank):
        return [], []
    known = group.exchanged.get(call.peer)
    if known is None:
        return [call.peer], []
    other_way = ("recv" if direction(call) == "send" else "send"), look.global_rank
    if not known[other_way] and call.seq > 1:
        return [], [call.peer]  # It must have issued those before this one; what it tells does not go back so far.
    return ([], []) if known[other_way] >= call.seq else ([call.peer], [])


def _place(look: RankLook) -> Frame | None:
    """Where a rank is in the user's code: what stands for the line of a call that torch itself has issued (DDP's)."""
    frame = user_frame(active_stack(look.process.threads))
    return frame if frame is not None and is_users(frame) else None


def _merged(waits: dict[int, Wait]) -> list[Wait]:
    """Equal waits of several ranks as one; the largest first."""
    merged: dict[tuple[object, ...], list[Wait]] = defaultdict(list)
    for wait in waits.values():
        where = (wait.frame.file, wait.frame.function) if wait.frame else None
        merged[(wait.group, wait.seq, wait.op, tuple(wait.waits_for), tuple(wait.unseen), where)].append(wait)
    together = [
        msgspec.structs.replace(same[0], ranks=sorted(rank for wait in same for rank in wait.ranks))
        for same in merged.values()
    ]
    return sorted(together, key=lambda wait: (-len(wait.ranks), wait.ranks))


def _roots(waits: dict[int, Wait]) -> list[int]:
    """Who is waited for, and waits for nobody: neither for one of whom something is known, nor for another."""
    waited_for = {rank for wait in waits.values() for rank in wait.waits_for}
    held_up = {rank for rank, wait in waits.items() if wait.waits_for or wait.unseen}
    return sorted(waited_for - held_up)


# Mismatches --------------------------------------------------------------------------------------------


def _by_sides(groups: dict[Key, _Group], looks: list[RankLook]) -> Mismatch | None:
    """The earliest call of any group on which its members disagree, among those that somebody is still in.

    What a disagreement left behind it completed for one of them, or the other: it counts as long as the group has
    not got past it together.
    """
    for group in groups.values():
        if len(group.calls) < 2:
            continue
        stuck = [call.seq for calls in group.calls.values() for call in calls.values() if call.state != "completed"]
        if not stuck:
            continue
        numbers = Counter(seq for calls in group.calls.values() for seq in calls if seq <= max(stuck))
        for seq in sorted(seq for seq, count in numbers.items() if count > 1):
            sides = _sides(group, seq)
            if len(sides) > 1 and any(_is_held(group, side, seq) for side in sides):
                culprits, why = blamed(sides, looks)
                in_it = [side for side in sides if any(group.is_in(rank, seq) for rank in side.ranks)]
                placed = _placed(sides, looks)
                return Mismatch(form=SIDES, sides=placed, culprits=culprits, why=why, is_pending=len(in_it) > 1)
    return None


def _placed(sides: list[CallVariant], looks: list[RankLook]) -> list[CallVariant]:
    """The same, with a place for each call that is under way and tells none itself."""
    by_rank = {look.global_rank: look for look in looks}
    return [
        msgspec.structs.replace(side, call=msgspec.structs.replace(side.call, frame=_place(by_rank[side.ranks[0]])))
        if side.call.frame is None and side.call.state != "completed"
        else side
        for side in sides
    ]


def _is_held(group: _Group, side: CallVariant, seq: int) -> bool:
    """Whether somebody of this side has not got past the call, or past anything of the group since."""
    return any(
        call.state != "completed" for rank in side.ranks for number, call in group.calls[rank].items() if number >= seq
    )


def _sides(group: _Group, seq: int) -> list[CallVariant]:
    sides: list[tuple[Call, list[int]]] = []
    told = {rank: group.calls[rank][seq] for rank in sorted(group.calls) if seq in group.calls[rank]}
    named = {rank: call for rank, call in told.items() if call.op != UNNAMED}
    for rank, call in (named or told).items():
        for known, ranks in sides:
            if meet(known, call, group.backend):
                ranks.append(rank)
                break
        else:
            sides.append((call, [rank]))
    sides.sort(key=lambda side: -len(side[1]))
    return [CallVariant(ranks=ranks, call=call, group=group.name) for call, ranks in sides]


def _by_circle(waits: dict[int, Wait], looks: list[RankLook]) -> Mismatch | None:
    """Ranks that wait for each other in a circle: nobody at its end could be the root."""
    for start in sorted(waits):
        path: list[int] = []
        rank = start
        while rank not in path:
            path.append(rank)
            following = [r for r in waits[rank].waits_for if r in waits and waits[r].waits_for]
            if not following:
                break
            rank = following[0]
        else:
            circle = path[path.index(rank) :]
            sides = [CallVariant(ranks=[r], call=_call_of(waits[r]), group=waits[r].group) for r in circle]
            # Whoever waits in its device may still go on to what the others wait for: a receive is often issued early.
            is_certain = not any(waits[r].is_on_device for r in circle)
            is_early = not is_certain and any(is_point_to_point(side.call) for side in sides)
            culprits, why = ([], CANNOT_BE_TOLD) if is_early else blamed(sides, looks)
            return Mismatch(form=CIRCLE, sides=sides, culprits=culprits, why=why, is_pending=is_certain)
    return None


def _call_of(wait: Wait) -> Call:
    return Call(wait.seq, wait.op, frame=wait.frame)
