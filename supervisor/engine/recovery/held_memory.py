"""Memory of devices that an attempt did not find free: who holds it is said, and noted where its cause is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.events import MemoryWait
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.health.gpu.memory_release import FOREIGN, OURS, MemoryHolder

WORTH_TELLING_S = 2.0
MAX_HOLDERS = 32
"""Noted of one node."""


def report_memory(state: State, waits: Sequence[MemoryWait]) -> list[Action]:
    """Note what was waited for and what is held; say what may be felt."""
    if not waits:
        return []
    actions: list[Action] = []
    if incident := state.incidents.get(state.mending_incident):
        noted = [{**msgspec.to_builtins(wait), "holders": _noted(wait)} for wait in waits]
        actions.append(change(state, incident.id, evidence={**incident.evidence, "gpu_memory": noted}))
    for wait in waits:
        if wait.why == "limit":
            held = "; ".join(_words(holder) for holder in wait.holders[:4])
            text = f"{wait.node}: GPU memory of the last attempt was not freed within {wait.asked_s:.0f} s: {held}"
            actions.append(announce(text, "warn"))
        elif wait.why == "free" and wait.waited_s >= WORTH_TELLING_S:
            actions.append(announce(f"{wait.node}: the start waited {wait.waited_s:.1f} s for GPU memory", "info"))
    return actions


def _noted(wait: MemoryWait) -> list[object]:
    return [msgspec.to_builtins(holder) for holder in wait.holders[:MAX_HOLDERS]]


def _words(holder: MemoryHolder) -> str:
    size = "memory" if holder.used_bytes is None else f"{holder.used_bytes / (1 << 30):.1f} GiB"
    where = f"{size} of GPU {holder.index}"
    if not holder.pid:
        return f"{where}, by no process that is told"
    if holder.whose == FOREIGN:
        user = f" of user {holder.user}" if holder.user else ""
        return f"{where} by process {holder.pid} ({holder.command or 'hidden'}){user}, which is none of this run"
    rank = f" (rank {holder.rank})" if holder.rank >= 0 else ""
    how = "cannot be ended" if holder.whose == OURS else "has ended"
    return f"{where} by process {holder.pid}{rank}, which {how}"
