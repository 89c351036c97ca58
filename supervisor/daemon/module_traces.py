"""What ranks have measured of their modules (`guardctl trace`) is kept in the run directory, for whoever asks later."""

from __future__ import annotations

from _thread import allocate_lock
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from guardrun.hooks.wire.examinations import MAX_TRACE_BYTES
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.rundir.traces import ModuleTrace, next_number, parse_rows, prune_traces, write_trace

MODULES = "modules"
"""As hooks/examine/examiner.py names it."""
ALL_BYTES = 7 * 512 * 1024
"""Of all ranks' answers together: those of one node go to the head as one message (fleet/transport/envelopes.py)."""

_lock = allocate_lock()
"""One request at a time gets its number."""


def answer_bytes(ranks: int) -> int:
    """How long one of so many ranks' answers may be."""
    return min(MAX_TRACE_BYTES, ALL_BYTES // max(1, ranks))


class _Measured(msgspec.Struct, frozen=True):
    """As hooks/examine/module_times.py tells it."""

    names: list[str]
    stages: list[str]
    rows: str
    steps: list[tuple[int, int]]
    left_out: int
    is_cut: bool
    memory: str
    compiled: list[str] = []
    compiled_count: int = 0
    is_compiled: bool = False


def keep_traces(
    run_dir: Path, answers: dict[int, dict[str, Any]], nodes: dict[int, str], attempt: int, at_s: float
) -> tuple[int, dict[int, dict[str, Any]], dict[int, str]]:
    """Write what ranks have told. Answers the request's number, what is said of each, and why others are not kept."""
    kept: dict[int, dict[str, Any]] = {}
    missing: dict[int, str] = {}
    with _lock:
        number = next_number(run_dir)
        for rank, answer in sorted(answers.items()):
            try:
                told = msgspec.convert(answer, known_type(_Measured))
                rows = parse_rows(told.rows, told.names, told.stages)
            except (msgspec.ValidationError, ValueError, IndexError) as error:
                missing[rank] = f"its answer is none of this version of guardrun: {str(error)[:200]}"
                continue
            trace = ModuleTrace(
                number=number,
                rank=rank,
                node=nodes.get(rank, ""),
                attempt=attempt,
                at_s=at_s,
                rows=rows,
                left_out=told.left_out,
                steps=[(step, took_ns / 1e9) for step, took_ns in told.steps],
                is_cut=told.is_cut,
                memory=told.memory,
                compiled=told.compiled,
                compiled_count=told.compiled_count,
                is_compiled=told.is_compiled,
            )
            try:
                path = write_trace(run_dir, trace)
            except OSError as error:
                missing[rank] = f"what it has measured can't be kept: {error}"
                continue
            kept[rank] = {"file": str(path.relative_to(run_dir)), "rows": len(rows), "left_out": told.left_out}
        with suppress(OSError):  # the next request tries again
            prune_traces(run_dir)
    return number, kept, missing
