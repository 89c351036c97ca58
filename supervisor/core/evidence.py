"""What an incident shows of the looks: bounded, however many ranks there are."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.core.frames import base_name, is_users
from guardrun.supervisor.core.judge import Judgement
from guardrun.supervisor.core.looks import Frame, RankLook
from guardrun.supervisor.core.state import Attempt

MAX_RANKS = 64
MAX_FRAMES = 24


def most_telling(ranks: list[int], culprits: list[int]) -> list[int]:
    """At most MAX_RANKS of them, the culprits among them as far as possible, in order."""
    chosen = set(culprits[:MAX_RANKS])
    for rank in ranks:
        if len(chosen) >= MAX_RANKS:
            break
        chosen.add(rank)
    return sorted(chosen)


def of_judged(attempt: Attempt, by_rank: dict[int, Judgement], culprits: list[int]) -> list[dict[str, Any]]:
    """How each rank was judged, and what is known of it."""
    told = most_telling(sorted(by_rank), [rank for rank in culprits if rank in by_rank])
    return [_of_one(attempt, by_rank[rank]) for rank in told if rank in attempt.ranks]


def _of_one(attempt: Attempt, judgement: Judgement) -> dict[str, Any]:
    rank = attempt.ranks[judgement.global_rank]
    return {
        "rank": judgement.global_rank,
        "pid": rank.rank.pid,
        "state": rank.state,
        "judgement": judgement.doing.value,
        "reason": judgement.reason,
        "at": judgement.spot,
        "waits_in": judgement.waits_in,
        "step": rank.step,
        "collectives": judgement.order,
        "phase": rank.phase,
    }


def stack_of(looks: list[RankLook], ranks: list[int]) -> list[str]:
    """The first of these ranks' stack, innermost first; library frames are indented."""
    wanted = set(ranks)
    for look in looks:
        if look.global_rank in wanted and look.process.threads:
            return [_frame_text(frame) for frame in look.process.threads[0].frames[:MAX_FRAMES]]
    return []


def _frame_text(frame: Frame) -> str:
    mark = "" if is_users(frame) else "  "
    return f"{mark}{frame.function} ({base_name(frame.file)}:{frame.line})"
