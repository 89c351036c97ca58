"""Keeping another node out of what comes: by its own follower, in the folder that all nodes share, in Slurm."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model.actions import Isolate

if TYPE_CHECKING:
    from guardrun.supervisor.node.node_relations import IsolationContext


def isolate_other(context: IsolationContext, action: Isolate, is_told: bool) -> None:
    """Have it done by a worker thread, and say what came of it. is_told: its follower has been told, and does its part.

    The node is left out of this run whatever comes of it: so nothing here fails.
    """

    def work() -> None:
        try:
            said = _isolate(context, action, is_told)
        except Exception as error:
            log.exception("not_isolated")
            said = f"{action.node} could not be put under quarantine: {error}"
        if said:
            context.terminal.print_line(said, "info")

    try:
        context.pool.submit(work)
    except RuntimeError:
        pass  # the daemon is closing


def _isolate(context: IsolationContext, action: Isolate, is_told: bool) -> str:
    if context.drains.is_withdrawn(action):
        return ""
    run = context.run_file
    shared_dir = str(run.config.get("node", {}).get("shared_dir", ""))
    refused = _write_shared(context, action, os.path.join(run.cwd, shared_dir)) if shared_dir else ""
    if refused:
        context.drains.skip(action)
        return f"{action.node} is left out of this run alone: {refused}"
    is_kept = bool(shared_dir) or is_told
    if drained := context.drains.drain(action, "under quarantine" if is_kept else ""):
        return drained
    if is_kept:
        return f"{action.node} is under quarantine: no new run starts there before it is released"
    if action.cause == "node_lost":
        return f"{action.node} is left out until it is heard again"
    return (
        f"{action.node} is left out of this run; of later ones only where nodes share a folder for that "
        "([node] shared_dir)"
    )


def _write_shared(context: IsolationContext, action: Isolate, shared_dir: str) -> str:
    """Only the shared record: this node's own says nothing of another. Why it may not be; empty: it may."""
    from guardrun.supervisor.health.quarantine_rules import AUTOMATIC, Isolation
    from guardrun.supervisor.quarantine.record_places import find_places
    from guardrun.supervisor.quarantine.records import isolate_node

    now_wall_s = time.time()
    places = [place for place in find_places("", shared_dir, os.environ, action.node) if place.is_shared]
    isolation = Isolation(
        cause=action.cause,
        who=AUTOMATIC,
        since_wall_s=now_wall_s,
        evidence_wall_s=now_wall_s - context.clock.now() + action.evidence_s,
        summary=action.summary,
        evidence={"finding": action.finding} if action.finding else {},
        run_id=context.run_file.run_id,
        incident=action.incident,
    )
    written, refused = isolate_node(places, action.node, isolation, now_wall_s)
    for trouble in [*([refused] if refused else []), *written.troubles]:
        log.warning("not_quarantined", node=action.node, why=trouble)
    return refused
