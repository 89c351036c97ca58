"""Nodes are tried together before they train: whether they are, and what follows from what was found.

A check never keeps training from starting: it has a deadline, it is not asked for anew where its answer got lost, and
what it finds leaves nodes out only where enough others are left to try.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, CheckNodes, Culprit
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Detected
from guardrun.supervisor.engine.recovery.decide import announce, isolate, report
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing
from guardrun.supervisor.engine.state.state import State, enter
from guardrun.supervisor.health.base.findings import DEFAULTS, Response, finding_id

LIMITS_S = {"quick": 30.0, "full": 300.0}
"""The edge's own limits are below these (fleet/checks/check_rounds.py): they are for answers that got lost."""
MOST = 3
"""Checks before one attempt: each one after the first is of other nodes, because some were found faulty."""
NOT_FIT = 71
"""As launcher/base/terminal_lines.py has it: the pre-flight found what no run can get past."""
CAUSE, KEY = "network", "network_preflight"
"""Of the incident, and finer, in the table of responses."""
CONFIDENCE = 0.9
ADVICE = "Look at its network (interface, firewall, cable) and its names; --guard-preflight=off starts all the same."
ADVICE_SUMS = "Look at its network and its devices; --guard-preflight=quick does without all-reduces."
MAX_SAID = 12


def expect(state: State, fleet: Fleet) -> None:
    """An attempt is about to be placed: what was found before holds while all of its nodes are still there."""
    fleet.checks_left = MOST
    if any(fleet.members[node].standing is not Standing.READY for node in fleet.placed):
        fleet.checked = []


def is_wanted(state: State, fleet: Fleet, placed: list[str]) -> bool:
    """Say whether these are to be tried together before they train."""
    if state.settings.check_nodes not in LIMITS_S or fleet.checks_left <= 0 or len(placed) < 2:
        return False
    return not set(placed) <= set(fleet.checked)


def ask(state: State, fleet: Fleet, ready: list[str], now_s: float) -> list[Action]:
    """Have them tried. ready: who is to train, and the spares that are there."""
    enter(state, Phase.CHECKING)
    state.ordered_s = now_s
    fleet.check += 1
    fleet.checks_left -= 1
    fleet.checked = list(ready)
    return [CheckNodes(check=fleet.check, nodes=list(fleet.checked), level=state.settings.check_nodes)]


def due_s(state: State) -> float | None:
    """When an answer is not waited for any longer."""
    if state.phase is not Phase.CHECKING:
        return None
    return state.ordered_s + LIMITS_S.get(state.settings.check_nodes, 0.0)


def note(state: State, fleet: Fleet, event: ev.NodesChecked, now_s: float) -> list[Action]:
    """Book what was found: a faulty node is an incident, and out where the policy says so; the rest blames nobody.

    Versions, code and clocks that differ, a pair or two halves that do not see each other, who is slow or does not
    answer in time: all that is said, and no more.
    """
    actions: list[Action] = [announce(f"pre-flight: {line}", level="warn") for line in event.said[:MAX_SAID]]
    if len(event.said) > MAX_SAID:
        actions.append(announce(f"pre-flight: {len(event.said) - MAX_SAID} more such findings", level="warn"))
    for node in event.faulty:
        if (member := fleet.members.get(node)) is not None:
            actions += _blame(state, fleet, event, member, now_s)
    return actions


def _blame(state: State, fleet: Fleet, event: ev.NodesChecked, member: Member, now_s: float) -> list[Action]:
    response = _response(state)
    incident, actions = report(state, _detected(state, event, member.node, response, now_s), now_s)
    if response is not Response.ISOLATE:
        return actions
    state.nodes.isolated[member.node] = incident.id
    if member.standing in (Standing.READY, Standing.SILENT):
        fleet.set_standing(member, Standing.OUT)
        member.since_s, member.why, member.is_unfit = now_s, f"incident {incident.id}: {CAUSE}", True
    return [*actions, isolate(state, member.node, incident.id, finding=incident.evidence["finding"])]


def _detected(state: State, event: ev.NodesChecked, node: str, response: Response, now_s: float) -> Detected:
    """Of the attempt that was about to start. The culprit is the node: no rank of it trains yet."""
    measured = event.evidence.get(node, {})
    advice = ADVICE_SUMS if measured.get("check") == "all_reduce" else ADVICE
    return Detected(
        attempt=state.next_attempt,
        kind="node",
        cause=CAUSE,
        confidence=CONFIDENCE,
        summary=f"pre-flight: {node} {event.faulty[node]}.",
        culprits=[Culprit(rank=None, local_rank=None, node=node, pid=None)],
        onset_s=now_s,
        evidence={
            **measured,
            "node": node,
            "finding": finding_id(CAUSE, f"node:{node}", "preflight"),
            "response": response.value,
            "record": "preflight-nodes.json",
            "place": f"preflight {node}",
        },
        advice=advice,
        level="bad",
        hint=advice,
        ends_with_progress=True,
        action="isolate_node" if response is Response.ISOLATE else "none",
    )


def _response(state: State) -> Response:
    """The user's word, else the table's; nothing where guardrun may not act."""
    if not state.may_act:
        return Response.NOTE
    said = state.settings.responses.get(KEY) or state.settings.responses.get(CAUSE)
    return Response(said) if said else DEFAULTS[KEY]


def look_again(state: State) -> None:
    """A new guardrun: who was unfit and is there once more has been released, and is tried like all others."""
    for member in state.fleet.members.values() if state.fleet is not None else ():
        if member.is_unfit:
            state.nodes.isolated.pop(member.node, None)


def too_few(fleet: Fleet) -> str:
    """Why no run is possible with those that are left; empty where no check has found anybody unfit."""
    unfit = [m.node for m in fleet.members.values() if m.is_unfit]
    if not unfit:
        return ""
    may_train = [m for m in fleet.members.values() if m.standing in (Standing.READY, Standing.SILENT)]
    return f"the pre-flight leaves {len(may_train)} of {fleet.plan.least} nodes: without {', '.join(unfit)}"
