"""What a rank was seen to do for a while, on a terminal: a sentence, then its hottest lines."""

from __future__ import annotations

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.report.flame_graph import Box, Call, Flame, Sampled, hottest

LINES = 12
LEAST = 0.005
"""Of the samples: what is rarer is not shown."""
FEW = 50
"""Samples, below which shares say little."""
WORD = {"users": "yellow", "library": "", "native": ""}
"""The style of a line, by whose it is."""


def print_flame(out: Output, heading: str, flame: Flame) -> None:
    """Print a rank's samples. heading: `Rank 1 on node-a`."""
    sampled, thread = flame.sampled, flame.training
    if thread is None:
        out.line(f"{heading}: no thread of it was seen in {_for(sampled)}", "yellow")
        return
    out.line(f"{heading}: {' '.join(describe(sampled, thread))}", "bold")
    found = [hot for hot in hottest(thread, LINES) if hot.own >= LEAST]
    rows = [
        [f"{hot.own:.0%}", f"{hot.total:.0%}", name(hot.call), name(hot.under) if hot.under else ""] for hot in found
    ]
    out.table(["itself", "with calls", "line", "called from"], rows, [WORD[hot.call.kind] for hot in found])


def describe(sampled: Sampled, thread: Box) -> list[str]:
    """What the samples are, and how much they can say, a sentence each."""
    times = "once" if thread.count == 1 else f"{thread.count:,} times"
    sentences = [f"the thread that trains was seen {times} in {_for(sampled)}."]
    if thread.count < FEW:
        sentences.append("That is few: shares are rough (--seconds, --rate).")
    if thread.own >= LEAST * thread.count:
        share = f"{thread.own / thread.count:.0%}"
        sentences.append(f"In {share} of these it ran no Python code, as while its interpreter starts or ends.")
    if sampled.errors > sampled.samples / 10:
        sentences.append(
            f"{sampled.errors:,} samples could not be taken: stacks that change while they are read, quick calls "
            "before all; --native pauses the rank for each, and gets them."
        )
    if sampled.left_out:
        sentences.append(f"{sampled.left_out:,} samples of rare stacks are left out.")
    return sentences


def _for(sampled: Sampled) -> str:
    """How long it was sampled: a rank may have ended at once."""
    return f"{sampled.seconds:.0f} s" if sampled.seconds >= 1 else f"{sampled.seconds:.2g} s"


def name(call: Call) -> str:
    """A frame in a table: `forward (model.py:12)`."""
    return f"{call.function} ({call.place()})" if call.file else call.function
