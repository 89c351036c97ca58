"""Nodes that are lost: what is told of it, who is to blame for it, and who is kept out of what comes.

Where all that the head heard (two nodes at least, spares included) fall silent within seconds, that each of them has
failed cannot be told from that the head is cut off: nobody is to blame. With a single other node nothing can be told
apart, and it is held to be that one. Where some are still heard, the head's link is well, and the others are lost.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.model.actions import Action, Culprit
from guardrun.supervisor.engine.model.derived_events import ExitsExplained
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Detected
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.recovery.decide import announce, observe, report, stop_for
from guardrun.supervisor.engine.recovery.eviction import isolate_lost
from guardrun.supervisor.engine.recovery.restart_policy import decide_restart
from guardrun.supervisor.engine.state.incidents import change, culprits_of
from guardrun.supervisor.engine.state.job_nodes import MAX_NAMED, Fleet, Member, Standing
from guardrun.supervisor.engine.state.state import Attempt, State

TOGETHER_S = 5.0
"""Nodes pulse once a second: of those that are cut off in one moment the last words differ by one or two."""
CONFIDENCE = 0.95
UNREACHED_CONFIDENCE = 0.8
"""That it is nobody's fault: all others may have failed in one moment, each by itself."""
ADVICE = "Look at what these nodes share: a switch, power, a rack."
ADVICE_CUT = "Look at the head's own link first (interface, cable, switch port), then at what joins it with the others."
ADVICE_ENDED = (
    "See who, or what, has ended guardrun on all of these nodes at once; then at what they share: power, a switch."
)
MANY = 8
"""More nodes than that do not fail by themselves in one moment: what they share has (a switch, power), and none of them
is isolated. Like all that are lost they are the next spares once they are heard."""
MAX_LISTED = 64
"""Nodes whose silence an incident's evidence has one by one."""

Evidence = dict[str, Any]


def trains(state: State, member: Member) -> bool:
    """Whether ranks of the attempt live on the node, rather than that it waits as a spare."""
    return member.is_placed and state.phase in (Phase.RUNNING, Phase.STOPPING)


def lose(state: State, members: list[Member], now_s: float) -> list[Action]:
    """Nodes are gone: one incident where ranks of theirs are, a line each where they were spares."""
    fleet, attempt = state.fleet, state.attempt
    assert fleet is not None
    members = sorted(members, key=lambda member: member.order)
    cut = _mark_cut(state, fleet, members)
    missed = [member for member in members if attempt is not None and trains(state, member)]
    idle = [member for member in members if member not in missed and not (missed and member.node in cut)]
    actions: list[Action] = [announce(f"{member.node} is lost: {member.why}", level="warn") for member in idle]
    if attempt is None:
        return actions
    missed = [member for member in missed if not _has_ended_well(attempt, member)]
    if state.verdict_incident:
        return actions + _lose_too(state, attempt, missed, cut, now_s)
    to_blame = [member for member in missed if member.node not in cut]
    if to_blame:
        return actions + _tell_lost(state, attempt, to_blame, now_s)
    return actions + _tell_cut(state, cut, missed, now_s) if missed else actions


def lost_meanwhile(state: State, now_s: float) -> list[Action]:
    """An attempt has started; a node that was lost while it did is missing in it, and nobody gets anywhere."""
    fleet = state.fleet
    gone = (Standing.LOST, Standing.LEFT, Standing.OUT)
    members = [fleet.members[node] for node in fleet.placed] if fleet is not None else []
    lost = [member for member in members if member.standing in gone]
    return lose(state, lost, now_s) if lost else []


def _has_ended_well(attempt: Attempt, member: Member) -> bool:
    ranks = _ranks_of(attempt, member.node)
    return bool(ranks) and all(attempt.ranks[number].exitcode == 0 for number in ranks)


def _ranks_of(attempt: Attempt, node: str) -> list[int]:
    return sorted(number for number, known in attempt.ranks.items() if known.rank.node == node)


