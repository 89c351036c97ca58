"""Runs whose data does not come: when a verdict falls, and what its incident holds."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import ProcessLook, RankLook, Reading
from tests.engine.conftest import Told, kinds
from tests.engine.observation.workers import READS, WAITS, look, process, worker

READINGS = [
    Reading(name="load", value=1.5, note="2 CPUs"),
    Reading(name="/scratch", value=2.0, unit="s", is_odd=True, note="has not answered (nfs4)"),
]


def starve(told: Told, *children: ProcessLook, limit_s: float) -> list[ac.Action]:
    """Rank 1 waits for one batch from now on, rank 0 for rank 1; until something is done about it, or limit_s."""
    assert told.state.attempt is not None
    since_s = told.state.attempt.progress_s
    report = ev.RankReport(global_rank=1, progress=10, progress_s=since_s, step=10, waits_since_s=since_s)
    told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=[report]), since_s + 3.0)
    while (due_s := told.engine.next_deadline_s()) is not None and due_s < limit_s:
        if not any(isinstance(action, ac.TakeLook) for action in told.tick()):
            continue
        at_s = told.now_s + 0.2
        ranks = [
            RankLook(global_rank=0, at_s=at_s, process=process(100, WAITS), heart_s=at_s, in_collective="all_reduce"),
            look(at_s, *children),
        ]
        taken = ev.LookTaken(look=told.state.detectors.hang.look, attempt=0, ranks=ranks, readings=READINGS)
        actions = told.tell(taken, at_s)
        if "StopAttempt" in kinds(actions):
            return actions
    return []


@pytest.mark.parametrize("state", ["Z", "T"])
def test_a_worker_that_will_not_deliver_is_acted_on_within_seconds(told: Told, state: str) -> None:
    told.running()
    dead = process(5, [], state="Z", command="pt_data_worker")
    assert starve(told, dead if state == "Z" else worker(5, READS, state="T"), limit_s=60.0)
    assert told.now_s < 12.0
    (incident,) = told.incidents.values()
    assert (incident.cause, [culprit.rank for culprit in incident.culprits]) == ("dataloader_stall", [1])
    assert incident.evidence["workers"][0]["state"] == state
    assert ("died" if state == "Z" else "SIGSTOP") in incident.advice


def test_a_worker_that_is_only_slow_keeps_its_patience(told: Told) -> None:
    told.running()
    assert starve(told, worker(5, READS), worker(6, WAITS), limit_s=58.0) == []
    assert told.incidents == {}


def test_the_node_is_in_the_evidence_and_what_is_odd_comes_first(told: Told) -> None:
    told.running()
    assert starve(told, worker(5, READS), limit_s=120.0)
    (incident,) = told.incidents.values()
    assert "DataLoader worker 5 is in read_shard (data.py:31)" in incident.summary
    assert incident.evidence["readings"] == [
        {"name": "/scratch", "value": 2.0, "unit": "s", "is_odd": True, "note": "has not answered (nfs4)"},
        {"name": "load", "value": 1.5, "unit": "", "is_odd": False, "note": "2 CPUs"},
    ]
