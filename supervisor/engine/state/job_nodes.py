"""The nodes of a job, and which of them are to train: data, which engine/membership/membership.py changes."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import msgspec

from guardrun.supervisor.engine.model.events import FleetPlan
from guardrun.supervisor.engine.state.failure_attribution import Strike
from guardrun.supervisor.engine.state.network_switches import by_switch, nearest

MAX_NAMED = 8
"""Of thousands of nodes."""
FIRST_SPARE = 1_000_000
"""Orders of nodes that no scheduler has numbered come after those that one has."""


class Standing(str, Enum):
    """How a node stands with the job."""

    READY = "ready"
    """It is there, and heard."""
    SILENT = "silent"
    """Nothing has been heard of it for some seconds."""
    LOST = "lost"
    """Given up; it may come back."""
    OUT = "out"
    """To blame for an incident: it takes no part any more."""
    LEFT = "left"
    """Its guardrun has ended."""


class Member(msgspec.Struct, kw_only=True):
    """One node."""

    node: str
    order: int
    """Who comes first: the scheduler's order, else that of joining."""
    ranks: int
    standing: Standing = Standing.READY
    since_s: float = 0.0
    """When it came to stand so; of a silent one, when it was last heard."""
    is_dropped: bool = False
    """Its connection was closed."""
    dropped_s: float = 0.0
    """When, as the head saw it: a node that was frozen closes it when it wakes up, and joins again."""
    is_placed: bool = False
    """It is one of the attempt's."""
    why: str = ""
    drained: str = ""
    """Why, and by whom, the scheduler is kept from starting anything new there: others are taken first."""
    incident: str = ""
    """For which it was given up, and is to be kept out of what comes."""
    strikes: list[Strike] = []
    """Failures on it for which no cause was found."""
    returned_s: list[float] = []
    """When it was back, before the next attempt, after it had been given up."""
    is_whole: bool = False
    """It came back with its ranks: it was frozen or cut off, and is neither dead nor new."""
    contact_lost: int = 0
    """How often it was silent for long while the job went on."""
    is_missed: bool = False
    """It is so now, and that has been said."""
    switches: list[str] = []
    """Above it, from the top down; empty: not known, or not to go by."""
    role: str = ""
    is_unfit: bool = False
    """It is out because of what the pre-flight found: a new guardrun looks again."""
    refused: int = 0
    """Its guardrun's exit status, where that was refused before it joined, and nobody starts another."""
    is_cut: bool = False
    """It is not heard because the head hears nobody: nothing is held against it."""


class Fleet(msgspec.Struct, kw_only=True):
    """All nodes that have joined, and those that train."""

    plan: FleetPlan
    members: dict[str, Member] = {}
    placed: list[str] = []
    """Nodes of the current (or next) attempt, in the order of group ranks."""
    quiet: list[str] = []
    """Those that stand as SILENT: they are asked for with every event, and there may be thousands of nodes."""
    since_s: float = 0.0
    """Since when nodes have been waited for, where they are."""
    say_s: float = 0.0
    """When it is said (again) for whom the run waits."""
    longest_s: float = 0.0
    """The longest silence of a node that ended by itself: this network's, measured."""
    requeue_s: float = 0.0
    """When the scheduler was asked to start the job anew, with other nodes; 0: it was not."""
    check: int = 0
    """The last that was asked for."""
    checks_left: int = 0
    """Before the next attempt starts whatever they would say."""
    checked: list[str] = []
    """Nodes that have been tried together since one was left out."""
    doubts: int = 0
    """Failures for which no cause was found, each on one node."""
    swapped: list[int] = []
    """Group ranks whose node has been swapped for failures without a cause: the next such is not its node's fault."""
    lacked: list[int] = []
    """Group ranks whose node has been swapped because an import failed there alone."""

    @property
    def silent(self) -> list[Member]:
        """Of the attempt's nodes, those of which nothing is heard."""
        return [m for node in self.quiet if (m := self.members[node]).is_placed]

    @property
    def gone(self) -> list[str]:
        """Nodes that the run would rather not get again, by name."""
        gone = [m for m in self.members.values() if m.standing in (Standing.OUT, Standing.LOST)]
        return sorted(m.node for m in gone if m.standing is Standing.OUT or not m.is_cut)

    def order_of(self, slot: int) -> int:
        """The order of a node that is new. slot: as NodeJoined has it."""
        return slot if slot >= 0 else FIRST_SPARE + len(self.members)

    def stand(self, member: Member, standing: Standing) -> None:
        """Have a member stand otherwise."""
        if (member.node in self.quiet) != (standing is Standing.SILENT):
            others = [node for node in self.quiet if node != member.node]
            self.quiet = [*others, member.node] if standing is Standing.SILENT else others
        member.standing = standing

    def put(self, placed: list[str]) -> None:
        """Have these nodes be the attempt's."""
        for node in self.placed:
            self.members[node].is_placed = False
        for node in placed:
            self.members[node].is_placed = True
        self.placed = placed


