"""What the allocator of a rank's device holds, on a terminal: sentences, then lines that have asked for it."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.engine.failures.cuda_memory import size

VIEWER = "pytorch.org/memory_viz"
SPLIT = 0.1
"""Of what is reserved: more than that free, in pieces, is worth a word."""


class DeviceSite(msgspec.Struct, frozen=True):
    """A line that has asked for memory of the device."""

    file: str
    line: int
    function: str
    bytes: int
    blocks: int


class Snapshot(msgspec.Struct, frozen=True):
    """As hooks/examine/device_snapshot.py tells it, and supervisor/rundir/snapshots.py adds to it."""

    seconds: float
    is_scripts: bool
    held_s: float
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    segments: int
    unknown_bytes: int
    unknown_blocks: int
    held: list[DeviceSite]
    held_left_out: int
    asked: list[DeviceSite]
    entries: int
    is_full: bool
    file: str
    file_bytes: int
    file_trouble: str


def describe(told: Snapshot) -> list[str]:
    """What the figures say, a sentence each; the first follows "Rank 1 on node-a"."""
    free = told.reserved_bytes - told.allocated_bytes
    sentences = [
        f"the allocator holds {size(told.reserved_bytes)} of the device in {_count(told.segments, 'segment')}, "
        f"{size(told.allocated_bytes)} of it handed out."
    ]
    if free > SPLIT * told.reserved_bytes:
        sentences.append(f"{size(free)} are free, the largest piece of that {size(told.largest_free_bytes)}.")
    if told.unknown_blocks:
        sentences.append(
            f"{size(told.unknown_bytes)} in {_count(told.unknown_blocks, 'block')} were handed out before the "
            f"{told.seconds:.0f} s in which it was watched: nobody knows by which line."
        )
    if told.is_full:
        sentences.append(f"The history has room for {told.entries:,} entries: what came before the last ones is gone.")
    if told.is_scripts:
        sentences.append("The script keeps a history itself: it was read, and left alone.")
    sentences.append(f"The rank was held up for {told.held_s:.2g} s by the snapshot.")
    return sentences


def print_snapshot(out: Output, heading: str, told: Snapshot) -> None:
    """Print what one rank has told. heading: `Rank 1 on node-a`."""
    first, *others = describe(told)
    out.line(f"{heading}: {first}", "bold")
    for sentence in others:
        out.line(sentence)
    if told.held:
        out.line("Held, by the line that asked for it:")
        out.table(["Bytes", "Blocks", "Line"], _rows(told.held))
        if told.held_left_out:
            out.line(f"and {told.held_left_out:,} lines with less", "dim")
    if told.asked:
        out.line(f"Asked for in {told.seconds:.0f} s, freed again or not:")
        out.table(["Bytes", "Times", "Line"], _rows(told.asked))
    if told.file:
        out.line(f"for {VIEWER}: {told.file} on the rank's node ({size(told.file_bytes)}); open no stranger's")
    else:
        out.line(f"the snapshot was not kept: {told.file_trouble}", "yellow")
    out.line()


def _rows(sites: list[DeviceSite]) -> list[list[str]]:
    return [[size(one.bytes), f"{one.blocks:,}", _where(one)] for one in sites]


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"


def _where(site: DeviceSite) -> str:
    if not site.file:
        return "(not known)"
    return f"{site.function} ({site.file}:{site.line})" if site.function else f"{site.file}:{site.line}"
