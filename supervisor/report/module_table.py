"""Which modules a rank's steps go to, and where its memory grows: rows of single calls, summed up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.rundir.traces import ModuleTrace, TraceRow

WHOLE = "(whole)"
"""The outermost module, whose name is empty."""


class ModuleSum(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one module in one stage."""

    module: str
    stage: str
    count: int
    mean_s: float
    total_s: float
    share: float | None
    """Of the time that the traced steps took, what the modules within it took included; None: not known."""
    grew_bytes: int | None
    """By how much more memory was in use at its calls' ends than at those of the calls before; None: not known."""


def sum_up(rows: Sequence[TraceRow], steps: Sequence[tuple[int, float]]) -> list[ModuleSum]:
    """By module and stage, the longest first.

    rows: of one rank, in the order in which calls ended. steps: those that were traced from first to last, and seconds
    of each; rows of others count for everything but the share.
    """
    whole = {step for step, _ in steps}
    took_s = sum(seconds for _, seconds in steps)
    sums: dict[tuple[str, str], list[float]] = {}
    grew: dict[tuple[str, str], int] = {}
    last = -1
    for row in rows:
        key = row.module, row.stage
        one = sums.setdefault(key, [0, 0.0, 0.0])
        one[0] += 1
        one[1] += row.duration
        if row.step in whole:
            one[2] += row.duration
        if row.allocated >= 0:
            if last >= 0:
                grew[key] = grew.get(key, 0) + row.allocated - last
            last = row.allocated
    found = [
        ModuleSum(
            module=module or WHOLE,
            stage=stage,
            count=int(count),
            mean_s=total_s / count,
            total_s=total_s,
            share=in_whole_s / took_s if took_s > 0 else None,
            grew_bytes=grew.get((module, stage)),
        )
        for (module, stage), (count, total_s, in_whole_s) in sums.items()
    ]
    return sorted(found, key=lambda one: (-one.total_s, one.module, one.stage))


def describe(trace: ModuleTrace) -> list[str]:
    """What the table is of, and what it does not show, a sentence each; the first follows "Rank 1 on node-a"."""
    took_s = sum(seconds for _, seconds in trace.steps)
    count = len(trace.steps)
    sentences = [f"no step was traced from first to last; {len(trace.rows):,} calls of modules were."]
    if count:
        first, last = trace.steps[0][0], trace.steps[-1][0]
        which = f"step {first}" if count == 1 else f"steps {first} to {last}"
        sentences = [f"{which}, {took_s / count * 1e3:.3g} ms each; {len(trace.rows):,} calls of modules."]
    if trace.is_cut:
        sentences.append("It ended before as many steps as were asked for.")
    if trace.left_out:
        sentences.append(f"For {trace.left_out:,} more there was no room: fewer ranks at once have more each.")
    if trace.memory == "device":
        sentences.append("Times are the host's: of work on the device, what it took to launch it, or to wait for it.")
    if trace.compiled_count:
        names = ", ".join(name or WHOLE for name in trace.compiled)
        more = (
            f", and {trace.compiled_count - len(trace.compiled)} more"
            if len(trace.compiled) < trace.compiled_count
            else ""
        )
        sentences.append(f"Compiled modules run as one piece, of whose parts nothing is known: {names}{more}.")
    if trace.is_compiled:
        sentences.append("It ended because something was compiled: ask again.")
    return sentences


def grown(one: ModuleSum) -> str:
    """`+12 MB`, `-3 KB`; empty where it is nothing, or not known."""
    if not one.grew_bytes:
        return ""
    return f"{'+' if one.grew_bytes > 0 else '-'}{size(abs(one.grew_bytes))}"
