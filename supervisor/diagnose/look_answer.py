"""What a supervisor answers to `look`: a look at its ranks, and what its engine knows of them."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.detectors.all_detectors import Detectors
from guardrun.supervisor.engine.detectors.hang.suspicion import Hang
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.state.state import State

LOOK = "look"
"""The verb."""


class LookAnswer(msgspec.Struct, kw_only=True):
    """What a supervisor answers to `look`."""

    state: State
    ranks: list[RankLook] = []
    missing: dict[int, str] = {}
    now_s: float
    wall_s: float


def trimmed(state: State) -> State:
    """The engine's memory as a diagnosis needs it: without looks, incidents and history, however long the run."""
    hang = state.detectors.hang
    suspicion = hang.suspicion
    return State(
        phase=state.phase,
        settings=state.settings,
        run_id=state.run_id,
        node=state.node,
        world_size=state.world_size,
        opened_s=state.opened_s,
        last_s=state.last_s,
        attempt=state.attempt,
        gaps=state.gaps,
        detectors=Detectors(
            hang=Hang(
                attempt=hang.attempt,
                remembered=dict(list(hang.remembered.items())[-256:]),
                suspicion=None if suspicion is None else msgspec.structs.replace(suspicion, last={}, loops={}),
            )
        ),
        detected={} if suspicion is None else {key: one for key, one in state.detected.items() if key == suspicion.key},
        crash=state.crash,
        is_held=state.is_held,
        signum=state.signum,
        restarts=state.restarts,
        outcome=state.outcome,
        give_up_reason=state.give_up_reason,
    )
