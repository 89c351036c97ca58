"""What an assistant may ask next, by what has been found. Pure; guardrun's own words, with nothing of a run in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.engine.incidents.advice import ADVICE
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.frames import rank_list

KINDS = ("hang", "crash", "slowdown", "numeric", "memory", "node", "preemption")
STATES = ("training", "suspicious", "stalled", "held", "unfinished", "unreachable", *(phase.value for phase in Phase))
"""Of a run, as `guardctl status` has them."""
ACTIONS = {
    "none": "guardrun changed nothing",
    "restart": "guardrun restarted",
    "isolate_node": "guardrun left a node out",
    "give_up": "guardrun gave up",
}
OTHER = "other"
AROUND = 5
"""Steps before and after one that went wrong."""
_WHERE_TIME_WENT = (
    "SELECT rank, node, round(sum(time_s)/sum(steps),4) AS step_s, round(sum(work_s)/sum(steps),4) AS work_s, "
    "round(sum(waiting_s)/sum(steps),4) AS waiting_s, round(sum(data_s)/sum(steps),4) AS data_s, "
    "round(sum(gc_s)/sum(steps),4) AS gc_s FROM steps GROUP BY rank ORDER BY work_s DESC"
)
_ISSUED = "SELECT rank, max(issued) AS issued, max(completed) AS completed FROM collectives GROUP BY rank"
_MEMORY = (
    "SELECT rank, min(resident) AS least, max(resident) AS most, max(allocated) AS allocated, max(peak) AS peak "
    "FROM memory GROUP BY rank ORDER BY rank"
)


def word(value: Any, known: tuple[str, ...] | Mapping[str, Any]) -> str:
    """The word, if it is one of guardrun's own; whatever else stands there is OTHER."""
    return value if isinstance(value, str) and value in known else OTHER


def number(value: Any) -> int | None:
    """A number of steps or incidents, or nothing."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53
    return value if is_number else None


def cause_words(kind: Any, cause: Any) -> str:
    """`hang (rank_blocked)`."""
    return f"{word(kind, KINDS)} ({word(cause, ADVICE)})"


def ranks_words(culprits: Any) -> str:
    """`; culprit: rank 1`, of an incident or a diagnosis."""
    told = culprits if isinstance(culprits, list) else []
    ranks = [rank for one in told if isinstance(one, dict) and (rank := number(one.get("rank"))) is not None]
    if not ranks:
        return "; no rank is named as the culprit"
    return f"; culprit{'s' if len(ranks) > 1 else ''}: rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks[:64])}"


def _query(sql: str) -> str:
    return f'next: query {{"sql": "{sql}"}}'


def after_diagnosis(verdict: str, kind: Any) -> list[str]:
    """What to ask after `diagnose`."""
    match verdict:
        case an.HANG | an.SUSPICIOUS:
            return ["next: stacks has each rank's stack now", _query(_ISSUED)]
        case an.CRASHED:
            return ["next: incidents, and show with the last one: its traceback and its stacks"]
        case an.HEALTHY:
            return [f"where it is slow, {_query(_WHERE_TIME_WENT)}", "next: inspect has what ranks train with"]
        case an.FINISHED:
            return ["next: incidents has what happened on the way"]
        case _:
            return after_incident({"kind": kind})


def after_status(state: Any, incidents: int) -> list[str]:
    """What to ask after `status`."""
    stands = state in ("suspicious", "stalled", "unreachable")
    found = ["next: diagnose says what holds it up"] if stands else []
    if state == "unfinished":
        found.append("next: diagnose says how it ended")
    return found + (["next: incidents, and show for one of them"] if incidents else [])


def after_incident(record: Mapping[str, Any]) -> list[str]:
    """What to ask after `show`."""
    step = number(record.get("step"))
    match record.get("kind"):
        case "numeric" if step is not None:
            between = f"step BETWEEN {max(0, step - AROUND)} AND {step + AROUND}"
            return [
                _query(
                    "SELECT rank, first_step, step, loss, grad_norm, learning_rate, nonfinite, odd_step FROM metrics "
                    f"WHERE {between} ORDER BY step, rank"
                ),
                _query("SELECT rank, step, indices FROM batches WHERE source = 'odd' ORDER BY step, rank"),
            ]
        case "slowdown":
            return [_query(_WHERE_TIME_WENT)]
        case "memory":
            return [_query(_MEMORY)]
        case "hang":
            return ["next, while it lasts: diagnose, and stacks"]
        case "node":
            return [_query("SELECT time, node, cause, summary, advice FROM node_findings ORDER BY at_s")]
        case _:
            return []