def cut_off(fleet: Fleet, head: str, since_s: float) -> list[str]:
    """All other nodes that the head heard until since_s, if it has heard none of them since; else nobody."""
    found: list[Member] = []
    for member in fleet.members.values():
        if member.node == head or member.standing in (Standing.OUT, Standing.LEFT):
            continue
        after_s = member.since_s - since_s
        if member.standing is Standing.READY or after_s > TOGETHER_S:
            return []
        if after_s >= -TOGETHER_S:
            found.append(member)
    return [member.node for member in sorted(found, key=lambda one: one.order)] if len(found) > 1 else []


def _mark_cut(state: State, fleet: Fleet, members: list[Member]) -> list[str]:
    """Nodes of which it cannot be told whether they, or the head, are cut off: these, and those silent with them."""
    cut: dict[str, None] = {}
    for member in members:
        if member.standing is Standing.LOST and member.node not in cut:
            cut |= dict.fromkeys(cut_off(fleet, state.node, member.since_s))
    for node in cut:
        fleet.members[node].is_cut = True
    return list(cut)


def _tell_lost(state: State, attempt: Attempt, members: list[Member], now_s: float) -> list[Action]:
    """The incident, what is to be done with the nodes, and the stop."""
    first = members[0]
    nodes = [member.node for member in members]
    onset_s = min(member.since_s for member in members)
    evidence: Evidence = {
        "node": first.node,
        "last_heard_s": round(onset_s, 3),
        "silent_s": round(now_s - onset_s, 1),
        "connection_closed": all(member.is_dropped for member in members),
        "place": f"node_lost {', '.join(nodes)}",
        "nodes": nodes,
        "lost": [_silence(member, now_s) for member in members[:MAX_LISTED]],
    }
    ranks = sorted(number for node in nodes for number in _ranks_of(attempt, node))
    held = not state.may_act
    action = "isolate_node" if len(members) <= MANY else "restart"
    detected = Detected(
        kind="node",
        cause="node_lost",
        confidence=CONFIDENCE,
        summary=_summary_of_one(first, ranks) if len(members) == 1 else _summary(nodes, ranks, evidence["lost"]),
        culprits=_culprits(state, attempt, nodes),
        onset_s=onset_s,
        evidence=evidence,
        advice=ADVICE if len(members) > 1 else "",
        level="bad",
        ends_with_progress=True,
        action="none" if held else action,
    )
    return _act_on(state, detected, members, now_s)


def _act_on(state: State, detected: Detected, to_blame: list[Member], now_s: float) -> list[Action]:
    incident, actions = report(state, detected, now_s)
    if incident.action == "none":
        return actions
    actions += observe(state, ExitsExplained(), now_s)  # of ranks that lost them
    if len(to_blame) <= MANY:
        actions += _isolate(state, incident.id, to_blame, now_s)
    if state.phase is Phase.RUNNING:
        return actions + stop_for(state, incident.id, onset_s=incident.onset_s, now_s=now_s, is_well=True)
    # Its peers fell first, and the rest is being stopped for them already.
    state.verdict_incident, state.exit_code = incident.id, 1
    return actions + decide_restart(state, now_s)


def _isolate(state: State, incident_id: str, members: list[Member], now_s: float) -> list[Action]:
    actions: list[Action] = []
    for member in members:
        if member.standing is not Standing.LEFT:  # who has ended its guardrun there is not known to be the node
            member.incident = incident_id
            actions += isolate_lost(state, member.node, incident_id, now_s)
    return actions


# Together, and right after ---------------------------------------------------------------------------------


def _lose_too(state: State, attempt: Attempt, members: list[Member], cut: list[str], now_s: float) -> list[Action]:
    """More are lost while an incident is being dealt with: they belong to it where it is the loss of others."""
    incident = state.incidents[state.verdict_incident]
    unreached = set(incident.evidence.get("unreached", []))
    # Of another cause, somebody has been blamed already, maybe for what these nodes did to them.
    is_theirs = incident.cause == "node_lost" and not unreached
    until_s = incident.detected_s + TOGETHER_S
    more = [m for m in members if is_theirs and m.node not in cut and m.since_s <= until_s]
    actions: list[Action] = [
        announce(f"{member.node} is lost, too: {member.why}", level="warn")
        for member in members
        if member.node not in unreached
    ]
    if not more:
        return actions
    nodes = [*incident.evidence["nodes"], *(m.node for m in more if m.node not in incident.evidence["nodes"])]
    lost = [*incident.evidence["lost"], *(_silence(member, now_s) for member in more)][:MAX_LISTED]
    culprits = _culprits(state, attempt, nodes)
    ranks = sorted(one.rank for one in culprits if one.rank is not None)
    actions.append(
        change(
            state,
            incident.id,
            summary=_summary(nodes, ranks, lost),
            culprits=culprits,
            advice=ADVICE,
            evidence={**incident.evidence, "nodes": nodes, "lost": lost},
        )
    )
    return actions + _isolate(state, incident.id, more, now_s) if len(nodes) <= MANY else actions


