"""What ranks have profiled (`guardctl profile`) is kept in the run directory, for whoever asks later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.rundir.profiles import Breakdown, ProfileSummary, write_summary


class ProfileRequest(NamedTuple):
    """What was asked for."""

    number: int
    """In this run; its folder is there."""
    attempt: int
    at_s: float
    """When it is answered, in the engine's seconds."""


class _RankAnswer(msgspec.Struct, frozen=True):
    """As hooks/examine/profiling.py tells it, and supervisor/node/rank_profiles.py adds to it."""

    steps: list[tuple[int, int]]
    wanted: int
    plain_ns: int
    held_ns: tuple[int, int, int]
    breakdown: Breakdown
    trace: str
    trace_folder: str
    trace_bytes: int
    trace_trouble: str
    torch: str = ""
    unrecorded: str = ""
    why: str = ""


def keep_profiles(
    run_dir: Path, request: ProfileRequest, answers: dict[int, dict[str, Any]], nodes: dict[int, str]
) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Write what ranks' profiles come to. Answers what is said of each, and why others are not kept."""
    kept: dict[int, dict[str, Any]] = {}
    missing: dict[int, str] = {}
    for rank, answer in sorted(answers.items()):
        try:
            told = msgspec.convert(answer, known_type(_RankAnswer))
            if not told.steps:
                raise ValueError("no steps")
        except (msgspec.ValidationError, ValueError) as error:
            missing[rank] = f"its answer is none of this version of guardrun: {str(error)[:200]}"
            continue
        start_ns, stop_ns, export_ns = told.held_ns
        summary = ProfileSummary(
            number=request.number,
            rank=rank,
            node=nodes.get(rank, ""),
            attempt=request.attempt,
            at_s=request.at_s,
            steps=[(step, took_ns / 1e9) for step, took_ns in told.steps],
            wanted=told.wanted,
            plain_s=told.plain_ns / 1e9,
            held_s=(start_ns / 1e9, stop_ns / 1e9, export_ns / 1e9),
            torch=told.torch,
            unrecorded=told.unrecorded,
            why=told.why,
            trace=told.trace,
            trace_folder=told.trace_folder,
            trace_bytes=told.trace_bytes,
            trace_trouble=told.trace_trouble,
            breakdown=told.breakdown,
        )
        try:
            write_summary(run_dir, summary)
        except OSError as error:
            missing[rank] = f"what it has profiled can't be kept: {error.strerror or error}"
            continue
        kept[rank] = {"trace": told.trace, "bytes": told.trace_bytes}
    return kept, missing
