"""Calls that never met: in words, and as the reason of a crash that says no more than that ranks lost each other."""

from __future__ import annotations

import re

import msgspec

from guardrun.supervisor.engine.failures.root_cause import RootCause
from guardrun.supervisor.engine.model.events import ExitTrace
from guardrun.supervisor.engine.model.looks import ProcessLook, RankLook
from guardrun.supervisor.engine.observation.collective_calls import call_text, group_text, place_text
from guardrun.supervisor.engine.observation.collective_waits import CIRCLE, Match, Mismatch, Wait
from guardrun.supervisor.engine.observation.frames import ranks_text

_SILENT = frozenset({"abort"})
"""Causes that a backend leaves which has met a call of another size: gloo's own thread ends the process."""
_MET_ANOTHERS = re.compile(r"op\.preamble\.length")
"""What gloo says of such a call (transport/tcp/pair.cc): the rank that says so is the one that received it."""


def explain(found: RootCause, met: Match, ended: list[int]) -> RootCause:
    """The verdict on a crash, with what the ranks had called last. ended: those that had ended with 0 by themselves.

    Only where it tells nobody, an abort without a reason, or who received what another has sent: what ranks say
    themselves comes first.
    """
    has_met = found.cause == "collective_mismatch" and _has_met(found)
    if found.culprits and found.cause not in _SILENT and not has_met:
        return found
    if met.mismatch is not None:
        return _mismatch(found, met.mismatch)
    if has_met:
        found_in = ((wait, sorted({*set(wait.waits_for) & set(met.roots), *wait.elsewhere})) for wait in met.waits)
        return next((_absent(found, wait, ranks, "was not in") for wait, ranks in found_in if ranks), found)
    gone = [rank for rank in met.roots if rank in ended]
    if found.culprits or not gone:
        return found
    wait = next(wait for wait in met.waits if set(gone) & set(wait.waits_for))
    return _absent(found, wait, gone, "ended without")


def _absent(found: RootCause, wait: Wait, absent: list[int], verb: str) -> RootCause:
    """The verdict on ranks that were not in a call in which others waited: most are right."""
    told = (
        f"{verb} call {wait.seq} of {group_text(wait.group, wait.desc)}, "
        f"{wait.op}{place_text(wait.frame)}, in which {ranks_text(wait.ranks)} waited"
    )
    is_told = 1 < len(wait.ranks) >= len(absent)
    return msgspec.structs.replace(
        found,
        cause="collective_mismatch",
        culprits=absent if is_told else [],
        confidence=0.8,
        key=f"collective_mismatch:{wait.group}:{wait.op}",
        what=told if is_told else found.what,
        why_nobody=f"{ranks_text(absent)} {told}; which of them called one too many or one too few cannot be told",
    )


def _has_met(found: RootCause) -> bool:
    return _MET_ANOTHERS.search(found.error.message if found.error else found.what) is not None


def last_calls(traces: list[ExitTrace]) -> list[RankLook]:
    """What the ranks of a fallen attempt had called last, as looks that show nothing else."""
    nobody = ProcessLook(pid=0)
    return [
        RankLook(global_rank=trace.global_rank, at_s=0.0, process=nobody, groups=trace.groups)
        for trace in traces
        if trace.groups
    ]


def _mismatch(found: RootCause, mismatch: Mismatch) -> RootCause:
    first = mismatch.sides[0]
    return msgspec.structs.replace(
        found,
        cause="collective_mismatch",
        culprits=mismatch.culprits,
        confidence=0.95 if mismatch.culprits else 0.85,
        key=f"collective_mismatch:{first.group}:{'|'.join(side.call.op for side in mismatch.sides)}",
        what=mismatch_text(mismatch, is_past=True) if mismatch.culprits else found.what,
        why_nobody="" if mismatch.culprits else f"{mismatch_text(mismatch, is_past=True)}; {mismatch.why}",
    )


def mismatch_text(mismatch: Mismatch, *, is_past: bool = False) -> str:
    """What each side is in; the culprits' own side as a clause that goes on after their name."""
    blamed = [side for side in mismatch.sides if set(side.ranks) <= set(mismatch.culprits)]
    others = [side for side in mismatch.sides if side not in blamed]
    texts = [
        f"{ranks_text(side.ranks)} {_in(side.ranks, is_past)} {call_text(side.call)}"
        + (f" of {group_text(side.group)}" if mismatch.form == CIRCLE else "")
        for side in others[:4]
    ]
    rest = " and ".join(texts) + (" and others elsewhere" if len(others) > 4 else "")
    if mismatch.form != CIRCLE:
        rest += f", as call {mismatch.sides[0].call.seq} of {group_text(mismatch.sides[0].group)}"
    if not blamed:
        return rest
    mine = " and ".join(dict.fromkeys(call_text(side.call) for side in blamed))
    return f"{_in(mismatch.culprits, is_past)} {mine} while {rest}"


def _in(ranks: list[int], is_past: bool) -> str:
    if is_past:
        return "was in" if len(ranks) == 1 else "were in"
    return "is in" if len(ranks) == 1 else "are in"
