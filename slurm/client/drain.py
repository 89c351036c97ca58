"""Taking a bad node out of service (`scontrol … state=drain`), and giving it back.

Only where that is allowed, and never over another's. A drain is guardrun's own when its reason begins with
REASON_PREFIX: only such a one is renewed or lifted. A node that is drained, or was set down, with another's words is
left as it is. Between reading and writing somebody else may drain it: Slurm has no way to rule that out, so it is read
once more afterwards, and told what is there.

The record of quarantine (guardctl node) is kept whether Slurm lets us drain or not.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from guardrun.slurm.client.commands import Failure, FailureKind, Slurm
from guardrun.slurm.client.nodes import SlurmNode, read_drained, read_node

REASON_PREFIX = "guardrun:"
MAX_REASON = 240
"""Characters: what sinfo -R and dashboards can still show in a line."""
LIFT_S = 5.0
"""A person waits."""
SLURM_OWN_REASONS = ("not responding", "node unexpectedly rebooted")
"""What slurmctld writes by itself when it sets a node down: nobody's drain."""


class DrainState(str, Enum):
    """What became of a drain."""

    DONE = "done"
    """It is there now, with our reason (or it was there already)."""
    OTHERS = "others"
    """Somebody else has drained it, or set it down: left as it is."""
    REFUSED = "refused"
    """This user may not drain. Say so once; the quarantine record keeps guardrun's own runs away."""
    SILENT = "silent"
    """Slurm did not answer: ask again."""
    FAILED = "failed"
    """Slurm knows no such node, or is not here."""
    NOTHING = "nothing"
    """Of undrain: it was not drained."""


class Drained(NamedTuple):
    """What became of it, and one sentence for a person."""

    state: DrainState
    text: str

    @property
    def is_done(self) -> bool:
        """Whether it is drained with guardrun's reason; False where somebody else has drained it."""
        return self.state is DrainState.DONE

    @property
    def is_silent(self) -> bool:
        """Whether Slurm has not answered: the only outcome that is worth another try."""
        return self.state is DrainState.SILENT


def drain_reason(run_id: str, incident: str, cause: str, summary: str = "") -> str:
    """`guardrun: RUN incident 003 gpu_ecc: GPU 2 of n3 …`: one line, of MAX_REASON characters at most."""
    text = f"{REASON_PREFIX} {run_id}" + (f" incident {incident}" if incident else "") + f" {cause}"
    if summary:
        text += f": {summary.rstrip('.')}"
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"


def is_ours(reason: str) -> bool:
    """Say whether a drain with this reason is guardrun's own."""
    return reason.startswith(REASON_PREFIX)


def drain(node: str, reason: str, slurm: Slurm | None = None) -> Drained:
    """Let no new job start on a node. reason: as drain_reason makes it. Blocks for three time limits at most."""
    slurm = slurm or Slurm.here()
    before = read_node(node, slurm)
    if isinstance(before, Failure):
        return _failed(node, "drained", before)
    if _is_anothers(before):
        return Drained(DrainState.OTHERS, f"{node} is out of service already, and not by guardrun: {_said(before)}")
    if before.is_drained and before.reason == reason:
        return Drained(DrainState.DONE, f"{node} is drained already: {reason}")
    answer = slurm.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")
    if isinstance(answer, Failure):
        return _failed(node, "drained", answer)
    after = read_node(node, slurm)
    if isinstance(after, Failure):
        return Drained(DrainState.DONE, f"{node} was drained; what is there now is not known: {after.text}")
    if after.is_drained and after.reason == reason:
        return Drained(DrainState.DONE, f"{node} is drained: {reason}")
    if _is_anothers(after):
        return Drained(DrainState.OTHERS, f"{node} was drained by somebody else in the same moment: {_said(after)}")
    return Drained(DrainState.FAILED, f"{node} is not drained although Slurm took the order: {_said(after)}")


def read_others_drains(nodes: Iterable[str], slurm: Slurm) -> dict[str, str] | None:
    """Those of a job's nodes that somebody else has drained → why, and who; None: Slurm did not say. Blocks."""
    drained = read_drained(slurm)
    if isinstance(drained, Failure):
        return None
    named = {node: drained[node] for node in nodes if node in drained}
    return {node: f"{reason}; {who}" for node, (reason, who) in named.items() if not is_ours(reason)}


def undrain(node: str, slurm: Slurm | None = None, *, reason: str = "") -> Drained:
    """Lift guardrun's own drain of a node, and no other. A node that is down stays down.

    reason: that very drain alone; empty: whichever run's it is.
    """
    slurm = slurm or Slurm.here()
    before = read_node(node, slurm)
    if isinstance(before, Failure):
        return _failed(node, "returned to service", before)
    if not before.is_drained:
        return Drained(DrainState.NOTHING, f"{node} is not drained")
    if not is_ours(before.reason) or reason not in ("", before.reason):
        whose = "another run's" if is_ours(before.reason) else "not guardrun's"
        return Drained(DrainState.OTHERS, f"{node} stays drained, it is {whose} drain: {_said(before)}")
    answer = slurm.run("scontrol", "update", f"nodename={node}", "state=undrain")
    if isinstance(answer, Failure):
        return _failed(node, "returned to service", answer)
    after = read_node(node, slurm)
    if not isinstance(after, Failure) and after.is_drained:
        return Drained(DrainState.OTHERS, f"{node} was drained again in the same moment: {_said(after)}")
    return Drained(DrainState.DONE, f"{node} is in service again (it was drained: {before.reason})")


def lift_drain(node: str, environ: Mapping[str, str]) -> Drained:
    """Lift guardrun's drain of a node that a person has released. The text is empty where there is none to speak of."""
    slurm = Slurm(environ, LIFT_S)
    if slurm.find("scontrol") is None:
        return Drained(DrainState.NOTHING, "")
    lifted = undrain(node, slurm)
    if lifted.is_silent:
        hand = f"scontrol update nodename={node} state=undrain"
        return Drained(lifted.state, f"{lifted.text}; by hand, if guardrun has drained it: {hand}")
    is_told = lifted.state in (DrainState.DONE, DrainState.OTHERS, DrainState.REFUSED)
    return lifted if is_told else Drained(lifted.state, "")


def _is_anothers(node: SlurmNode) -> bool:
    """Out of service by somebody else's word."""
    if is_ours(node.reason) or not (node.is_drained or node.is_down):
        return False
    return node.is_drained or not node.reason.lower().startswith(SLURM_OWN_REASONS)


def _said(node: SlurmNode) -> str:
    who = f" ({node.reason_by})" if node.reason_by else ""
    return f"{'+'.join(sorted(node.states)) or 'no state'}, {node.reason or 'without a reason'}{who}"


def _failed(node: str, what: str, failure: Failure) -> Drained:
    if failure.kind is FailureKind.REFUSED:
        text = f"{node} could not be {what}: this user may not ({failure.text}); Slurm's operators and root may"
        return Drained(DrainState.REFUSED, text)
    state = DrainState.SILENT if failure.kind is FailureKind.SILENT else DrainState.FAILED
    return Drained(state, f"{node} could not be {what}: {failure.text}")


def by_hand(node: str, reason: str) -> str:
    """What a person types to drain it."""
    return shlex.join(("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"))
