"""Grouped stacks on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.engine.membership.reachability import names
from guardrun.supervisor.engine.observation.frame_folding import fold
from guardrun.supervisor.engine.observation.frames import is_users_file
from guardrun.supervisor.engine.observation.stack_grouping import StackGroup, frame_words, group_stacks
from guardrun.supervisor.engine.observation.stacks import Stack

Nodes = Mapping[int, str]
"""Of each rank, in a job of several nodes; else empty."""
_HERE: Nodes = {}


def print_stacks(
    out: Output, stacks: Sequence[Stack], culprits: Sequence[int] = (), is_full: bool = False, nodes: Nodes = _HERE
) -> None:
    """Print stacks, equal ones once, innermost frame first; library frames folded unless is_full."""
    for number, group in enumerate(group_stacks(stacks, culprits)):
        if number:
            out.line()
        _print_group(out, group, is_full, nodes)


def print_each(out: Output, stacks: Sequence[Stack], is_full: bool = False, nodes: Nodes = _HERE) -> None:
    """Print every stack by itself, rank by rank."""
    for number, stack in enumerate(stacks):
        if number:
            out.line()
        _print_group(out, group_stacks([stack])[0], is_full, nodes)


def _print_group(out: Output, group: StackGroup, is_full: bool, nodes: Nodes) -> None:
    note = f": {group.note}" if group.note else ""
    gil = ", holds the GIL" if group.owns_gil else ""
    there = list(dict.fromkeys(nodes[rank] for rank in group.ranks if rank in nodes))
    where = f" on {names(there)}" if there else ""
    out.line(f"{group.title()}{where}{gil}{note}", "bold")
    if not group.frames:
        out.line("    no Python frames", "dim")
    for part in fold(group.frames):
        if part.label and not is_full:
            out.line(f"    … {part.label}", "dim")
            continue
        for frame in part.frames:
            out.line(f"    {frame_words(frame)}", "" if is_users_file(frame.file) else "dim")
    if group.spread:
        out.line("    at " + "; ".join(f"line {at.line}: ranks {at.ranks}" for at in group.spread), "dim")
