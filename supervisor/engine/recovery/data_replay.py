"""After a resume: are samples trained on again, or left out? As ranks tell it (hooks/data/data_replay.py).

Once all ranks have told of a data loader it stands in the incident that led to the resume, among the run's notes and in
the attempt's record. A line says it where it is news. Nothing is done about it here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, Note
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import Attempt, State

TOPIC = "data_replay"
SEVERITY = ("skipped", "continued", "unknown", "reordered", "repeated", "left_out")
"""The worst comes last."""
MAX_LOADERS = 8
MAX_RANKS = 256
"""Of more no account is kept, nor could they agree on what to skip."""
LEVELS = {"skipped": "good", "repeated": "info", "reordered": "info", "left_out": "warn", "unknown": "warn"}
ADVICE = "`[checkpoint] exact_data = true` skips what was trained on before."
NOT_HERE = "[checkpoint] exact_data does nothing here: {why}"


def on_data_replayed(state: State, event: ev.DataReplayed, now_s: float) -> list[Action]:
    """Book it; once all ranks have told of this loader, it is said."""
    attempt = state.attempt
    if attempt is None or event.attempt != attempt.number or event.status not in SEVERITY:
        return []
    if event.global_rank not in attempt.ranks:
        return []
    if event.loader not in attempt.replays and len(attempt.replays) >= MAX_LOADERS:
        return []
    told = attempt.replays.setdefault(event.loader, {})
    told[event.global_rank] = event
    if len(told) < len(attempt.ranks):
        return []
    found = describe(attempt, is_exact=state.settings.exact_data)
    attempt.data_replay = found
    actions: list[Action] = []
    if incident := state.incidents.get(state.mending_incident):
        actions.append(change(state, incident.id, evidence={**incident.evidence, TOPIC: found}))
    return actions + _remark(state, attempt, found, now_s)


def why_not_here(state: State) -> list[Action]:
    """An attempt that resumes begins: say once if nothing can be skipped in this job."""
    is_many = state.attempt is not None and len(state.attempt.ranks) > MAX_RANKS
    why = f"it is for jobs of {MAX_RANKS} ranks at most" if is_many else ""
    why = "torchrun's own agent runs the ranks" if state.settings.is_torchrun_agent else why
    if not state.settings.exact_data or not why or TOPIC in state.notes:
        return []
    state.notes.append(TOPIC)
    return [announce(NOT_HERE.format(why=why), "warn")]


def describe(attempt: Attempt, *, is_exact: bool) -> dict[str, Any]:
    """What the attempt's ranks have told, as evidence has it: of the worst loader, with all of them in `loaders`.

    Counts are of all ranks together. is_exact: samples are to be skipped, and why that was not done is of interest.
    """
    size = len(attempt.ranks)
    complete = {loader: list(told.values()) for loader, told in attempt.replays.items() if len(told) == size}
    loaders = [_sum(loader, told) for loader, told in complete.items()]
    worst = max(loaders, key=lambda one: SEVERITY.index(one["status"]))
    found = {name: value for name, value in worst.items() if name != "loader"}
    found["said"] = make_sentence(worst, is_exact=is_exact)
    if len(loaders) > 1:
        found["loaders"] = loaders
    return found


def _sum(loader: str, told: Collection[ev.DataReplayed]) -> dict[str, Any]:
    worst = max(told, key=lambda one: SEVERITY.index(one.status))
    counts = {name: sum(max(0, getattr(one, name)) for one in told) for name in ("samples", "repeated", "left_out")}
    found: dict[str, Any] = {"loader": loader, "status": worst.status, "batches": worst.batches, **counts}
    if worst.epoch >= 0:
        found["epoch"] = worst.epoch
    if worst.passed_over:
        found["passed_over"] = worst.passed_over
    if worst.why:
        found["why"] = worst.why
    return found


def make_sentence(told: dict[str, Any], *, is_exact: bool) -> str:
    """A sentence."""
    of = f" of epoch {told['epoch']}" if "epoch" in told else ""
    why = f": {told['why']}" if told.get("why") else ""
    status = told["status"]
    if status == "skipped":
        by = ", as the script skips by itself" if told.get("passed_over") else ""
        return f"The {told['samples']} samples{of} that the checkpoint holds are not trained on again{by}."
    if status == "continued":
        return "The data go on where they were at the checkpoint."
    if status == "repeated":
        unskipped = f" They are not skipped{why}." if is_exact else ""
        return f"{told['repeated']} samples{of} that the checkpoint holds are trained on again.{unskipped}"
    if status == "left_out":
        return f"{told['left_out']} samples{of} are not trained on: the script goes on further than its checkpoint was."
    if status == "reordered":
        return (
            f"Samples{of} come in another order than before the checkpoint (a shuffle without a seed of its own, say): "
            "which are trained on twice, and which not at all, can't be told or avoided."
        )
    return f"Whether samples are trained on twice, or not at all, since the checkpoint is not known{why}."


def _remark(state: State, attempt: Attempt, found: dict[str, Any], now_s: float) -> list[Action]:
    """Keep it as a note in place of the attempt's before; say it where that one said something else."""
    before = state.remarks.get(TOPIC)
    is_exact, status = state.settings.exact_data, found["status"]
    state.remarks[TOPIC] = note = Note(
        topic=TOPIC,
        text=f"After the resume of attempt {attempt.number}: {found['said']}",
        advice=ADVICE if status == "repeated" and not is_exact else "",
        evidence=found,
        attempt=attempt.number,
        step=attempt.step if attempt.has_progress else None,
        at_s=now_s,
    )
    is_quiet = status == "continued" or (status == "unknown" and not is_exact)
    is_same = before is not None and before.evidence.get("status") == status
    if is_quiet or (before is not None and is_same and (before.attempt == attempt.number or status != "skipped")):
        return []
    return [announce(f"{found['said']} {note.advice}".rstrip(), LEVELS[status])]
