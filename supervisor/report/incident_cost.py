"""What was done about an incident, and what it cost."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.report.elements.quantities import duration, parse_iso_time

_ACTIONS = {
    "none": "Nothing was changed.",
    "restart": "All ranks were stopped and started again, {from_where}.",
    "isolate_node": "The ranks were started again without the node to blame, {from_where}.",
    "give_up": "The run was ended.",
}


def done(record: dict[str, Any]) -> dict[str, Any]:
    """The action as a sentence, whether this has been seen before, and the advice, paragraph by paragraph."""
    recurrence = record["evidence"].get("recurrence")
    said = recurrence.get("said") if isinstance(recurrence, dict) else None
    return {
        "action": _action(record),
        "seen_before": said if isinstance(said, str) else "",
        "advice": str(record.get("advice") or "").split("\n\n"),
    }


def _action(record: dict[str, Any]) -> str:
    resumed = record.get("resumed_from")
    from_where = f"from the checkpoint of step {resumed['step']}" if resumed else "from the beginning"
    if record.get("action") in ("restart", "isolate_node") and not resumed and not record.get("recovered"):
        # Written before the next attempt: what it starts from is chosen when nothing of this one is alive.
        return _ACTIONS[str(record["action"])].split(",")[0].rstrip(".") + "."
    return _ACTIONS.get(str(record.get("action")), "").format(from_where=from_where)


def figures(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The few numbers that one asks for first, each with its name."""
    onset_s, detected_s = parse_iso_time(record["onset"]), parse_iso_time(record["detected"])
    cards = [("found after", duration(max(detected_s - onset_s, 0.0)))]
    steps = steps_lost(record)
    if record.get("recovered"):
        recovered_s = parse_iso_time(record["recovered"])
        cards.append(("mended after", duration(max(recovered_s - detected_s, 0.0))))
        cards.append(("time lost", duration(max(recovered_s - onset_s, 0.0))))
    elif record.get("action") in ("restart", "isolate_node"):
        cards.append(("mended", "not yet"))
    if steps is not None:
        cards.append(("steps done again", str(steps)))
    elif record.get("step") is not None:
        cards.append(("at step", str(record["step"])))
    return cards


def steps_lost(record: dict[str, Any]) -> int | None:
    """Steps between the checkpoint and where it stopped; None where nothing was started again, or it cannot be told."""
    if record.get("action") not in ("restart", "isolate_node") or record.get("step") is None:
        return None
    resumed = record.get("resumed_from")
    if not resumed and not record.get("recovered"):
        return None
    return max(int(record["step"]) - int(resumed["step"] if resumed else 0), 0)
