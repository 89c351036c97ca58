"""Having Slurm start the job again, for as long as the job has: by a thread that nobody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model import events as ev


class Asker(NamedTuple):
    """On whose behalf. All of it is called by another thread."""

    say: Callable[[str, str], object]
    """Text, level."""
    wait: Callable[[float], bool]
    """For so many seconds; True: the run is over, and nobody wants it any more."""
    answered: Callable[[ev.Requeued], object]


def begin_requeue(environ: Mapping[str, str], exclude: Sequence[str], patience_s: float, asker: Asker) -> None:
    """Ask for it, and tell what came of it: within patience_s, and what one question takes."""

    def work() -> None:
        try:
            event = _requeue(environ, exclude, patience_s, asker)
        except Exception as error:
            log.exception("requeue_failed")
            event = ev.Requeued(is_done=False, why=repr(error))
        asker.answered(event)

    threading.Thread(target=work, name="requeue", daemon=True).start()


def _requeue(environ: Mapping[str, str], exclude: Sequence[str], patience_s: float, asker: Asker) -> ev.Requeued:
    from guardrun.slurm.client.commands import Slurm
    from guardrun.slurm.client.requeue import Requeued, RequeueState, by_hand, requeue
    from guardrun.slurm.client.retry import Patience, ask_again

    job = environ["SLURM_JOB_ID"]
    is_over = False

    def ask() -> Requeued:
        if is_over:
            return Requeued(RequeueState.FAILED, "the run is over")
        return requeue(job, exclude, Slurm(environ), own_restarts=own_restarts(environ))

    def pause(seconds: float) -> bool:
        nonlocal is_over
        is_over = asker.wait(seconds)
        return is_over

    def silent(first: Requeued) -> None:
        asker.say(f"{first.text}; it is asked again for {patience_s:.0f} s. By hand: {by_hand(job)}", "warn")

    done = ask_again(ask, Patience(time.monotonic() + patience_s, pause), silent if patience_s >= 1 else None)
    log.info("requeued", state=done.state.value, text=done.text)
    hand = f"; by hand: {by_hand(job)}" if done.is_silent else ""
    return ev.Requeued(is_done=done.is_done, why=f"{done.text}{hand}", is_silent=done.is_silent)


def own_restarts(environ: Mapping[str, str]) -> int:
    """How often the job had been requeued when this guardrun was started."""
    count = environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0
