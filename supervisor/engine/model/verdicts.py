"""What may be answered to the question whether something is wrong; engine/recovery/decide.py alone acts on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Culprit


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """Something is wrong with the run: an incident."""

    key: str = ""
    """Chosen by the detector, unique in the run: later verdicts on the same incident name it. Empty: there are none."""
    kind: str
    """One of docs/incidents.md, like `cause`, which a new detector adds there."""
    cause: str
    confidence: float
    """0 to 1."""
    summary: str
    """One sentence."""
    culprits: Sequence[int | Culprit]
    """Global ranks; nodes where no rank of theirs is known."""
    onset_s: float
    """Since when, in the engine's seconds."""
    evidence: Mapping[str, Any]
    looks: Sequence[str] = ()
    """Folders of the looks that show it."""
    step: int | None = None
    """At which it happened; None: the attempt's furthest."""
    attempt: int | None = None
    """The one that it is about; None: the current one."""
    advice: str = ""
    """Empty: the cause's own."""
    level: str = "warn"
    """Of the line on the terminal, as Say has it."""
    hint: str = ""
    """Said after the summary on the terminal."""
    told_s: float | None = None
    """When it was first told; None: now."""
    acted_s: float | None = None
    """As Incident has it."""
    ends_with_progress: bool = False
    """It is over once training goes on; else when the detector says so (`Over`), or never."""
    action: str = "none"
    """What is done about it, as Incident has it."""
    stops_since_s: float | None = None
    """The attempt is ended for it, and the time since then counts as detecting; None: it is not."""
    is_uneven: bool = False
    """Ranks have made so different calls that torch's own comparison in the next attempt would not survive them."""
    node: str = ""
    """That is to blame. With action `isolate_node` it is put under quarantine; without an action, where the user's
    `[policy] responses` asks for it."""
    finding: str = ""
    """Id of the finding on that node which says so."""
    evidence_s: float | None = None
    """When that was seen last; None: now."""
    exit_code: int | None = None
    """Ranks have fallen: the attempt ends for this incident, and the run with this code if it is not begun anew."""
    avoid: str = ""
    """A checkpoint that could not be loaded, which is not chosen again."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """More is known of an incident that was reported, or more is done about it."""

    key: str
    evidence: Mapping[str, Any]
    """All of it, as it is now."""
    summary: str = ""
    """Empty or None, like those that follow: as it was."""
    action: str = ""
    acted_s: float | None = None
    cause: str = ""
    """With it comes the cause's own advice."""
    confidence: float | None = None
    culprits: Sequence[int | Culprit] | None = None
    level: str = ""
    """Of a line on the terminal that says its summary anew, as Say has it; empty: nothing is said."""
    stops_since_s: float | None = None
    """As Detected has it."""
    node: str = ""
    """Likewise."""
    is_uneven: bool = False
    """Likewise."""
    exit_code: int | None = None
    """Of the run, likewise; None: as it was."""
    avoid: str = ""
    """As Detected has it."""


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """What an incident reported is no more."""

    key: str
    text: str
    """What shows it: `rank 3 on node-b is as fast as before`."""


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Worth a line on the terminal, and no incident."""

    text: str
    level: str = "info"
    """As Say has it."""
    topic: str = ""
    """One of docs/incidents.md's notes: it is kept, with the topic's advice, and said once a run. Empty: only said."""
    evidence: Mapping[str, Any] = {}
    """Of a note: measurements."""


class LookWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks are to be looked at: action TakeLook."""

    look: int
    attempt: int
    reason: str


class ExitsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempt's ranks left behind as they ended is to be read: action ReadExits."""

    attempt: int


class ExceptionsCaught(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks train on after an exception that looked uncaught: it is no evidence of anything."""

    global_ranks: Sequence[int]


class BadStep(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the one step that poisoned parameters, and of its batches."""

    named: Mapping[int, ev.BatchesNamed]
    """Per rank, the batches around its first step that was not finite."""
    is_clear: bool
    """It was in that step that parameters were poisoned; else in that or the one before."""
    is_step_known: bool
    """Values are seen in each step."""


class Poisoned(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained is spoilt on all ranks, and will stay so: only a checkpoint from before helps."""

    key: str
    """Of the incident, as it was detected."""
    step: int
    """The first one that was not finite, or far off."""
    within: int = 1
    """Steps: where it goes wrong as near to an earlier one, it is the same again."""
    since_s: float
    """When the first report of it came."""
    from_step: int
    """Checkpoints of this attempt from this step on may be spoilt; those of earlier ones are not."""
    bad_step: BadStep | None = None
    """None: it went wrong by and by, and which batches did it isn't known."""


class RunsOut(msgspec.Struct, frozen=True, kw_only=True):
    """When the memory that an incident is about has nothing left, as seen now, in the engine's seconds."""

    key: str
    """Of the incident, as it was detected."""
    soonest_s: float | None = None
    """At the highest rate that it may have. None, with the other: it is not seen to go on right now."""
    usual_s: float | None = None
    """At the rate of late."""


class Diverged(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas are not equal any more: whoever doesn't want that trained on has the run stopped."""

    key: str
    """Of the incident, as it was detected."""


class StopWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A rank has failed: the others are to be stopped at once. Why is told later."""

    since_s: float
    """When the first one did: the time since then counts as detecting."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt is to be ended, as a person wanted, and nobody is to blame."""


Verdict = (
    Detected
    | Changed
    | Over
    | Remark
    | LookWanted
    | ExitsWanted
    | ExceptionsCaught
    | Poisoned
    | Diverged
    | RunsOut
    | StopWanted
    | Ended
)
