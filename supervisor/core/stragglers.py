"""Ranks that have become slow, and for which all others wait: `slowdown`, cause `straggler`.

Who is suspected in a window is told by core/usual.py; a rank is told when it was so WINDOWS times in a row, and is well
again when it has come back to its place for as long as WELL. What its node's sensors say, and do not say of the others,
makes it more certain.

A rank that has been slower from the start is no straggler to us: most such are uneven work. Only where its node's
sensors say what the others' don't it is told, with low confidence; else once, as a remark.

Nothing is done about it, unless `[policy] responses` says `straggler = "isolate"`: then the node is kept from what
comes. Training goes on; and where all ranks are on one node, there is no other that it was slower than.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from guardrun.supervisor.core.actions import Action, Isolate, Say
from guardrun.supervisor.core.frames import rank_list
from guardrun.supervisor.core.incidents import change, open_slowdown
from guardrun.supervisor.core.node.finding import Response
from guardrun.supervisor.core.nodes import wrong_with
from guardrun.supervisor.core.sentences import seconds_text, who
from guardrun.supervisor.core.state import State, attempt_of
from guardrun.supervisor.core.steptimes import WARM_UP, Window
from guardrun.supervisor.core.usual import EARLY, LOSS, Suspect, excesses, steady, suspects

WINDOWS = 3
"""In a row: without continuity a third of such verdicts are wrong (Minder)."""
WELL = 2
MOST_TOLD = 3
"""Incidents a rank; one that comes and goes is not told for ever."""
MAX_CULPRITS = 64
CONFIDENCE = 0.75
WITH_SENSORS = 0.9
FROM_THE_START = 0.6
CAUSE = "straggler"


class _Told(NamedTuple):
    text: str
    sensors: list[str]
    confidence: float
    since_s: float


def on_window(state: State, window: Window, now_s: float) -> list[Action]:
    """A window is closed: who was slow in it, who has been slow for long enough, who is well again."""
    slow, known = state.slowdowns, attempt_of(state).ranks
    nodes = {rank: known[rank].rank.node for rank in window.shares if rank in known}
    found = suspects(window, slow.usual, nodes)
    slow.strikes = {each.rank: slow.strikes.get(each.rank, 0) + 1 for each in found}
    slow.since_s = {each.rank: slow.since_s.get(each.rank, window.began_s) for each in found}
    actions = _note_well(state, window, now_s)
    was_learning = not slow.usual.excess
    slow.usual.learn(window, {*slow.strikes, *slow.told})
    if was_learning and slow.usual.excess and slow.times.closed == WARM_UP + EARLY:
        actions += _note_steady(state, steady(slow.usual, window, nodes))
    actions += _with_sensors(state, window, nodes, now_s)
    due = [each for each in found if slow.strikes[each.rank] >= WINDOWS and _is_new(state, each.rank)]
    return actions + _tell(state, due, window, now_s) if due else actions


def _is_new(state: State, rank: int) -> bool:
    if rank in state.slowdowns.told:
        return False
    before = [each for each in state.incidents.values() if each.cause == CAUSE]
    return sum(any(culprit.rank == rank for culprit in each.culprits) for each in before) < MOST_TOLD


def _tell(state: State, found: list[Suspect], window: Window, now_s: float) -> list[Action]:
    slow = state.slowdowns
    ranks = [each.rank for each in found]
    since_s = min(slow.since_s[rank] for rank in ranks)
    sensors = _sensors(state, ranks, window)
    one = len(ranks) == 1
    text = (
        f"{who(attempt_of(state), ranks)} {'has' if one else 'have'} become slow: {_compared(found, window)}, for "
        f"{now_s - since_s:.0f} s{_said(sensors)}."
    )
    confidence = WITH_SENSORS if sensors else CONFIDENCE
    told = _Told(text=text, sensors=sensors, confidence=confidence, since_s=since_s)
    actions = _open(state, found, window, told, now_s)
    incident_id = next(reversed(state.incidents))
    slow.told.update(dict.fromkeys(ranks, incident_id))
    slow.usual.doubted = []
    return actions + _isolate(state, ranks, window, incident_id, now_s)


def _compared(found: list[Suspect], window: Window) -> str:
    worst = max(found, key=lambda each: each.own_s)
    it, its = ("it", "its") if len(found) == 1 else ("them", "their")
    factor = window.parts.step_s / (window.parts.step_s - min(each.loss_s for each in found))
    return (
        f"{seconds_text(worst.own_s)} of each step {'is' if len(found) == 1 else 'are'} {its} own work, "
        f"{seconds_text(worst.others_own_s)} the others', who wait for {it}: steps take {factor:.1f} times as long"
    )


def _said(sensors: list[str]) -> str:
    return f"; its node says: {'; '.join(text.rstrip('.') for text in sensors)}" if sensors else ""


def _open(state: State, found: list[Suspect], window: Window, told: _Told, now_s: float) -> list[Action]:
    slow, attempt = state.slowdowns, attempt_of(state)
    ranks = [each.rank for each in found]
    nodes = sorted({attempt.ranks[rank].rank.node for rank in ranks})
    excess = excesses(window)
    evidence: dict[str, Any] = {
        "ranks": rank_list(ranks),
        "nodes": nodes[:MAX_CULPRITS],
        "own_s": {str(each.rank): round(each.own_s, 4) for each in found[:MAX_CULPRITS]},
        "others_own_s": round(found[0].others_own_s, 4),
        "waited_s": {str(rank): round(window.shares[rank].waited_s, 4) for rank in ranks[:MAX_CULPRITS]},
        "step_s": {"usual": round(slow.usual.step_s, 4), "now": round(window.parts.step_s, 4)},
        "lost_share": round(min(each.loss_s for each in found) / window.parts.step_s, 3),
        "excess": {
            str(rank): {"usual": round(slow.usual.excess.get(rank, 0.0), 3), "now": round(excess[rank], 3)}
            for rank in ranks[:MAX_CULPRITS]
        },
        "compared": len(window.shares),
        "sensors": told.sensors,
        "place": f"straggler on {', '.join(nodes[:4])}",
    }
    _, actions = open_slowdown(
        state,
        cause=CAUSE,
        confidence=told.confidence,
        summary=told.text,
        culprits=ranks[:MAX_CULPRITS],
        onset_s=told.since_s,
        now_s=now_s,
        evidence=evidence,
    )
    return actions


def _isolate(state: State, ranks: list[int], window: Window, incident_id: str, now_s: float) -> list[Action]:
    """Keep the node from what comes, where the user has said so, and there is another to compare it with."""
    known = attempt_of(state).ranks
    nodes = {known[rank].rank.node for rank in ranks}
    is_wanted = state.settings.responses.get(CAUSE) == Response.ISOLATE.value
    if not is_wanted or not state.settings.act or state.is_held or len(nodes) != 1:
        return []
    (node,) = nodes
    if node in state.nodes.isolated or all(known[rank].rank.node == node for rank in window.shares):
        return []
    state.nodes.isolated[node] = incident_id
    summary = state.incidents[incident_id].summary
    return [
        change(state, incident_id, action="isolate_node"),
        Isolate(node=node, incident=incident_id, cause=CAUSE, summary=summary, evidence_s=now_s),
        Say(text=f"{node} is put under quarantine: training goes on, and is not started again there", level="warn"),
    ]


def _note_well(state: State, window: Window, now_s: float) -> list[Action]:
    """Those that have come back to their places; an incident is over with the last of its ranks."""
    slow = state.slowdowns
    if not slow.told or not slow.usual.excess:
        return []
    excess = excesses(window)
    for rank in slow.told:
        is_well = rank in excess and excess[rank] - slow.usual.excess.get(rank, 0.0) < LOSS / 2
        slow.well[rank] = slow.well.get(rank, 0) + 1 if is_well else 0
    actions: list[Action] = []
    for incident_id in sorted(set(slow.told.values())):
        ranks = [rank for rank, told in slow.told.items() if told == incident_id]
        if any(slow.well.get(rank, 0) < WELL for rank in ranks):
            continue
        for rank in ranks:
            del slow.told[rank], slow.well[rank]
        words = f"{who(attempt_of(state), ranks)} {'is' if len(ranks) == 1 else 'are'} as fast as before"
        actions.append(change(state, incident_id, recovered_s=now_s))
        actions.append(Say(text=f"incident {incident_id} is over: {words}", level="good"))
    return actions


# From the start ----------------------------------------------------------------------------------------


def _note_steady(state: State, found: list[Suspect]) -> list[Action]:
    """Slower since the first windows: remembered, and remarked once."""
    state.slowdowns.steady = [each.rank for each in found]
    note = "slower from the start"
    if not found or note in state.notes:
        return []
    state.notes.append(note)
    worst = max(found, key=lambda each: each.own_s)
    one = len(found) == 1
    text = (
        f"{who(attempt_of(state), state.slowdowns.steady)} {'has' if one else 'have'} worked longer than the others "
        f"from the start ({seconds_text(worst.own_s)} of each step, they {seconds_text(worst.others_own_s)}): uneven "
        f"work, or a slow node"
    )
    return [Say(text=text, level="info")]


def _with_sensors(state: State, window: Window, nodes: dict[int, str], now_s: float) -> list[Action]:
    """What has been slower from the start is told when its node's sensors say why."""
    slow = state.slowdowns
    if not slow.steady or not state.nodes.findings:
        return []
    found = steady(slow.usual, window, nodes)
    ranks = [each.rank for each in found]
    if ranks != slow.steady:
        return []
    sensors = _sensors(state, ranks, window)
    if not sensors:
        return []
    slow.steady = []
    text = (
        f"{who(attempt_of(state), ranks)} {'has' if len(ranks) == 1 else 'have'} been slower than the others from the "
        f"start: {_compared(found, window)}{_said(sensors)}."
    )
    since_s = attempt_of(state).started_s
    told = _Told(text=text, sensors=sensors, confidence=FROM_THE_START, since_s=since_s)
    return _open(state, found, window, told, now_s)


def _sensors(state: State, ranks: list[int], window: Window) -> list[str]:
    """What is wrong with their devices and nodes, and is not with the others'."""
    if not state.nodes.findings:
        return []
    others = [rank for rank in window.shares if rank not in set(ranks)]
    elsewhere = set(wrong_with(state, others))
    return [text for text in wrong_with(state, ranks) if text not in elsewhere]
