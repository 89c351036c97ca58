"""Whose tensors differ, which, and whether the script means them to: what two checks of replicas show.

A bit that flips changes one tensor of one rank, and since gradients are reduced it stays there. It is an incident:

    three replicas or more   a majority agrees, and one rank does not, or a quarter of them at most: they are named
    two                      one does not agree with the other: nobody can be named, unless a later attempt computes the
                             same steps again (divergence_rerun.py)

The script lets them differ, and nothing is wrong, where

    it writes to them        torch counts other in-place operations on some ranks than on others, and did not before
    nobody agrees            no majority holds the same (averaging every few steps, gradients that are never reduced)
    all of it differs        more than half of the parameters: of two replicas, and of the one that scripts give work of
                             its own (`if rank == 0`)
    they never were equal    since the first check
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.observation.frames import rank_list, ranks_text
from guardrun.supervisor.engine.observation.tensor_groups import GROUPS, parse_groups, tensors_in

CAUSE = "replica_divergence"
MAX_CULPRITS = 64
MAX_NAMED = 8
FEW = 4
"""One in so many replicas at most may be named: more is a script, or two kinds of devices."""
THROUGHOUT = 0.5
"""A share of the parameters beyond which all of them count as different."""


class Ballot(msgspec.Struct, kw_only=True):
    """What ranks hold after one and the same step."""

    count: int
    step: int
    is_echo: bool
    tensors: int
    votes: dict[str, dict[int, int]] = {}
    """By what they hold: ranks, with their in-place operations since their first check."""
    layouts: list[int] = []

    @property
    def size(self) -> int:
        """Ranks that have reported."""
        return sum(map(len, self.votes.values()))

    def note(self, rank: int, check: ev.ReplicaCheck) -> None:
        """Take a rank's check in."""
        if any(rank in ranks for ranks in self.votes.values()):
            return
        self.votes.setdefault(check.digests, {})[rank] = check.writes
        # Of a rank that has not loaded the checkpoint itself it is not known from where its steps count.
        self.step = max(self.step, check.step)
        if check.layout not in self.layouts:
            self.layouts.append(check.layout)

    def differing(self, left_out: Collection[int]) -> list[int] | None:
        """Groups in which not all ranks hold the same, but for those left out; None where they can't be compared."""
        if len(self.layouts) != 1:
            return None
        if len(self.votes) == 1:
            return []
        groups = [parse_groups(digests) for digests in self.votes]
        known = [one for one in groups if one is not None]
        if len(known) < len(groups) or len(set(map(len, known))) > 1:
            return None
        return [
            group for group, numbers in enumerate(zip(*known, strict=True))
            if group not in left_out and len(set(numbers)) > 1
        ]  # fmt: skip

    def camps(self, groups: Sequence[int]) -> list[list[int]]:
        """Ranks that hold the same in these groups, the most first."""
        found: dict[tuple[bytes, ...], list[int]] = {}
        for digests, ranks in self.votes.items():
            numbers = parse_groups(digests) or ()
            found.setdefault(tuple(numbers[group] for group in groups), []).extend(ranks)
        return sorted((sorted(ranks) for ranks in found.values()), key=lambda ranks: (-len(ranks), ranks))

    def writes(self) -> dict[int, int]:
        """In-place operations since their first check, by rank."""
        return {rank: writes for ranks in self.votes.values() for rank, writes in ranks.items()}

    def writes_since(self, earlier: Mapping[int, int]) -> dict[int, int]:
        """In-place operations since an earlier check of all ranks, by rank; in between some may have left one out.

        earlier: its writes().
        """
        return {rank: writes - earlier[rank] for rank, writes in self.writes().items() if rank in earlier}


class Before(NamedTuple):
    """The last check in which all were equal."""

    step: int
    writes: Mapping[int, int]
    """In-place operations on the parameters until then, by rank."""
    usual_writes: Mapping[int, int]
    """Those since the one before it."""


class Finding(msgspec.Struct, kw_only=True):
    """Replicas that differ."""

    label: str
    step: int
    """Of the first check in which they did."""
    agreed: int
    """Of the last one in which they did not."""
    seen: int
    """Of the check that has confirmed it."""
    ranks: list[int]
    """All that hold them."""
    dissenters: list[int]
    """Empty: it cannot be told."""
    names: list[str]
    """Of parameters that differ, MAX_NAMED at most; empty: unknown."""
    count: int
    """How many do."""
    tensors: int
    is_throughout: bool
    is_scripts: bool
    are_written: bool
    """Ranks differ since then in how often they have written to the parameters in place."""
    moments_too: bool = False
    repeats: str = ""
    """Words on the same difference in an attempt before; empty: there was none."""


