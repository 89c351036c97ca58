"""A follower whose head is gone for good: may Slurm start the job again? Asked on a thread that nobody waits for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from guardrun.supervisor.base.log import log
from guardrun.supervisor.rundir.run_directory import RunFile

RUN_ID_FLAG, RUN_ID_VARIABLE = "--guard-run-id", "GUARDRUN_RUN_ID"
APART_S = 2.0
"""Between two followers' first questions: one of them orders the requeue, and the others find it done."""
MOST_APART_S = 60.0


def may_rescue(run: RunFile, environ: Mapping[str, str]) -> bool:
    """Say whether a requeue is wanted: of a run that goes on at the next start, in a job of Slurm's."""
    # A follower's own run has a name of its own: it is the job's that counts.
    is_named = any(one.startswith(RUN_ID_FLAG) for one in run.command) or bool(environ.get(RUN_ID_VARIABLE))
    wanted = run.settings.requeue == "always" or (run.settings.requeue == "auto" and is_named)
    return wanted and bool(environ.get("SLURM_JOB_ID"))


def begin_rescue(slot: int, on_outcome: Callable[[str], None], environ: Mapping[str, str] | None = None) -> None:
    """Have Slurm requeue the job where it has given the head's node up, and tell what came of it, from that thread.

    slot: this node's place among the job's. Takes as long as Slurm takes: minutes.
    """
    environ = os.environ if environ is None else environ

    def work() -> None:
        try:
            text = _rescue(min(APART_S * max(slot, 0), MOST_APART_S), environ)
        except Exception as error:
            log.exception("rescue_failed")
            text = f"the job could not be requeued: {error}"
        on_outcome(text)

    threading.Thread(target=work, name="rescue", daemon=True).start()


def _rescue(pause_s: float, environ: Mapping[str, str]) -> str:
    from guardrun.slurm.client.commands import Slurm  # only jobs of Slurm's have a use for them
    from guardrun.slurm.client.job_environment import read_slurm
    from guardrun.slurm.client.requeue import rescue_job

    here = read_slurm(environ)
    if here is None:
        return ""
    time.sleep(pause_s)
    done = rescue_job(here.job, here.restarts, slurm=Slurm(environ))
    return "" if done is None else done.text
