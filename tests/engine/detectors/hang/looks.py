"""What ranks report, and what a look at them shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import PYSPY, GroupLook, NativeSpot, ProcessLook, RankLook, ThreadLook
from tests.engine.conftest import Told
from tests.sim.activity import Activity


def look(
    told: Told,
    *doings: Activity,
    at_s: float,
    missing: dict[int, str] | None = None,
    groups: Sequence[GroupLook] = (),
    native: NativeSpot | None = None,
) -> list[ac.Action]:
    """The answer to the look that was asked for: what each rank does, from 0 on. groups: as each of them tells it.

    native: where each of them runs below Python.
    """
    assert told.state.attempt is not None
    looks = []
    for rank, doing in enumerate(doings):
        thread = ThreadLook(
            tid=7,
            is_main=True,
            owns_gil=doing.owns_gil,
            cpu_s=1.0 + doing.cpu * at_s,
            switches=100 + int(doing.wakes * at_s),
            frames=list(doing.stacks[0]),
        )
        process = ProcessLook(
            pid=told.state.attempt.ranks[rank].rank.pid,
            state=doing.state,
            cpu_s=doing.cpu * at_s,
            io_bytes=int(doing.io * at_s),
            threads=[thread],
            native=native,
            source=PYSPY,
        )
        looks.append(
            RankLook(
                global_rank=rank,
                at_s=at_s,
                process=process,
                heart_s=at_s if doing.has_gil else 1.0,
                in_collective=doing.in_collective,
                groups=list(groups),
                standstill=doing.standstill,
                standstill_key=doing.standstill,
            )
        )
    taken = ev.LookTaken(
        look=told.state.detectors.hang.look,
        attempt=told.attempt,
        ranks=looks,
        missing=missing or {},
        folder=f"looks/{at_s}",
    )
    return told.tell(taken, at_s + 0.1)


def report(told: Told, rank: int, at_s: float, **fields: object) -> list[ac.Action]:
    """A rank reports: what it did last, where nothing else is given."""
    assert told.state.attempt is not None
    known = told.state.attempt.ranks[rank]
    fields = {"progress": known.progress, "progress_s": known.progress_s, "step": known.step, **fields}
    reports = [ev.RankReport(global_rank=rank, **fields)]  # type: ignore[arg-type]
    return told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=reports), at_s)


def pass_time(
    told: Told, *doings: Activity, until_s: float, is_enough: Callable[[], bool] | None = None, **shown: Any
) -> list[ac.Action]:
    """Whatever is due is done, and looks show the same over and over: until then, or until an incident."""
    actions: list[ac.Action] = []
    is_enough = is_enough or (lambda: bool(told.incidents))
    while not is_enough():
        due_s = told.engine.next_deadline_s()
        if due_s is None or due_s > until_s:
            break
        for action in told.tick():
            actions.append(action)
            if isinstance(action, ac.TakeLook):
                actions += look(told, *doings, at_s=told.now_s + 0.2, **shown)
    return actions
