"""The nodes of a job, which of them are to train, and failures held against one: data of engine/membership/.

Nodes are near one another by the network switches that they hang below.

Held against a node are failures for which no cause was found, when they are one node's, and not chance. In a job of
thousands of nodes such failures meet the same node twice by chance, sooner or later. What is held against a node is
therefore how it compares with the others: of the run's last failures without a cause, k were its own, and m came after
the first of these. Where failures meet n nodes at random, that has a chance of no more than C(m, k-1) / n^(k-1) each
time a node fails. Older than MEMORY_S is nothing: a node that is bad fails again within hours.

Two in a row of a kind that no script raises are held against a node of a job of any size: a job of four nodes could not
wait until chance is excluded, and a doubt costs it no more than a spare. An error of CUDA may be the script's own,
which then meets other nodes, too, or comes back at the same step: it counts only where chance is excluded, and not at a
step at which there was one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import comb

import msgspec

from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.model.events import FleetPlan

UNCLEAR = frozenset(
    {"killed", "segfault", "abort", "bus_error", "nccl_error", "collective_timeout", "io_blocked", "unknown"}
)
"""No cause in the script, and none found elsewhere."""
DEVICE_HINTS = frozenset({"illegal_access", "launch_failure"})
"""An error of CUDA that sensors do not explain (engine/failures/failure_patterns.py): the script's, or a device that
fails silently."""
CHANCE = 0.001
"""Of so few failures one may swap a node for nothing. Ten thousand nodes meet a thousand such failures in two weeks, at
ten times the rate of Llama 3's (docs/simulation.md): one of them."""
MEMORY_S = 7 * 86400.0
STEPS_APART = 2
"""Kernels run behind the script: the same bad batch may be told a step later."""

MAX_NAMED = 8
"""Of thousands of nodes."""
FIRST_SPARE = 1_000_000
"""Orders of nodes that no scheduler has numbered come after those that one has."""


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One failure without a cause on a node."""

    incident: str
    at_s: float
    number: int
    """Among the run's failures without a cause, counted from 1."""
    is_device: bool = False
    """An error of CUDA: it may be the script's."""
    step: int | None = None


def is_doubt(incident: Incident) -> bool:
    """Whether no cause was found."""
    return incident.cause in UNCLEAR or is_device_error(incident)


def is_device_error(incident: Incident) -> bool:
    """Whether it is an error of CUDA; one that ends in SIGABRT is no less the script's."""
    return incident.evidence.get("hint") in DEVICE_HINTS and incident.cause in ("exception", "abort")


def kept(strikes: list[Strike], now_s: float) -> list[Strike]:
    """Those that are not too old."""
    return [strike for strike in strikes if now_s - strike.at_s <= MEMORY_S]


def strike_for(incident: Incident, before: list[Strike], number: int) -> Strike | None:
    """What an incident is to its node; None: it shows that it is not the node. before: the node's."""
    is_device, step = is_device_error(incident), incident.step
    if is_device and step and any(s.is_device and s.step and abs(s.step - step) < STEPS_APART for s in before):
        return None
    return Strike(incident=incident.id, at_s=incident.detected_s, number=number, is_device=is_device, step=step)


def attributed_failures(strikes: list[Strike], nodes: int) -> int:
    """How many of a node's strikes, counted from the last, are more than chance; 0: none. nodes: that train."""
    last = strikes[-1].number if strikes else 0
    for count in range(2, len(strikes) + 1):
        others = last - strikes[-count].number
        if count == 2 and others == 1 and not any(strike.is_device for strike in strikes[-2:]):
            return count
        if comb(others, count - 1) <= CHANCE * nodes ** (count - 1):
            return count
    return 0


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
    addresses: list[str] = []
    """Of its network interfaces."""
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
    ran_s: float = 0.0
    """Since when the head has run without a break: no silence began before."""
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

    def set_standing(self, member: Member, standing: Standing) -> None:
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


# Network switches ---------------------------------------------------------------------------------------------------
# Which nodes are near one another in the network: by the switches that they hang below. Pure.
#
# Rings and trees of collectives go from rank to rank, so that each boundary between two switches costs once where nodes
# of one switch follow on one another, and many times where they alternate. A scheduler's list of nodes is sorted by
# name, mostly, and names need not follow the cabling.

Switches = Mapping[str, Sequence[str]]
"""Node → the switches above it, from the top of the network down; none where it is not known."""


def by_switch(nodes: Sequence[str], switches: Switches, level: int = 0) -> list[str]:
    """Nodes below one switch next to each other, at every level; else in the order given.

    Whoever comes first draws those of its switches to itself. Nodes of which nothing is known, and those that hang at a
    higher level than others, stand for themselves.
    """
    groups: dict[tuple[str, bool], list[str]] = {}
    for node in nodes:
        above = switches.get(node, ())
        groups.setdefault((above[level], True) if len(above) > level else (node, False), []).append(node)
    found: list[str] = []
    for (_, is_switch), group in groups.items():
        found += by_switch(group, switches, level + 1) if is_switch and len(group) > 1 else group
    return found


def nearest(nodes: Sequence[str], place: str, switches: Switches) -> str:
    """Of these, the one with most switches in common with another; the first of several. nodes: one at the least."""
    return max(nodes, key=lambda node: _common(switches.get(node, ()), switches.get(place, ())))


def _common(ones: Sequence[str], others: Sequence[str]) -> int:
    count = 0
    for one, other in zip(ones, others, strict=False):
        if one != other:
            break
        count += 1
    return count
