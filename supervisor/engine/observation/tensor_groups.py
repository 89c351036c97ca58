"""Which tensors share a number in what ranks report of their replicas: many tensors, few numbers.

A check puts every GROUPS-th tensor into one group, its echo puts neighbours into one: no two tensors share both, up to
GROUPS * GROUPS of them. So the groups that differ in a check and those that differ in its echo tell which tensors do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

GROUPS = 64


def group_of(place: int, tensors: int, *, is_echo: bool) -> int:
    """The group of a tensor, by its place among all. With GROUPS or fewer each is a group by itself."""
    width = -(-tensors // GROUPS)
    return place // width if is_echo and width > 1 else place % GROUPS


def parse_groups(digests: str) -> tuple[bytes, ...] | None:
    """The groups' numbers as reported (hexadecimal), 4 bytes each; None where it is no such report."""
    try:
        data = bytes.fromhex(digests)
    except ValueError:
        return None
    if not data or len(data) % 4 or len(data) > 4 * GROUPS:
        return None
    return tuple(data[at : at + 4] for at in range(0, len(data), 4))


def tensors_in(tensors: int, in_check: Collection[int], in_echo: Collection[int]) -> Iterator[int]:
    """Places of tensors whose groups are among those of the check, and among those of the echo."""
    for place in range(tensors):
        if group_of(place, tensors, is_echo=False) in in_check and group_of(place, tensors, is_echo=True) in in_echo:
            yield place
