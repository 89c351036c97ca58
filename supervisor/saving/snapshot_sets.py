"""Which copies of ranks' states, kept in memory, make up a whole: those of one step, of all ranks that hold a part.

    shards     a path that names the rank: a copy of each rank, or its word that it keeps nothing
    replicas   one path on all ranks: one copy will do, once the others were seen to name the same path

A rank that never calls snapshot() holds nothing, but that is known only once it has finished a later step. Of ranks
whose node is gone it is known what their first call named. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from guardrun.hooks.wire.snapshot_index import Record

MAX_NAMED = 4
First = tuple[int, int]
"""At which step a rank first named a path, and a checksum of it (hooks/wire/board.py)."""
NOTHING: Mapping[int, First] = {}


class Copy(NamedTuple):
    """One rank's."""

    global_rank: int
    slot: int
    record: Record
    node: str = ""
    """Whose supervisor has it; empty: this one."""
    mode: int = 0o666
    """Who may do what with its file, as far as the umask lets them."""


class WholeSet(NamedTuple):
    """What is written out together."""

    copies: tuple[Copy, ...]
    instead: tuple[Copy, ...] = ()
    """Of replicas: others of the same, each of which would do."""

    @property
    def step(self) -> int:
        """Steps done, those before the resumed checkpoint included."""
        return max(copy.record.step for copy in self.copies)

    @property
    def at(self) -> int:
        """As a record has it."""
        return self.copies[0].record.at

    @property
    def written_ns(self) -> int:
        """CLOCK_MONOTONIC, of the last of them."""
        return max(copy.record.written_ns for copy in self.copies)


def find_whole(
    copies: Iterable[Copy],
    ranks: Sequence[int],
    steps: Mapping[int, int],
    firsts: Mapping[int, First] = NOTHING,
) -> tuple[list[WholeSet], str]:
    """All that are whole, newest first, and what speaks against the newest that is not.

    ranks: all of the attempt. steps: that those which have never called have finished in it, as they died or stand.
    firsts: what ranks' first calls named. Of two copies of one rank and step the later one is taken.
    """
    of_ranks: dict[int, dict[int, Copy]] = {}
    for copy in copies:
        of_ranks.setdefault(copy.global_rank, {})[copy.record.at] = copy
    holding = [copy for each in of_ranks.values() for copy in each.values() if copy.record.holds]
    newest: dict[int, int] = {}
    for copy in holding:
        newest[copy.record.at] = max(newest.get(copy.record.at, 0), copy.record.written_ns)
    found, why = [], ""
    for at in sorted(newest, key=lambda at: newest[at], reverse=True):
        one = _find_at(at, of_ranks, ranks, steps, firsts)
        if isinstance(one, WholeSet):
            found.append(one)
        elif not found:
            why = why or one
    return found, why


def _find_at(
    at: int,
    of_ranks: Mapping[int, Mapping[int, Copy]],
    ranks: Sequence[int],
    steps: Mapping[int, int],
    firsts: Mapping[int, First],
) -> WholeSet | str:
    holders = [each[at] for _, each in sorted(of_ranks.items()) if at in each and each[at].record.holds]
    is_sharded = holders[0].record.is_sharded
    if any(copy.record.is_sharded != is_sharded for copy in holders):
        return "some paths name the rank and some don't"
    missing, differing = [], []
    for rank in ranks:
        its = of_ranks.get(rank)
        if its is None and rank in steps:
            if not (holders[0].record.is_counted and steps[rank] > at):
                missing.append(rank)
        elif is_sharded:
            if its is None or at not in its:
                missing.append(rank)
        else:
            holder = holders[0].global_rank
            said = _named_the_same(its or {}, of_ranks[holder])
            if said is None:
                said = _named_the_same_first(firsts.get(rank), firsts.get(holder))
            if said is None:
                missing.append(rank)
            elif not said:
                differing.append(rank)
    if missing:
        return f"no copy of step {holders[0].record.step} is known of {_name_ranks(missing)}"
    if differing:
        holder = holders[0].global_rank
        return f"{_name_ranks(differing)} named another path than rank {holder}: shards need {{rank}} in it"
    if not is_sharded:
        return WholeSet((holders[0],), tuple(holders[1:]))
    if len({copy.record.path for copy in holders}) < len(holders):
        return "two ranks named the same path"
    return WholeSet(tuple(holders))


def _named_the_same(its: Mapping[int, Copy], holders: Mapping[int, Copy]) -> bool | None:
    """Whether it named the holder's path at the last step of which both tell; None: there is none."""
    both = its.keys() & holders.keys()
    return its[max(both)].record.path == holders[max(both)].record.path if both else None


def _named_the_same_first(its: First | None, holders: First | None) -> bool | None:
    """Likewise, by what each named first."""
    if its is None or holders is None or its[0] != holders[0]:
        return None
    return its[1] == holders[1]


def _name_ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:MAX_NAMED])) + (", …" if len(ranks) > MAX_NAMED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"
