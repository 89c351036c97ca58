"""What people have changed in ranks that train, by `guardctl eval`, `set` and `scale`: what follows may come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.observation.frames import rank_list

MAX_KEPT = 64
MAX_TOLD = 8
"""In one incident."""
MAX_SAID = 3
"""In one sentence."""
MAX_TEXT = 300
NOT_RUN = "not run"
"""Outcome of one that has changed nothing, for certain."""


class HandChange(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a person's, and what became of it."""

    id: str
    at_s: float
    attempt: int
    global_ranks: list[int]
    verb: str
    """eval, set, scale."""
    text: str
    """The code, or the rest of the command."""
    who: str
    outcome: str = ""
    """As events.HandChangeEnded has it; empty: not known yet."""
    step: int | None = None
    """After which it was; None: not known."""
    changes: list[str] = []
    """In words, as far as they were seen."""
    is_undone: bool = False
    """A later attempt began without it."""


def begin(kept: Sequence[HandChange], event: ev.HandChangeAsked, now_s: float) -> list[HandChange]:
    """One more, the last MAX_KEPT of them."""
    change = HandChange(
        id=event.id,
        at_s=now_s,
        attempt=event.attempt,
        global_ranks=event.global_ranks,
        verb=event.verb,
        text=event.text[:MAX_TEXT],
        who=event.who,
    )
    return [*kept, change][-MAX_KEPT:]


def end(kept: Sequence[HandChange], event: ev.HandChangeEnded) -> tuple[list[HandChange], HandChange | None]:
    """The same with its outcome, and it; None: nobody knows of it."""
    found: HandChange | None = None
    changes = []
    for each in kept:
        if each.id == event.id and not each.outcome:
            seen = event.changes[:MAX_TOLD]
            found = msgspec.structs.replace(each, outcome=event.outcome, step=event.step, changes=seen)
        changes.append(found if found is not None and found.id == each.id else each)
    return changes, found


def said(change: HandChange) -> str:
    """`learning rate × 0.1 (0.01 → 0.001) in AdamW by eval at step 812`; where no change was seen, what was asked."""
    what = "; ".join(change.changes) or f"`{change.text}`"
    where = "" if change.step is None else f" at step {change.step}"
    ranks = f" in rank {rank_list(change.global_ranks)}" if change.verb == "eval" else ""
    unknown = "" if change.outcome in ("", "done") else f" ({change.outcome})"
    return f"{what} by {change.verb}{ranks}{where}{unknown}"


def before(kept: Sequence[HandChange], attempt: int, resumed_step: int | None) -> list[HandChange]:
    """Those that may have to do with an attempt: of its own, or in the checkpoint that it has resumed from."""
    return [
        each
        for each in kept
        if each.outcome != NOT_RUN and (each.attempt == attempt or (each.changes and _is_held(each, resumed_step)))
    ][-MAX_TOLD:]


def _is_held(change: HandChange, resumed_step: int | None) -> bool:
    """Whether what an attempt resumes from has it."""
    if change.is_undone or resumed_step is None or change.step is None:
        return False
    return change.step <= resumed_step


def begin_attempt(kept: Sequence[HandChange], attempt: int, resumed_step: int | None) -> tuple[list[HandChange], str]:
    """The same, and what is to be said of those that this attempt begins without; empty: there is none."""
    undone = [
        each
        for each in kept
        if each.attempt < attempt and each.changes and not each.is_undone and not _is_held(each, resumed_step)
    ]
    if not undone:
        return list(kept), ""
    changes = [msgspec.structs.replace(each, is_undone=True) if each in undone else each for each in kept]
    words = "; ".join(map(said, undone[-MAX_SAID:]))
    more = f" and {len(undone) - MAX_SAID} more before" if len(undone) > MAX_SAID else ""
    if resumed_step is None:
        start = "was given no checkpoint, so unless the script takes up a later one by itself, what was changed by hand"
    else:
        start = f"resumes from step {resumed_step}, so what was changed by hand after it"
    return changes, f"attempt {attempt} {start} is undone: {words}{more}"


def last_seen(changes: Sequence[HandChange]) -> HandChange | None:
    """The last one that has changed something that was seen; None: none has."""
    return next((each for each in reversed(changes) if each.changes), None)


def evidence(changes: Sequence[HandChange], now_s: float) -> list[dict[str, Any]]:
    """As an incident has them, the last one last."""
    return [
        {
            "said": said(each),
            "who": each.who,
            "verb": each.verb,
            "ranks": each.global_ranks,
            "step": each.step,
            "changes": each.changes,
            "code": each.text if each.verb == "eval" else "",
            "seconds_before": round(now_s - each.at_s, 1),
        }
        for each in changes
    ]


def hint(changes: Sequence[HandChange], step: int | None) -> str:
    """A sentence for an incident that such a change may well have caused; empty: no change was seen."""
    last = last_seen(changes)
    if last is None:
        return ""
    ago = (
        f", {step - last.step} steps before" if step is not None and last.step is not None and step >= last.step else ""
    )
    return f"Changed by hand before: {said(last)}{ago}."
