"""What a device's allocator holds, and which lines asked for it, on a person's request (`guardctl memory --device`).

torch's caching allocator keeps for a while with each allocation where in Python it was made, and then tells all of its
blocks, and what it did last (torch.cuda.memory._record_memory_history, _snapshot). The file that comes of it is for
torch's own viewer (pytorch.org/memory_viz). It is a pickle, which nobody but its owner is to open: what is shown of it
as text is summed up here, in the rank that has it.

What it costs: an allocation takes some microseconds more meanwhile. The snapshot itself holds the GIL, for some
microseconds a block and an entry of the history, of which MAX_ENTRIES are kept. A script that keeps a history itself
has it left as it is: there the snapshot is of that.

The calls are the allocator's own; none of them asks the device, and none is made while a graph is captured.
"""

from __future__ import annotations

import os
import pickle
import sys
from time import monotonic_ns

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import MAX_SECONDS, snapshot_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_ENTRIES = 20_000
"""Of the history: allocations, and what was freed."""
ROOM_BYTES = 512 << 20
LATE_NS = 10_000_000_000
"""After the time is over, that the end of a capture is waited for."""
TOP = 15
MAX_NAME_CHARS = 120
MAX_FRAMES = 64
KINDS = ("cuda", "xpu")
_CAPTURES = int(Field.CAPTURES)


class DeviceSnapshot:
    """One request. Arguments: `seconds`."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        seconds = float(arguments.get("seconds") or 0.0)
        if not 1 <= seconds <= MAX_SECONDS:
            raise ValueError(f"from 1 to {MAX_SECONDS:g} seconds can be recorded, not {seconds:g}")
        torch: Any = sys.modules.get("torch")
        memory = find_memory(torch)
        if memory is None:
            raise ValueError("it uses no device whose allocator keeps a history (torch.cuda.memory)")
        self._rank, self._memory = rank, memory
        self._is_scripts = is_recording(torch)
        self._is_ours = False
        self._began_ns = monotonic_ns()
        self.ends_ns = self._began_ns + int(seconds * 1e9)
        if not self._is_scripts:
            memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=MAX_ENTRIES)
            self._is_ours = True

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """The answer, when the time is over, and no graph is captured."""
        if now_ns < self.ends_ns:
            return None
        if self._rank.words[_CAPTURES]:
            if now_ns > self.ends_ns + LATE_NS:
                raise ValueError("it captures a graph all the time, in which nothing may be asked of its device")
            return None
        seconds = (monotonic_ns() - self._began_ns) / 1e9
        found = os.statvfs(self._rank.sockets)
        if found.f_bavail * found.f_frsize < ROOM_BYTES:
            raise ValueError(f"{self._rank.sockets} has less than the {ROOM_BYTES >> 20} MB of room that it may take")
        began_ns = monotonic_ns()
        snapshot = self._memory._snapshot()
        self.end()
        held_ns = monotonic_ns() - began_ns
        path = os.path.join(self._rank.sockets, snapshot_name(self._rank.attempt, self._rank.global_rank))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            pickle.dump(snapshot, file)
        told = sum_up(snapshot)
        return {**told, "seconds": round(seconds, 1), "is_scripts": self._is_scripts, "held_s": round(held_ns / 1e9, 3)}

    def end(self) -> None:
        """Keep no history any more, where it was us who began it."""
        if self._is_ours and os.getpid() == self._rank.pid:
            self._memory._record_memory_history(enabled=None)
        self._is_ours = False


def find_memory(torch: Any) -> Any:
    """The module of a device that is in use whose allocator keeps a history; None: there is none."""
    for kind in KINDS:
        module: Any = getattr(torch, kind, None)
        memory = getattr(module, "memory", None)
        if hasattr(memory, "_record_memory_history") and hasattr(memory, "_snapshot") and module.is_initialized():
            return memory
    return None


def is_recording(torch: Any) -> bool:
    """Whether the script keeps a history itself; where torch can't tell, it does not."""
    asks = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(asks()) if asks is not None else False


# What is told of it ------------------------------------------------------------------------------------------------


def sum_up(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot in figures: what is held, by the line that asked for it, and what went through the history."""
    held: dict[tuple[str, int, str], list[int]] = {}
    reserved = allocated = largest_free = 0
    segments = snapshot["segments"]
    for segment in segments:
        reserved += segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                largest_free = max(largest_free, block["size"])
                continue
            allocated += block["size"]
            _add(held, _site(block.get("frames") or ()), block["size"])
    asked: dict[tuple[str, int, str], list[int]] = {}
    entries = 0
    for trace in snapshot.get("device_traces") or ():
        entries += len(trace)
        for entry in trace:
            if entry["action"] == "alloc":
                _add(asked, _site(entry.get("frames") or ()), entry["size"])
    unknown = held.pop(UNKNOWN, [0, 0])
    return {
        "reserved_bytes": reserved,
        "allocated_bytes": allocated,
        "largest_free_bytes": largest_free,
        "segments": len(segments),
        "unknown_bytes": unknown[0],
        "unknown_blocks": unknown[1],
        "held": _top(held),
        "held_left_out": max(0, len(held) - TOP),
        "asked": _top(asked),
        "entries": entries,
        "is_full": entries >= MAX_ENTRIES,
    }


UNKNOWN = ("", 0, "")
"""The line of what was allocated before the history began."""


def _site(frames: Any) -> tuple[str, int, str]:
    """The innermost line that is not torch's own; torch's where there is no other."""
    own = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/nowhere/torch") + os.sep
    first = UNKNOWN
    for frame in frames[:MAX_FRAMES]:
        name = str(frame["filename"])
        if not name.endswith((".py", ">")) and "." in os.path.basename(name):
            continue  # C++
        site = (name[:MAX_NAME_CHARS], int(frame["line"]), str(frame["name"])[:MAX_NAME_CHARS])
        if not name.startswith((own, "<")):
            return site
        if first == UNKNOWN:
            first = site
    return first


def _add(sums: dict[tuple[str, int, str], list[int]], site: tuple[str, int, str], size: int) -> None:
    one = sums.setdefault(site, [0, 0])
    one[0] += size
    one[1] += 1


def _top(sums: dict[tuple[str, int, str], list[int]]) -> list[dict[str, Any]]:
    best = sorted(sums.items(), key=lambda one: -one[1][0])[:TOP]
    return [
        {"file": file, "line": line, "function": function, "bytes": size, "blocks": blocks}
        for (file, line, function), (size, blocks) in best
    ]
