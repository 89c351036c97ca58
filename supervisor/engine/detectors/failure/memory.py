"""What the detector of failed ranks remembers."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.model.events import ExitTrace
from guardrun.supervisor.engine.model.looks import Reading


class Crash(msgspec.Struct, kw_only=True):
    """An attempt has lost a rank, and why is not told yet."""

    began_s: float
    decide_by_s: float
    """When exits are to be read (again); while they are being read, since when."""
    traces: list[ExitTrace] = []
    oom_kills: int = -1
    oom_pids: list[int] = []
    disk_free_bytes: dict[str, int] = {}
    readings: list[Reading] = []
    last_words: dict[str, str] = {}
    """As in ExitsRead, like those before it."""
    is_asked: bool = False
    is_stale: bool = False
    """The exits that are being read are not all any more."""
    key: str = ""
    """Of the incident that has told it without a culprit: what is read now may say who it is."""