def _tell_cut(state: State, cut: list[str], members: list[Member], now_s: float) -> list[Action]:
    """The head hears nobody any more: that is told, and nobody is blamed."""
    onset_s = min(member.since_s for member in members)
    closed = all(member.is_dropped for member in members)
    own = "what has ended them all at once" if closed else "its own link"
    why = f"it is {own}, or what joins them, rather than any one of them"
    evidence: Evidence = {
        "head": state.node,
        "unreached": cut,
        "last_heard_s": round(onset_s, 3),
        "silent_s": round(now_s - onset_s, 1),
        "connection_closed": closed,
        "why_no_culprit": why,
        "place": f"node_lost by {state.node}",
    }
    heard = f"{'their connections were closed, and ' if closed else ''}nothing has been heard of them for"
    detected = Detected(
        kind="node",
        cause="node_lost",
        confidence=UNREACHED_CONFIDENCE,
        summary=f"The head ({state.node}) can reach none of its {len(cut)} other nodes ({_names(cut)}): {heard} "
        f"{now_s - onset_s:.0f} s; {why}.",
        culprits=[],
        onset_s=onset_s,
        evidence=evidence,
        advice=ADVICE_ENDED if closed else ADVICE_CUT,
        level="bad",
        ends_with_progress=True,
        action="restart" if state.may_act else "none",
    )
    return _act_on(state, detected, [], now_s)


def _silence(member: Member, now_s: float) -> Evidence:
    """A node's own part of the evidence."""
    return {
        "node": member.node,
        "last_heard_s": round(member.since_s, 3),
        "silent_s": round(now_s - member.since_s, 1),
        "connection_closed": member.is_dropped,
        "why": member.why,
        "has_left": member.standing is Standing.LEFT,
    }


def _culprits(state: State, attempt: Attempt, nodes: list[str]) -> list[Culprit]:
    """Their ranks; a node itself, where it has none in this attempt."""
    found: list[Culprit] = []
    for node in nodes:
        ranks = culprits_of(attempt, _ranks_of(attempt, node), state.detectors.node_health.devices)
        found += ranks or [Culprit(rank=None, local_rank=None, node=node, pid=None)]
    return found


# Words -----------------------------------------------------------------------------------------------------


def _summary_of_one(member: Member, ranks: list[int]) -> str:
    whose = f" and its ranks {rank_list(ranks)}" if len(ranks) > 1 else f" and its rank {ranks[0]}" if ranks else ""
    gone = f"{'are' if ranks else 'is'} gone" if member.standing is Standing.LEFT else "cannot be reached"
    return f"{member.node}{whose} {gone}: {member.why}."


def _summary(nodes: list[str], ranks: list[int], lost: list[Evidence]) -> str:
    """Several nodes'. lost: as `_silence` has it; of the first ones."""
    whose = f" and their ranks {rank_list(ranks)}" if ranks else ""
    gone = "are gone" if all(one["has_left"] for one in lost) else "cannot be reached"
    return f"{_names(nodes)}{whose} {gone}: {_why(lost)}."


def _why(lost: list[Evidence]) -> str:
    closed = {one["connection_closed"] for one in lost}
    if len(closed) == 1 and not any(one["has_left"] for one in lost):
        heard = f"nothing has been heard of them for {min(one['silent_s'] for one in lost):.0f} s"
        return f"their connections were closed, and {heard}" if closed == {True} else heard
    return "; ".join(f"{one['node']}: {one['why']}" for one in lost[:MAX_NAMED])


def _names(nodes: list[str]) -> str:
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return f"{', '.join(nodes[:MAX_NAMED])}{more}"
