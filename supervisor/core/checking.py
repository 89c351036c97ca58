"""Nodes are tried together before they train: whether they are, and what follows from what was found.

A check never keeps training from starting: it has a deadline, it is not asked for anew where its answer got lost, and
what it finds leaves nodes out only where enough others are left to try.
"""

from __future__ import annotations

from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.actions import Action, CheckNodes, Say
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.core.members import Fleet, Standing
from guardrun.supervisor.core.state import State

LIMITS_S = {"quick": 15.0, "full": 300.0}
"""The edge's own limits are below these (coordinator/checks.py): they are for answers that got lost."""
MOST = 3
"""Checks before one attempt: each one after the first is of other nodes, because some were found faulty."""
NOT_FIT = 71
"""As launcher/exits.py has it: the pre-flight found what no run can get past."""
ADVICE = "Look at its network (interface, firewall, cable) and its names; --guard-preflight=off starts all the same."
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


def ask(state: State, fleet: Fleet, placed: list[str], now_s: float) -> list[Action]:
    """Have them tried, and the spares that are there with them."""
    state.phase, state.ordered_s = Phase.CHECKING, now_s
    fleet.check += 1
    fleet.checks_left -= 1
    ready = [m.node for m in fleet.members.values() if m.standing is Standing.READY]
    fleet.checked = list(dict.fromkeys([*placed, *ready]))
    return [CheckNodes(check=fleet.check, nodes=list(fleet.checked), level=state.settings.check_nodes)]


def due_s(state: State) -> float | None:
    """When an answer is not waited for any longer."""
    if state.phase is not Phase.CHECKING:
        return None
    return state.ordered_s + LIMITS_S.get(state.settings.check_nodes, 0.0)


def note(state: State, fleet: Fleet, event: ev.NodesChecked, now_s: float) -> list[Action]:
    """Book what was found: faulty nodes are out, the rest is said."""
    actions: list[Action] = [Say(text=f"pre-flight: {line}", level="warn") for line in event.said[:MAX_SAID]]
    if len(event.said) > MAX_SAID:
        actions.append(Say(text=f"pre-flight: {len(event.said) - MAX_SAID} more such findings", level="warn"))
    for node, why in event.faulty.items():
        member = fleet.members.get(node)
        if member is None:
            continue
        actions.append(Say(text=f"pre-flight: {node} {why}. {ADVICE}", level="bad"))
        if state.settings.act and member.standing in (Standing.READY, Standing.SILENT):
            fleet.stand(member, Standing.OUT)
            member.since_s, member.why, member.is_unfit = now_s, f"pre-flight: it {why}", True
    return actions


def too_few(fleet: Fleet) -> str:
    """Why no run is possible with those that are left; empty where one is, or may become so."""
    may_train = [m for m in fleet.members.values() if m.standing in (Standing.READY, Standing.SILENT)]
    unfit = [m.node for m in fleet.members.values() if m.is_unfit]
    expected = (
        fleet.plan.most + fleet.plan.spares - sum(m.standing is not Standing.LEFT for m in fleet.members.values())
    )
    if not unfit or len(may_train) + max(expected, 0) >= fleet.plan.least:
        return ""
    return f"the pre-flight leaves {len(may_train)} of {fleet.plan.least} nodes: without {', '.join(unfit)}"