def find(
    first: Ballot, second: Ballot, left_out: tuple[list[int], list[int]], names: Sequence[str], before: Before
) -> Finding | None:
    """What two checks show, one after the other; None where they don't show the same."""
    in_first, in_second = (one.differing(left_out[one.is_echo]) or [] for one in (first, second))
    groups = {False: set(range(GROUPS)), True: set(range(GROUPS))}
    for ballot, differing in ((first, in_first), (second, in_second)):
        groups[ballot.is_echo] &= set(differing)
    places = list(tensors_in(min(second.tensors, GROUPS * GROUPS), groups[False], groups[True]))
    camps = second.camps(in_second)
    if not places or camps != first.camps(in_first):
        return None
    ranks = sorted(rank for camp in camps for rank in camp)
    majority = camps[0] if 2 * len(camps[0]) > len(ranks) else []
    dissenters = [rank for rank in ranks if rank not in majority] if majority else []
    is_throughout = len(places) > THROUGHOUT * second.tensors
    writes = first.writes_since(before.writes)
    wrote_differently = _write_differently(writes, before.usual_writes, majority or ranks[:1], dissenters or ranks)
    if majority:
        is_few = len(dissenters) <= max(1, len(ranks) // FEW)
        is_scripts = not is_few or (is_throughout and ranks[0] in dissenters)
    else:
        is_scripts = len(ranks) > 2 or is_throughout
    return Finding(
        label=names[0] if names else "",
        step=first.step,
        agreed=before.step,
        seen=second.step,
        ranks=ranks,
        dissenters=dissenters,
        names=[names[1 + place] for place in places[:MAX_NAMED] if 1 + place < len(names)],
        count=len(places),
        tensors=second.tensors,
        is_throughout=is_throughout,
        is_scripts=is_scripts or wrote_differently,
        are_written=wrote_differently,
    )


def _write_differently(
    now: Mapping[int, int], before: Mapping[int, int], some: Collection[int], others: Collection[int]
) -> bool:
    """Whether others write to their parameters in another way than some, which they did not when all were equal.

    Where each rank updates a part of them, or one puts averages in their place now and then, they always do.
    """
    usual, known = {now.get(rank) for rank in some}, {before.get(rank) for rank in some}
    return any(now.get(rank) not in usual and before.get(rank) in known for rank in others)


def sentence(finding: Finding, attempt: AttemptView) -> str:
    """The summary of the incident."""
    if not finding.dissenters:
        return two_sentence(finding, finding.repeats or "of two, nobody can say which one is right")
    others = len(finding.ranks) - len(finding.dissenters)
    verb = "holds" if len(finding.dissenters) == 1 else "hold"
    return (
        f"{who(attempt, finding.dissenters[:MAX_CULPRITS])} {verb} other values in {tensors_text(finding)} than the "
        f"{others} replicas that agree: {_since(finding)}."
    )


def two_sentence(finding: Finding, more: str) -> str:
    """The summary where two differ. more: what can be said of which one is right."""
    return (
        f"The two replicas on {ranks_text(finding.ranks)} differ in {tensors_text(finding)}: {_since(finding)}; {more}."
    )


def _since(finding: Finding) -> str:
    return f"they were equal at step {finding.agreed}, and are not since step {finding.step}"


def tensors_text(finding: Finding) -> str:
    """`layer3.weight and 2 more`."""
    if finding.is_throughout and finding.count > 1:
        return "most parameters"
    if not finding.names:
        return "a parameter" if finding.count == 1 else f"{finding.count} parameters"
    more = f" and {finding.count - 1} more" if finding.count > 1 else ""
    return f"{finding.names[0]}{more}" + (" and its optimizer's moments" if finding.moments_too else "")


def script_text(finding: Finding) -> str:
    """The remark on ranks that are let differ."""
    if finding.are_written:
        why = "it writes to them on some ranks and not on others"
    elif finding.dissenters:
        why = f"most of {ranks_text(finding.dissenters)}'s do, or too many ranks"
    else:
        why = "no majority agrees" if len(finding.ranks) > 2 else "most of them do"
    return (
        f"replicas of {finding.label or 'the model'} are not equal since step {finding.step} "
        f"({tensors_text(finding)}); the script seems to let them differ ({why}), so these are compared no further"
    )


def never_text(names: Sequence[str], ballot: Ballot) -> str:
    """The remark on replicas that were never seen equal."""
    return (
        f"replicas of {names[0] if names else 'the model'} differ at step {ballot.step}, in the first check: "
        "parameters that do are not compared"
    )


def evidence(finding: Finding) -> dict[str, Any]:
    """As data."""
    return {
        "of": finding.label,
        "replicas": rank_list(finding.ranks),
        "differ": rank_list(finding.dissenters) if finding.dissenters else rank_list(finding.ranks),
        "agree": len(finding.ranks) - len(finding.dissenters) if finding.dissenters else 0,
        "parameters": finding.names,
        "parameters_that_differ": finding.count,
        "parameters_in_all": finding.tensors,
        "moments_differ": finding.moments_too,
        "agreed_step": finding.agreed,
        "seen_again_step": finding.seen,
    }
