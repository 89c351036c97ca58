"""Contact with a node that trains is lost, and nothing else: said, counted, and said again when it is back."""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.job_nodes import Member


def is_all(member: Member, progress_s: float, patience_s: float) -> bool:
    """Whether a silent node, which has part in what the others do, is seen by their progress to train on.

    progress_s: when the job last advanced. patience_s: for how long it might without the node; for that long, too,
    nothing is said.
    """
    return not member.is_missed and progress_s > member.since_s + patience_s


def miss(member: Member, now_s: float) -> list[Action]:
    """Say it, once."""
    member.is_missed = True
    member.contact_lost += 1
    member.why = "contact is lost; its training goes on"
    lost_s = now_s - member.since_s
    return [announce(f"contact with {member.node} lost for {lost_s:.0f} s: its training goes on", level="warn")]


def regain(member: Member, now_s: float) -> list[Action]:
    """It is heard again; to be called before it stands otherwise."""
    if not member.is_missed:
        return []
    member.is_missed, member.why = False, ""
    return [announce(f"contact with {member.node} is back, after {now_s - member.since_s:.0f} s", level="info")]
