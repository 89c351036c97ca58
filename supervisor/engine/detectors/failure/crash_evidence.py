"""What a crash's incident shows: exits, the allocator's summary, room on disks, the file that could not be loaded."""

from __future__ import annotations

import re
from typing import Any

from guardrun.supervisor.engine.detectors.failure.memory import Crash
from guardrun.supervisor.engine.failures.cuda_memory import parse_memory, size
from guardrun.supervisor.engine.failures.exception_chain import layers_of
from guardrun.supervisor.engine.failures.failure_causes import lost_device
from guardrun.supervisor.engine.failures.root_cause import Fall, RootCause, is_peer_lost, is_shared_memory
from guardrun.supervisor.engine.incidents.evidence import MAX_FRAMES, frame_text, most_telling
from guardrun.supervisor.engine.model.looks import Reading
from guardrun.supervisor.engine.model.run_view import AttemptView

DISK_FULL_BYTES = 1024 * 1024
MAX_READINGS = 16
TOLD_LATE = frozenset({"device_assert", "illegal_access", "launch_failure"})
"""Errors of a kernel: whichever call asks for the device's state next raises them, steps later at worst."""
_PATH = re.compile(r"'(/[^']+)'|\"(/[^\"]+)\"")
_DEVICE_CAUSES = frozenset({"gpu_lost", "nccl_error", "cuda_oom", "abort", "exception"})


def crash_evidence(attempt: AttemptView, crash: Crash, found: RootCause, falls: list[Fall]) -> dict[str, Any]:
    """The incident's evidence, bounded however many ranks there are."""
    by_rank = {fall.global_rank: fall for fall in falls}
    evidence: dict[str, Any] = {
        "exits": [
            {
                "rank": n,
                "pid": attempt.ranks[n].rank.pid,
                "exitcode": by_rank[n].exitcode,
                "error": f"{e.error}: {e.message[:2000]}" if (e := by_rank[n].error) else None,
                "stopped_by_guardrun": by_rank[n].stopped_by_us,
                "lost_a_peer": is_peer_lost(by_rank[n]),
            }
            for n in most_telling(sorted(by_rank), found.culprits)
            if n in by_rank  # a culprit that what others called last tells may not have fallen yet
        ],
        "oom_kills": crash.oom_kills,
        "key": found.key,
    }
    if found.hint:
        evidence["hint"] = found.hint
    if crash.disk_free_bytes and found.cause in ("disk_full", "bus_error"):
        evidence["disk_free_bytes"] = crash.disk_free_bytes
    if found.error:
        evidence["error"] = found.layer.error if found.layer else found.error.error
        evidence["traceback"] = found.error.traceback
        if found.error.data:
            evidence["data"] = found.error.data
    elif tail := _last_words(found, by_rank):
        evidence["stderr"] = tail
    if found.place:
        evidence["spot"] = found.place
    if found.stack:
        evidence["stack"] = [frame_text(frame) for frame in found.stack[:MAX_FRAMES]]
    if found.cause == "disk_full" and (disk := _full_disk(found, crash.disk_free_bytes)):
        evidence["disk"] = disk
    if found.cause == "cuda_oom" and found.error and (memory := _memory(found)):
        evidence["memory"] = memory
    if readings := _odd(found, crash.readings):
        evidence["readings"] = readings
    return evidence


def _last_words(found: RootCause, by_rank: dict[int, Fall]) -> str:
    """The culprit's; of calls that did not meet, another rank may be the one that tells."""
    others = sorted(by_rank) if found.cause == "collective_mismatch" else []
    falls = [by_rank[rank] for rank in [*found.culprits[:1], *others] if rank in by_rank]
    return next((fall.stderr_tail for fall in falls if fall.stderr_tail), "")


def words(found: RootCause, evidence: dict[str, Any]) -> str:
    """What the sentence says beyond the error: where no room is left, which file, which device."""
    if disk := evidence.get("disk"):
        free = disk.get("free_bytes", -1)
        return f"; {disk['folder']} has {size(free)} left" if free >= 0 else ""
    if memory := evidence.get("memory"):
        gpu = f"GPU {memory['gpu']}" if "gpu" in memory else "its device"
        room = f", {size(memory['free_bytes'])} free" if "free_bytes" in memory else ""
        total = f" of {size(memory['total_bytes'])}" if memory.get("total_bytes") else ""
        return f"; {gpu}{total}{room}"
    if path := evidence.get("checkpoint"):
        return f"; it was loading {path}"
    if found.hint == "reading" and (device := next(iter(evidence.get("readings", [])), None)):
        return f"; {device['name']}: {device['note']}" if device["note"] else f"; {device['name']}"
    late = "; CUDA tells it late: what caused it was launched before" if found.hint in TOLD_LATE else ""
    if wrong := evidence.get("node_findings"):
        return f"{late}; at that time: {wrong[0].rstrip('.')}"
    return late


def failed_load(attempt: AttemptView, found: RootCause) -> str:
    """The checkpoint that could not be loaded: as the hooks said, as the error names it, else the one it was given."""
    if found.failed_load:
        return found.failed_load
    for layer in layers_of(found.error) if found.error else []:
        if match := _PATH.search(layer.message):
            return match[1] or match[2]
    is_fresh = attempt.resumed_from is not None and attempt.step <= attempt.resumed_from.step
    return attempt.resumed_from.path if attempt.resumed_from is not None and is_fresh else ""


def _memory(found: RootCause) -> dict[str, Any] | None:
    texts = [found.error.message] if found.error else []
    texts += [found.layer.message] if found.layer else []
    return next((memory for text in texts if (memory := parse_memory(text))), None)


def _full_disk(found: RootCause, free_bytes: dict[str, int]) -> dict[str, Any]:
    """The folder that has no room: the one that the error names, else the one with the least."""
    messages = [layer.message for layer in layers_of(found.error)] if found.error else []
    paths = [match[1] or match[2] for message in messages for match in _PATH.finditer(message)]
    if is_shared_memory(found.error):
        paths = ["/dev/shm", *paths]
    for path in paths:
        inside = [folder for folder in free_bytes if path == folder or path.startswith(folder.rstrip("/") + "/")]
        if inside:
            folder = max(inside, key=len)
            return {"folder": folder, "free_bytes": free_bytes[folder]}
    if paths:
        return {"folder": paths[0]}
    full = {folder: free for folder, free in free_bytes.items() if 0 <= free < DISK_FULL_BYTES}
    if not full:
        return {}
    folder = min(full, key=lambda one: full[one])
    return {"folder": folder, "free_bytes": full[folder]}


def _odd(found: RootCause, readings: list[Reading]) -> list[dict[str, Any]]:
    """What the node's sensors said that may have to do with it."""
    odd = [one for one in readings if one.is_odd]
    if found.cause in _DEVICE_CAUSES:
        odd.sort(key=lambda one: not lost_device([one]))
    return [{"name": o.name, "value": o.value, "unit": o.unit, "note": o.note} for o in odd[:MAX_READINGS]]
