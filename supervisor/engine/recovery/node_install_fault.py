"""An import that fails on one node only: what is installed there is not what the others have.

It would only happen again there; on another node it would not. What tells it from a module that nobody has is that
other nodes' ranks got further: they have entered process-group creation, or done anything at all, and none of this
node's has. Where it fails later than that, on whichever rank comes to it first while the others wait, or before anybody
has got so far, nothing can be told.

A script may have one rank alone import something, and that rank then fails on every node: a place is swapped once, for
a spare, and such a node is under no quarantine.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.failures.root_cause import is_lasting
from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.state.job_nodes import Fleet, Standing
from guardrun.supervisor.engine.state.state import State

PAST_IMPORTS = 4 | 8 | 16
"""Bits of RankState.milestones: INIT_ENTERED, INIT_DONE, FIRST_PROGRESS (hooks/wire/board.py, Milestone)."""


def lacking_node(state: State, incident: Incident) -> str:
    """The one node that an import failed on, and that lacks what others have; empty where that is not so."""
    fleet, attempt = state.fleet, state.attempt
    if fleet is None or attempt is None or incident.kind != "crash":
        return ""
    if not is_lasting(incident.cause, str(incident.evidence.get("error", ""))):
        return ""
    nodes = {culprit.node for culprit in incident.culprits}
    if len(nodes) != 1:
        return ""
    past = {known.rank.node for known in attempt.ranks.values() if known.milestones & PAST_IMPORTS}
    return "" if nodes & past or not past else nodes.pop()


def node_to_swap(state: State, incident: Incident) -> str:
    """That node, where a spare can take its place, and no node before it at this place has lacked something, too."""
    node, fleet = lacking_node(state, incident), state.fleet
    if not node or fleet is None or not state.settings.act or node not in fleet.placed:
        return ""
    has_spare = any(m.standing is Standing.READY and not m.is_placed for m in fleet.members.values())
    return node if has_spare and fleet.placed.index(node) not in fleet.lacked else ""


def note_swap(fleet: Fleet, node: str) -> None:
    """The node at this place lacks something; the next one there is kept."""
    fleet.lacked = [*fleet.lacked, fleet.placed.index(node)]


def told(state: State, incident: Incident) -> dict[str, Any]:
    """What its incident says beyond what was known as it was told; empty where that is nothing."""
    node = lacking_node(state, incident)
    evidence = {**incident.evidence, "only_on": node}
    return {"evidence": evidence, "advice": advice_for(incident.cause, evidence)} if node else {}


def why_given_up(state: State, incident: Incident, why: str) -> str:
    """why: that it would only happen again; with where it did, if that is one node."""
    node, fleet = lacking_node(state, incident), state.fleet
    if not node or fleet is None:
        return why
    if node in fleet.placed and fleet.placed.index(node) in fleet.lacked:
        return f"{why} (on {node} as on the node that it replaced)"
    return f"{why} (only on {node}: is something missing there?)"
