"""What a rank has found out about its memory, on a terminal: sentences, then a table of lines."""

from __future__ import annotations

import os

import msgspec

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.engine.failures.cuda_memory import size

MIB = 1 << 20
UNSEEN_SHARE = 0.3
"""Of what the process has come to hold: beyond that, lines of Python are not the whole story."""
SLOW_S = 0.5
"""Worth a word."""
MAX_SHAPES = 4
LEAST_UNSEEN = 16 * MIB
"""The C library's allocator alone may take so much, and give it back."""


class Grown(msgspec.Struct, frozen=True):
    """By how much a rank's process has grown, in bytes, and in which time."""

    seconds: float
    steps: int
    resident_bytes: int
    """Anonymous memory, and what of it was swapped out; …"""
    shared_bytes: int
    """… shared memory; …"""
    python_bytes: int
    """… what Python's allocators have handed out; …"""
    tables_bytes: int
    """… and tracemalloc's own tables."""
    device_bytes: int | None = None
    """What the device's allocator has handed out; None: not known."""

    @property
    def unseen_bytes(self) -> int:
        """Neither Python's nor tracemalloc's."""
        return self.resident_bytes - self.python_bytes - self.tables_bytes


class Site(msgspec.Struct, frozen=True):
    """A line that has come to hold more."""

    file: str
    line: int
    bytes: int
    objects: int
    stack: list[tuple[str, int]] = []
    """Innermost first: where the memory is asked for."""
    function: str = ""


class TensorCount(msgspec.Struct, frozen=True):
    """Tensors of one kind, of which there are more."""

    device: str
    dtype: str
    shape: list[int]
    tensors: int
    bytes: int

    def describe(self) -> str:
        """In words: `400 of float32[64, 1024] on cuda:0, 100 MB`."""
        shape = ", ".join(map(str, self.shape))
        kind = f"{self.dtype.removeprefix('torch.')}[{shape}]"
        return f"{self.tensors:,} of {kind} on {self.device}, {size(self.bytes)}"


class Allocations(msgspec.Struct, frozen=True):
    """As hooks/examine/allocations.py tells them."""

    traced_s: float
    compared_s: float
    is_from_start: bool
    is_cut: bool
    is_scripts: bool
    frames: int
    allocations: int
    snapshots_s: float
    grown: Grown
    sites: list[Site]
    sites_left_out: int = 0
    tensors: list[TensorCount] = []
    tensors_trouble: str = ""
    """Why those are not known."""


def describe(told: Allocations) -> list[str]:
    """What the figures say, and what they don't, a sentence each; the first follows "Rank 1 on node-a"."""
    grown = told.grown
    steps = f", {grown.steps:,} steps" if grown.steps > 0 else ""
    sentences = [
        f"its process came to hold {_more(grown.resident_bytes)} in {grown.seconds:.0f} s{steps}: Python's own "
        f"allocations {_more(grown.python_bytes)}, tracemalloc's tables {_more(grown.tables_bytes)}, and what "
        f"tracemalloc does not see {_more(grown.unseen_bytes)}."
    ]
    if grown.unseen_bytes > max(LEAST_UNSEEN, UNSEEN_SHARE * grown.resident_bytes):
        sentences.append(
            "What it does not see is asked for by C code (data of tensors on the host, graphs of losses that are kept, "
            "drivers, libraries), or has been freed, and not given back to the system. To Python a tensor is one small "
            "object: see which line holds as many more objects as steps were done. `memray attach --native` sees the "
            "rest."
        )
    sentences += _of_tensors(told)
    if grown.shared_bytes > LEAST_UNSEEN:
        sentences.append(f"Beside that, it has {_more(grown.shared_bytes)} of shared memory mapped.")
    if told.snapshots_s >= SLOW_S:
        sentences.append(f"For its snapshots the rank was held up for {told.snapshots_s:.1f} s in all.")
    if told.is_cut:
        sentences.append(f"It was ended after {told.traced_s:.0f} s: {told.allocations:,} allocations had piled up.")
    if told.is_from_start:
        sentences.append("There was no time for a comparison: what a step holds for its own time is counted, too.")
    elif grown.steps <= 0:
        sentences.append("No step was seen to end meanwhile: --seconds of some steps tell what stays from what goes.")
    if told.is_scripts:
        sentences.append(
            f"The script traces its allocations itself (frames: {told.frames}): its traces were read, and left alone."
        )
    return sentences


def _of_tensors(told: Allocations) -> list[str]:
    sentences = []
    device_bytes = told.grown.device_bytes
    if device_bytes is not None and device_bytes > LEAST_UNSEEN:
        held = sum(one.bytes for one in told.tensors if not one.device.startswith("cpu"))
        sentence = f"The device's allocator has handed out {_more(device_bytes)}."
        if held < (1 - UNSEEN_SHARE) * device_bytes and not told.tensors_trouble:
            sentence += (
                f" Tensors that Python knows are {size(held)} of it: the rest is held by C++, as graphs hold the "
                "activations of losses and outputs that are kept with them."
            )
        sentences.append(sentence)
    if told.tensors:
        shown = "; ".join(one.describe() for one in told.tensors[:MAX_SHAPES])
        sentences.append(f"Tensors of which there are more: {shown}.")
    if told.tensors_trouble:
        sentences.append(f"Tensors were not counted: {told.tensors_trouble}.")
    return sentences


def print_allocations(out: Output, heading: str, told: Allocations) -> None:
    """Print what one rank has told. heading: `Rank 1 on node-a`."""
    first, *others = describe(told)
    out.line(f"{heading}: {first}", "bold")
    for sentence in others:
        out.line(sentence)
    if not told.sites:
        out.line("No line of Python came to hold more.")
        out.line()
        return
    out.line(f"Lines that came to hold more in {told.compared_s:.0f} s:")
    rows = [[size(site.bytes), f"{site.objects:+,}", _where(site), _inner(site)] for site in told.sites]
    out.table(["Bytes", "Objects", "Line", "By way of"], rows)
    if told.sites_left_out:
        out.line(f"and {told.sites_left_out:,} lines with less", "dim")
    out.line()


def _more(size_bytes: int) -> str:
    return f"{size(size_bytes)} more" if size_bytes >= 0 else f"{size(-size_bytes)} less"


def _where(site: Site) -> str:
    return f"{site.function} ({site.file}:{site.line})" if site.function else f"{site.file}:{site.line}"


def _inner(site: Site) -> str:
    """The line that asks for the memory, where it is not the user's own."""
    if not site.stack or (site.stack[0][0], site.stack[0][1]) == (site.file, site.line):
        return ""
    file, line = site.stack[0]
    return f"{os.path.basename(os.path.dirname(file))}/{os.path.basename(file)}:{line}"
