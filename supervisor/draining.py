"""A node that is isolated is taken out of service in Slurm, too, where the job runs there."""

from __future__ import annotations

import os

from guardrun.supervisor.core.actions import Isolate
from guardrun.supervisor.log import log


def drain_in_slurm(action: Isolate, run_id: str) -> str:
    """What came of it, in a sentence for the user; empty outside of Slurm. Blocks for seconds: for a worker thread."""
    if not os.environ.get("SLURM_JOB_ID"):
        return ""
    from guardrun.slurm.drain import drain, drain_reason

    summary = action.summary if action.cause not in action.summary else ""
    drained = drain(action.node, drain_reason(run_id, action.incident, action.cause, summary))
    log.info("drained", node=action.node, state=drained.state.value, text=drained.text)
    return drained.text
