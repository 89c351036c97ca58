"""A run at step 12, whose ranks fall: parts of stories about what is saved, or kept, before a restart."""

from __future__ import annotations

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.verdicts import Detected
from guardrun.supervisor.engine.recovery.decide import decide
from guardrun.supervisor.engine.state.state import SAVES_IN_TIME
from tests.engine.conftest import Told, kinds

JIT_S = 20.0


def training(told: Told, *, saving: tuple[int, ...] = (0, 1, 2), ranks: int = 3, **settings: object) -> Told:
    """At step 12. saving: ranks whose script has called save_with()."""
    told.opened(ranks, **{"jit_s": JIT_S, **settings})
    told.started(at_s=1.0)
    report(told, saving=saving)
    return told


def report(told: Told, *, saving: tuple[int, ...] = (0, 1, 2), step: int = 12, at_s: float = 5.0) -> None:
    bits = {n: SAVES_IN_TIME if n in saving else 0 for n in range(told.state.world_size)}
    reports = [
        ev.RankReport(global_rank=n, progress=step, progress_s=at_s, step=step, milestones=bit)
        for n, bit in bits.items()
    ]
    told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=reports), at_s)


def numeric(told: Told) -> None:
    found = Detected(
        key="n", kind="numeric", cause="nan_loss", confidence=1.0, summary="It is no number.", culprits=[1],
        onset_s=told.now_s, evidence={},
    )  # fmt: skip
    decide(told.state, [found], told.now_s)


def end_crash(told: Told) -> list[ac.Action]:
    """All have ended, and why is told: what follows."""
    told.tick()
    told.read(told.now_s + 0.1)
    actions = told.stopped(told.now_s + 1.0)
    return told.read(told.now_s + 0.1) if "ReadExits" in kinds(actions) else actions
