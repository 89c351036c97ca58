"""How each rank of an attempt ended: by itself, or by the stop that another one's end led to."""

from __future__ import annotations

from collections import Counter

from guardrun.supervisor.engine.detectors.failure.crash_evidence import DISK_FULL_BYTES
from guardrun.supervisor.engine.detectors.failure.memory import Crash
from guardrun.supervisor.engine.failures.exception_chain import error_in_log
from guardrun.supervisor.engine.failures.failure_causes import last_words
from guardrun.supervisor.engine.failures.root_cause import Fall
from guardrun.supervisor.engine.model.events import ExitTrace
from guardrun.supervisor.engine.model.run_view import RankView, RunView, attempt_of

NOTHING = ExitTrace(global_rank=-1)
_ABORTED = (-6, 134)
_CRASHED = (-4, -6, -7, -8, -11, 132, 134, 135, 136, 139)
"""Exit codes of signals that a fault raises: a stop doesn't send them."""

_STOPS = (0, 1, -2, 130, -15, 143, -9, 137)
"""How ranks end that are told to: by the signal, or by what their scripts make of it."""
OFFSET_S = 0.05
"""By how much the clocks of two nodes may be taken wrong: an exit of its own that is dated so little after the stop was
on its way then."""


def falls_of(view: RunView, crash: Crash) -> list[Fall]:
    """Each rank that has exited (with 0, too) or raised, with all that could be read of it."""
    attempt = attempt_of(view)
    traces = {t.global_rank: t for t in crash.traces}
    full = any(0 <= free < DISK_FULL_BYTES for free in crash.disk_free_bytes.values())
    aborted = Counter(rank.rank.node for rank in attempt.ranks.values() if rank.exitcode in _ABORTED)
    falls = []
    for number, rank in attempt.ranks.items():
        if rank.exitcode is None and rank.error is None:
            continue
        trace = traces.get(number, NOTHING)
        node = rank.rank.node
        is_only_one = rank.exitcode in _ABORTED and aborted[node] == 1
        stderr_tail = trace.stderr_tail
        if is_only_one and not last_words(stderr_tail):
            stderr_tail = "\n".join(filter(None, [stderr_tail, crash.last_words.get(node, "")]))
        falls.append(
            Fall(
                global_rank=number,
                exitcode=rank.exitcode,
                at_s=rank.exited_s or (rank.error.at_s if rank.error else 0.0),
                stopped_by_us=ended_by_stop(view, rank),
                # Without hooks (-I, -E, another interpreter) the log may have it.
                error=rank.error or (error_in_log(stderr_tail) if rank.exitcode == 1 else None),
                stderr_tail=stderr_tail,
                was_oom_killed=_was_oom_killed(rank, crash),
                is_disk_full=full,
                has_oom_nearby=crash.oom_kills > 0 or bool(crash.oom_pids),
                failed_load=trace.failed_load,
                has_ended=rank.has_ended,
                stack=trace.stack,
            )
        )
    return falls


def ended_by_stop(view: RunView, rank: RankView) -> bool:
    """Whether the rank ended because the attempt was being stopped.

    A crash that was under way then (a core dump takes its time) is not ours, nor a SIGKILL that we had not sent yet.
    """
    began_s = attempt_of(view).stop_began_s
    if began_s and rank.exitcode not in _STOPS and view.is_multi_node:
        began_s += OFFSET_S
    if not began_s or rank.exited_s <= began_s or rank.exitcode in (None, *_CRASHED):
        return False
    if rank.exitcode in (-9, 137):
        return rank.exited_s > began_s + view.settings.stop_grace_s * 0.9
    return rank.error is None or rank.error.at_s > began_s


def _was_oom_killed(rank: RankView, crash: Crash) -> bool:
    if rank.exitcode not in (-9, 137):
        return False
    return rank.rank.pid in crash.oom_pids or (crash.oom_kills > 0 and not crash.oom_pids)