def place(fleet: Fleet, waited_s: float, last_call_s: float) -> list[str]:
    """The nodes of the next attempt, in the order of group ranks; empty where more have to be waited for.

    The first that are wanted, by the scheduler's order; where its switches are known, those of one next to each other.
    Whoever trained before keeps its place; a free one is taken by one that waits: of those with as many ranks, where
    there are any, the nearest. Those that would come first and are not there yet are waited for until last_call_s,
    fewer than wanted likewise, as long as somebody may still come. Who is drained gives way to who is not, and has as
    many ranks.
    """
    plan = fleet.plan
    ready = [m for m in fleet.members.values() if m.standing is Standing.READY]
    ready.sort(key=lambda m: (bool(m.drained), m.order))
    if len(ready) < plan.least:
        return []
    names = dict.fromkeys(m.node for m in ready)
    kept = [node if node in names else "" for node in fleet.placed[: plan.most]]
    if ready[-1].drained:
        _give_way(fleet, kept, [m for m in ready if not m.drained])
    taken = set(kept)
    free = [node for node in names if node not in taken]
    placed = _fill(fleet, kept, free)
    placed += _more(fleet, placed, free)[: plan.most - len(placed)]
    is_awaited = waited_s < last_call_s and _may_come(fleet)
    is_first = not fleet.placed
    if len(placed) < plan.most:
        placed = [] if is_awaited else placed
        return by_switch(placed, _switches(fleet)) if is_first else placed
    if is_first and is_awaited and any(m.order >= plan.most for m in ready[: plan.most]):
        return []  # a spare was quicker than a node that is to train
    return by_switch(placed, _switches(fleet)) if is_first else placed


def _fill(fleet: Fleet, kept: list[str], free: list[str]) -> list[str]:
    """The places that are kept, and the empty ones taken by those that are free, who then are not.

    A world size that changes breaks what is laid out for it (tensor and pipeline parallelism), so as many ranks count
    for more than anything else.
    """
    if not free or "" not in kept:
        return [node for node in kept if node]
    switches = _switches(fleet)
    placed = [*kept]
    for must_match in (True, False):
        for index, before in enumerate(fleet.placed[: len(kept)]):
            if placed[index]:
                continue
            ranks = fleet.members[before].ranks
            if fit := [one for one in free if not must_match or fleet.members[one].ranks == ranks]:
                well = [one for one in fit if not fleet.members[one].drained]
                placed[index] = nearest(well or fit, before, switches)
                free.remove(placed[index])
    return [node for node in placed if node]


def _more(fleet: Fleet, placed: list[str], free: list[str]) -> list[str]:
    """For places that nobody had: first those with as many ranks as most that train."""
    if not fleet.placed or not placed or not free or len(placed) == fleet.plan.most:
        return free
    sizes = Counter(fleet.members[node].ranks for node in placed)
    [(usual, _)] = sizes.most_common(1)
    return sorted(free, key=lambda node: fleet.members[node].ranks != usual)


def _switches(fleet: Fleet) -> dict[str, list[str]]:
    return {node: member.switches for node, member in fleet.members.items() if member.switches}


