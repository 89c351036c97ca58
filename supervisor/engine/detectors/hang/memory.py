"""What the detector of hangs remembers."""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.repeated_frames import Loop


class Stall(msgspec.Struct, kw_only=True):
    """A suspicion with somebody to name: told, and so far nothing more."""

    summary: str
    culprits: list[int]
    place: str
    """Of the first culprit, as Judgement has it."""
    spot: str
    cause: str
    onset_s: float
    told_s: float
    acts_s: float | None
    """When it would be acted on, if it stays as it is; None: not by itself."""
    looks: list[str] = []
    """Folders of those that it was told by."""
    is_said: bool = False
    """On the terminal: each place once a run."""
    doubts: int = 0
    """Looks in a row that have shown somebody at work since."""


class Suspicion(msgspec.Struct, kw_only=True):
    """A job that shows no progress is being looked at."""

    began_s: float
    reason: str
    next_look_s: float
    looks: list[str] = []
    """Folders of the looks taken, oldest first."""
    last: dict[int, RankLook] = {}
    """Per rank, the look before: two in a row are judged, so that short work is not averaged away."""
    unmoved_since_s: dict[int, float] = {}
    """Per rank: since when nothing about it has moved."""
    moved_s: dict[int, float] = {}
    """Per rank: when it was last seen to get somewhere; not for those that never were."""
    loops: dict[int, Loop] = {}
    """Per rank that runs in code of its own: what looks have shown of it since."""
    places: dict[int, str] = {}
    """Per rank that is not waiting for others: where it was last seen. Remembered when the stall ends by itself."""
    awake: set[int] = set()
    """Ranks that were seen to wake up since anything else about them moved."""
    stall: Stall | None = None
    """What it was found to be, once that has lasted long enough to be told."""
    is_forced: bool = False
    """A person wants it ended: what the next look finds is the verdict."""
    busy_looks: int = 0
    found_key: str = ""
    """What the last two looks were found to say."""
    found_times: int = 0
    """How many times in a row."""
    was_native: bool = False
    """Native code was seen at work."""
    key: str = ""
    """Of the incident that a verdict opened, where it could not be acted on (observe only, held)."""
    advances: int = 0
    """AttemptView.advances when it began."""


class HangMemory(msgspec.Struct, kw_only=True):
    """Of one run: the suspicion that there is, and what stalls have taught."""

    attempt: int = -1
    suspicion: Suspicion | None = None
    look: int = 0
    """Number of the last look."""
    look_since_s: float | None = None
    """Since when it is waited for; None: none is."""
    next_quick_s: float = 0.0
    """No look for proof or a collection before this."""
    next_wait_s: float = 0.0
    """No look because ranks wait before this."""
    wait_pause_s: float = 0.0
    """Between two of these that found nothing: doubled each time."""
    remembered: dict[str, float] = {}
    """Stalls that ended by themselves: place → longest seconds."""
    past_stalls: dict[str, float] = {}
    """The same of earlier runs, by places as patience.py shortens them."""
    stalls: list[dict[str, Any]] = []
    """Those of this run that had been told, as summary.json shows them; the last ones."""
    told_places: list[str] = []
    """Places at which a stall has been said on the terminal."""
    stops_at: dict[str, int] = {}
    """How often the run has been stopped for a hang at a place."""
    count: int = 0
    """Of incidents."""
    has_told_blind: bool = False
    """That nobody can read what devices do has been said."""
    has_told_trouble: bool = False
    """That stacks are not as good as they could be has been said."""
