"""Tables of an incident's evidence (ranks, collectives, readings, skipped checkpoints), and what it cost."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.report.elements import evidence_reader as ev
from guardrun.supervisor.report.elements.html_page import Table, make_table
from guardrun.supervisor.report.elements.quantities import duration, parse_iso_time

MAX_ROWS = 200
MAX_TEXT = 160


def ranks_table(evidence: dict[str, Any], culprits: list[int]) -> Table | None:
    """What each rank did, equal ones in one row."""
    rows = ev.rank_rows(evidence, culprits)
    order = ("Does", *(heading for heading, _ in ev.COLUMNS))
    headings = [heading for heading in order if any(heading in row.cells for row in rows)]
    cells = [
        (
            "culprit" if row.is_culprit else "",
            [("✖ " if row.is_culprit else "") + row.rank_words, *(row.cells.get(heading, "") for heading in headings)],
        )
        for row in rows
    ]
    return make_table(["Rank", *headings], cells, wide=("Does", "Where", "Why"))


def collectives(evidence: dict[str, Any]) -> dict[str, Any]:
    """What was issued and what completed, call by call; the groups; what is not known."""
    found = evidence.get("collectives")
    data: dict[str, Any] = found if isinstance(found, dict) else {}
    entries = ev.entries(data, "rows")
    rows = [("odd" if row.get("is_odd") else "", _call(row)) for row in entries[:MAX_ROWS]]
    headings = ["", "Group", "No.", "Call", "Shapes", "State", "Ranks", "Line"]
    groups = [
        (
            "",
            [_text(g.get("name")), _text(g.get("desc")), _ranks(g.get("ranks")), _issued(g), _text(g.get("source"))],
        )
        for g in ev.entries(data, "groups")[:MAX_ROWS]
    ]
    trouble = data.get("trouble")
    told = trouble if isinstance(trouble, list) else [trouble] if trouble else []
    return {
        "calls": make_table(headings, rows, wide=("Shapes", "Ranks", "Line")),
        "left_out": len(entries) - MAX_ROWS,
        "groups": make_table(["Group", "Is", "Members", "Calls issued", "Known from"], groups, wide=("Members", "Is")),
        "troubles": [_text(item) for item in told[:8]],
    }


def mismatch(evidence: dict[str, Any]) -> dict[str, Any]:
    """The calls that can never meet, side by side, and what tells it."""
    found = evidence.get("mismatch")
    data: dict[str, Any] = found if isinstance(found, dict) else {}
    rows = [
        (
            "odd" if number else "",
            [_ranks(s.get("ranks")), _text(s.get("call")), _text(s.get("seq")), _text(s.get("group"))],
        )
        for number, s in enumerate(ev.entries(data, "sides")[:MAX_ROWS])
    ]
    told_by = _text(data.get("told_by"))
    return {
        "table": make_table(["Ranks", "Called", "No.", "Group"], rows, wide=("Called",)),
        "said": f"What tells it: {told_by}." if told_by else "",
    }


def workers_table(evidence: dict[str, Any]) -> Table | None:
    """The culprits' data workers."""
    rows = [
        (
            "",
            [
                _text(w.get("rank")),
                _text(w.get("pid")),
                _text(w.get("standing")).replace("_", " "),
                _text(w.get("at")),
                _text(w.get("file") or w.get("wchan")),
                _text(w.get("dead_mount")),
            ],
        )
        for w in ev.entries(evidence, "workers")[:MAX_ROWS]
    ]
    return make_table(
        ["Rank", "PID", "Does", "Where", "File", "Mount that does not answer"], rows, wide=("Where", "File")
    )


def hand_changes_table(evidence: dict[str, Any]) -> Table | None:
    """What people have changed before it, the last one first."""
    rows = [
        (
            "",
            [
                f"{duration(float(one['seconds_before']))} before" if _is_number(one.get("seconds_before")) else "",
                _text(one.get("step")),
                _text(one.get("who")),
                _text(one.get("said")),
                _text(one.get("code")),
            ],
        )
        for one in reversed(ev.entries(evidence, "changed_by_hand")[:MAX_ROWS])
    ]
    return make_table(["When", "Step", "Who", "What", "Code"], rows, wide=("What", "Code"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _call(row: dict[str, Any]) -> list[str]:
    sizes = row.get("sizes")
    shapes = (
        " ".join("×".join(map(str, size)) or "scalar" for size in sizes if isinstance(size, list))
        if isinstance(sizes, list)
        else _text(sizes)
    )
    dtype = _text(row.get("dtype"))
    return [
        "✖ odd" if row.get("is_odd") else "",
        _text(row.get("group")),
        _text(row.get("seq")),
        _text(row.get("op")),
        _text(f"{shapes} {dtype}".strip()),
        _text(row.get("state")),
        _ranks(row.get("ranks")),
        _text(row.get("where")),
    ]


def _issued(group: dict[str, Any]) -> str:
    issued = group.get("issued")
    if not isinstance(issued, dict):
        return _text(issued)
    if len(issued) == 1:
        return _text(next(iter(issued)))
    return _text("; ".join(f"{number} by {ranks}" for number, ranks in issued.items()))


def _ranks(value: Any) -> str:
    if isinstance(value, list):
        return rank_list([r for r in value if isinstance(r, int)])
    return _text(value)


def _text(value: Any) -> str:
    words = "" if value is None else " ".join(str(value).split())
    return words if len(words) <= MAX_TEXT else f"{words[:MAX_TEXT]} …"


def readings_table(evidence: dict[str, Any]) -> Table | None:
    """The node's readings, the odd ones first."""
    entries = sorted(ev.entries(evidence, "readings"), key=lambda reading: not reading.get("is_odd"))
    rows = [
        (
            "odd" if reading.get("is_odd") else "",
            [
                "✖ odd" if reading.get("is_odd") else "",
                _text(reading.get("name")),
                _value(reading),
                _text(reading.get("note")),
            ],
        )
        for reading in entries[:MAX_ROWS]
    ]
    return make_table(["", "Reading", "Value", "Note"], rows, wide=("Reading", "Note"))


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _value(reading: dict[str, Any]) -> str:
    value, unit = reading.get("value"), _text(reading.get("unit"))
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return _text(value)
    if unit in ("B", "bytes"):
        size = float(value)
        for name in _BINARY:
            if abs(size) < 1024 or name == _BINARY[-1]:
                return f"{size:.4g} {name}"
            size /= 1024
    return f"{value:.6g}{' ' if unit and unit != '%' else ''}{unit}"


def skipped_table(evidence: dict[str, Any]) -> Table | None:
    """Checkpoints that were not taken, and why."""
    rows = [("", [_text(e.get("path")), _text(e.get("reason"))]) for e in ev.entries(evidence, "skipped_checkpoints")]
    return make_table(["Path", "Reason"], rows[:MAX_ROWS], ("Path", "Reason"))


def left_out_table(evidence: dict[str, Any]) -> Table | None:
    """Samples that training did not see after a rollback, by rank."""
    ranks = evidence.get("left_out_batches")
    rows = [
        ("", [_text(rank), _text("; ".join(_text(batch).strip("[]") for batch in batches))])
        for rank, batches in (ranks.items() if isinstance(ranks, dict) else ())
        if isinstance(batches, list)
    ]
    return make_table(["Rank", "Samples, batch by batch"], rows[:MAX_ROWS], ("Samples, batch by batch",))


# Incident cost ------------------------------------------------------------------------------------------------------
# What was done about an incident, and what it cost.


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
        "action": f"{_action(record)} {ev.data_words(record)}".strip(),
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
