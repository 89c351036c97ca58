"""What must hold of the engine after every event, whatever came before."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.engine.state.state import State

_LEDGER_ERROR_S = 1e-3


def check_cheap(engine: Engine) -> float | None:
    """Costs the same for any number of ranks. Returns when the engine next has something to do."""
    state = engine.state
    assert isinstance(state.phase, Phase)
    due_s = engine.next_deadline_s()
    if _awaits(state):
        assert due_s is not None, f"awaited without a deadline in {state.phase}: {state.story}"
    attempt = state.attempt
    if attempt is not None:
        assert 0 <= attempt.alive <= len(attempt.ranks)
        if attempt.ended_s is not None:
            assert attempt.alive == 0
        assert attempt.stopped.keys() <= attempt.ranks.keys()
    assert state.incidents.keys() >= set(state.open_incidents)
    for named in (state.verdict_incident, state.resuming_incident):
        assert not named or named in state.incidents
    assert state.detectors.hang.look_since_s is None or state.detectors.hang.suspicion is not None
    if state.phase is not Phase.RUNNING:
        assert state.detectors.hang.suspicion is None
    if state.phase not in (Phase.RUNNING, Phase.STOPPING):
        assert not state.is_crashing, "a crash that nobody will tell"
    if state.phase is not Phase.NEW:
        booked_s = sum(state.ledger.spent_s.values()) + max(state.last_s - state.ledger.since_s, 0.0)
        assert abs(booked_s - (state.last_s - state.opened_s)) < _LEDGER_ERROR_S, "the ledger has lost time"
        assert all(seconds >= 0 for seconds in state.ledger.spent_s.values())
    assert state.restarts <= max(state.settings.max_restarts, 0) or state.settings.is_torchrun_agent
    return due_s


def _awaits(state: State) -> bool:
    """Whether something has been asked for, or is being watched, that the engine itself must keep the time of."""
    if state.phase in (Phase.GATHERING, Phase.CHECKING, Phase.CHOOSING, Phase.STARTING):
        return True
    if state.phase is Phase.STOPPING:
        return True
    if state.phase is Phase.RUNNING and state.attempt is not None:
        # Without living ranks the launcher clears up, and with a told crash under a hold a person is awaited.
        return state.attempt.alive > 0 and not (state.is_held and state.verdict_incident)
    return False


def check_costly(engine: Engine) -> bytes:
    """What looks at every rank, and at all that is remembered. Returns the engine's snapshot."""
    attempt = engine.state.attempt
    if attempt is not None and attempt.ended_s is None:
        assert attempt.alive == sum(rank.exitcode is None for rank in attempt.ranks.values())
        for number in (*attempt.stopped, *attempt.collecting):
            assert attempt.ranks[number].exitcode is None
    fleet = engine.state.fleet
    if fleet is not None:
        members = fleet.members.values()
        assert sorted(fleet.quiet) == sorted(m.node for m in members if m.standing is Standing.SILENT)
        assert sorted(fleet.placed) == sorted(m.node for m in members if m.is_placed)
        assert all(m.standing is not Standing.OUT for m in fleet.silent)
    snapshot = engine.snapshot()
    restored = Engine.restore(snapshot)
    assert is_same(restored.snapshot(), snapshot)
    assert restored.next_deadline_s() == engine.next_deadline_s()
    return snapshot


def is_same(one: bytes, other: bytes) -> bool:
    """Say whether two snapshots hold the same. Almost always they are the same text, and nothing has to be parsed."""
    return one == other or bool(msgspec.json.decode(one) == msgspec.json.decode(other))