def _give_way(fleet: Fleet, kept: list[str], well: list[Member]) -> None:
    """Clear the places of drained nodes for which others, with as many ranks, are left over.

    well: those that are there and not drained.
    """
    left_over = sum(m.node not in kept for m in well) - (fleet.plan.most - sum(map(bool, kept)))
    by_size = Counter(m.ranks for m in well if m.node not in kept)
    by_size.subtract(fleet.members[before].ranks for node, before in zip(kept, fleet.placed, strict=False) if not node)
    for index, node in enumerate(kept):
        if left_over > 0 and node and fleet.members[node].drained and by_size[fleet.members[node].ranks] > 0:
            kept[index] = ""
            left_over -= 1
            by_size[fleet.members[node].ranks] -= 1


def _may_come(fleet: Fleet) -> bool:
    """Somebody may join within seconds: not all have yet, or one is silent, or the head has been cut off from it."""
    standings = [m.standing for m in fleet.members.values()]
    if any(m.is_cut and m.standing is Standing.LOST for m in fleet.members.values()):
        return True
    return Standing.SILENT in standings or to_come(fleet) > 0


def to_come(fleet: Fleet) -> int:
    """How many may still join: those of which nothing is known, and those whose guardrun may be started again."""
    known = sum(m.standing is not Standing.LEFT or bool(m.refused) for m in fleet.members.values())
    return max(fleet.plan.most + fleet.plan.spares - known, 0)


def may_be_enough(fleet: Fleet) -> bool:
    """Those that are there, and all that may still join, would do."""
    there = sum(m.standing in (Standing.READY, Standing.SILENT) for m in fleet.members.values())
    return there + to_come(fleet) >= fleet.plan.least


def carried_over(fleet: Fleet | None, plan: FleetPlan | None) -> Fleet | None:
    """What a new guardrun of the same run keeps of the nodes: who is out, and who has failed without a cause."""
    if plan is None:
        return None
    kept = Fleet(plan=plan)
    for member in fleet.members.values() if fleet is not None else ():
        has_record = member.strikes or member.returned_s
        if (member.standing is not Standing.OUT or member.is_unfit) and not has_record:
            continue
        if member.standing is not Standing.OUT or member.is_unfit:
            member.standing, member.why, member.is_unfit = Standing.LEFT, "not there yet", False
        member.is_placed = False
        kept.members[member.node] = member
    if fleet is not None:
        kept.swapped, kept.lacked, kept.doubts = fleet.swapped, fleet.lacked, fleet.doubts
    return kept


def first_ranks(fleet: Fleet, placed: list[str]) -> list[int]:
    """Per placed node its first global rank; one more at the end: the world size."""
    firsts = [0]
    for node in placed:
        firsts.append(firsts[-1] + fleet.members[node].ranks)
    return firsts


def present_words(fleet: Fleet) -> str:
    """Who is there, of those that are to train, in words."""
    ready = [m.node for m in fleet.members.values() if m.standing is Standing.READY]
    more = f" and {len(ready) - MAX_NAMED} more" if len(ready) > MAX_NAMED else ""
    plan = fleet.plan
    wanted = str(plan.most) if plan.least == plan.most else f"{plan.least} to {plan.most}"
    names = f" ({', '.join(ready[:MAX_NAMED])}{more})" if ready else ""
    return f"{len(ready)} of {wanted} are there{names}{_gone_words(fleet)}"


def missing_words(fleet: Fleet) -> str:
    """Who is not there, in words: for the one line that says why a run waits or ends."""
    ready = sum(m.standing is Standing.READY for m in fleet.members.values())
    wanted = str(fleet.plan.least) if fleet.plan.least == fleet.plan.most else f"at least {fleet.plan.least}"
    return f"{ready} of {wanted} nodes{_gone_words(fleet)}"


def _gone_words(fleet: Fleet) -> str:
    gone = [
        f"{m.node} ({m.why or m.standing.value})" for m in fleet.members.values() if m.standing is not Standing.READY
    ]
    return f"; not with them: {', '.join(gone[:MAX_NAMED])}" if gone else ""
