"""What a node's judges say, tied to training: incidents where it is felt, quarantine where it is asked for."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.observation.step_times import StepRate, slowdown
from guardrun.supervisor.health.base.findings import Finding, Response
from tests.engine.conftest import Told, kinds

DEVICES = {rank: ev.Device(subject=f"gpu:GPU-{rank}", index=rank) for rank in range(2)}


def finding(cause: str, subject: str = "gpu:GPU-1", since_s: float = 0.0, **more: object) -> Finding:
    fields = {"summary": f"GPU 1 has {cause}.", "response": Response.NOTE, **more}
    return Finding(id=f"{cause}/{subject}", cause=cause, subject=subject, since_s=since_s, told_s=since_s, **fields)  # type: ignore[arg-type]


def say(told: Told, *findings: Finding, at_s: float | None = None, known: bool = True) -> list[ac.Action]:
    return told.tell(
        ev.NodeFindingsReported(node="node-a", findings=list(findings), devices=DEVICES if known else {}), at_s
    )


def train(told: Told, from_s: float, to_s: float, step_s: float) -> list[ac.Action]:
    """Steps of a length, told once a second."""
    assert told.state.attempt is not None
    actions, began = [], told.state.attempt.step
    for n in range(1, int(to_s - from_s) + 1):
        actions += told.step(began + int(n / step_s), from_s + n)
    return actions


THROTTLE = finding("throttle", since_s=100.0, evidence={"temperature_c": [83, 91]}, advice="Look at the fans.")


def test_throttling_that_slows_training_is_an_incident(told: Told) -> None:
    told.running()
    train(told, 2, 100, 0.2)
    train(told, 100, 110, 0.5)
    assert kinds(say(told, THROTTLE, at_s=110.0)) == [], "nothing is felt yet"
    train(told, 110, 150, 0.5)
    [incident] = told.incidents.values()
    assert (incident.kind, incident.cause, incident.action) == ("slowdown", "thermal_throttle", "none")
    assert [(c.rank, c.gpu) for c in incident.culprits] == [(1, 1)]
    assert incident.onset_s == 100.0
    assert incident.summary.startswith("Rank 1 on node-a: GPU 1 has throttle; ")
    assert "steps have taken 2.5 times as long since (0.50 s, before 0.20 s)." in incident.summary
    assert incident.evidence["temperature_c"] == [83, 91] and incident.evidence["step_s"]["since"] == 0.5
    assert incident.recovered_s is None, "progress does not end it"
    say(told, THROTTLE, at_s=180.0)
    assert len(told.incidents) == 1
    actions = say(told, finding("throttle", is_over=True), at_s=200.0)
    assert kinds(actions) == ["WriteIncident"] and told.incidents["001"].recovered_s == 200.0


def test_throttling_that_nobody_feels_is_none(told: Told) -> None:
    told.running()
    train(told, 2, 100, 0.2)
    say(told, THROTTLE, at_s=101.0)
    actions = train(told, 101, 300, 0.205)
    assert not told.incidents
    said = "Rank 1 on node-a: GPU 1 has throttle; steps take no longer for it"
    assert [action.text for action in actions if isinstance(action, ac.Say)] == [said]


@pytest.mark.parametrize("cause", ["throttle", "thermal"])
def test_heat_that_lasts_is_told_where_no_steps_are_seen(told: Told, cause: str) -> None:
    told.running()
    hot = finding(cause, "cpu:0", since_s=100.0)
    assert kinds(say(told, hot, at_s=110.0)) == []
    said = [told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=[]), at_s) for at_s in (200.0, 399.0)]
    assert [kinds(actions) for actions in said] == [[], []]
    told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=[]), 401.0)
    [incident] = told.incidents.values()
    assert (incident.kind, incident.cause, incident.action) == ("node", "thermal", "none")
    assert incident.summary == f"node-a: GPU 1 has {cause}."


def test_heat_is_no_incident_of_the_nodes_where_steps_are_seen(told: Told) -> None:
    told.running()
    train(told, 2, 100, 0.2)
    say(told, THROTTLE, at_s=101.0)
    train(told, 101, 500, 0.2)
    assert not told.incidents


def test_an_incident_that_brings_its_own_advice_is_new_to_whoever_is_notified(told: Told) -> None:
    told.running()
    actions = say(told, finding("gpu_link", advice="Reseat it."), at_s=3.0)
    [written] = [action for action in actions if isinstance(action, ac.WriteIncident)]
    assert written.is_new and written.incident.advice == "Reseat it."


def test_a_persons_quarantine_is_told_once_and_training_goes_on(told: Told) -> None:
    told.running()
    isolated = finding("quarantined", "node", since_s=100.0, summary="alice has put this node under quarantine.")
    assert "WriteIncident" in kinds(say(told, isolated, at_s=101.0))
    assert kinds(say(told, isolated, at_s=150.0)) == []
    [incident] = told.incidents.values()
    assert (incident.kind, incident.cause, incident.action) == ("node", "quarantined", "none")


def test_a_device_that_nobody_here_trains_on_is_somebody_elses(told: Told) -> None:
    told.running()
    say(told, finding("gpu_ecc", "gpu:GPU-7"))
    say(told, finding("gpu_ecc"), known=False)
    assert [i.cause for i in told.incidents.values()] == ["gpu_ecc"], "rank 1's alone"


@pytest.mark.parametrize(
    ("cause", "subject", "kind"), [("gpu_xid", "gpu:GPU-1", "node"), ("network", "net:eth0", "node")]
)
def test_what_needs_no_proof_from_training_is_told_at_once(told: Told, cause: str, subject: str, kind: str) -> None:
    told.opened()
    assert kinds(say(told, finding(cause, subject), at_s=0.5)) == [], "before any rank runs"
    told.started(at_s=1.0)
    told.step(1, 2.0)
    [incident] = told.incidents.values()
    assert (incident.kind, incident.cause, incident.action) == (kind, cause, "none")
    assert "node-a: GPU 1 has" in incident.summary


def test_what_the_contract_has_no_cause_for_is_no_incident(told: Told) -> None:
    told.running()
    assert kinds(say(told, finding("clock", "node"))) == []


ISOLATE = finding("gpu_remap", response=Response.ISOLATE)


def test_an_isolated_node_trains_on_and_gets_no_further_attempt(told: Told) -> None:
    told.running()
    actions = say(told, ISOLATE, at_s=5.0)
    assert kinds(actions) == ["WriteIncident", "Isolate"]
    assert told.incidents["001"].action == "isolate_node"
    assert kinds(train(told, 5, 30, 0.2)) == []
    told.crashed(rank=0)
    assert told.incidents["002"].action == "give_up"
    assert told.state.give_up_reason == "node-a is quarantined (incident 001: gpu_remap)"


def test_what_sensors_say_while_a_crash_is_cleared_up_decides_where_the_next_attempt_goes(told: Told) -> None:
    """An Xid is told a moment after the error that it explains."""
    told.running()
    told.exits(1, -11, 5.0)
    assert kinds(say(told, finding("throttle"), at_s=5.1)) == [], "what is not to be acted on has time"
    assert kinds(say(told, ISOLATE, at_s=5.2)) == ["WriteIncident", "Isolate"]
    told.read(5.3)
    told.stopped(6.0)
    assert [(i.cause, i.action) for i in told.incidents.values()] == [
        ("gpu_remap", "isolate_node"),
        ("segfault", "give_up"),
    ]
    assert told.state.give_up_reason == "node-a is quarantined (incident 001: gpu_remap)"


def test_what_was_found_before_a_requeue_is_not_held_against_a_node_that_was_repaired(told: Told) -> None:
    """It was told too late to be acted on; a new guardrun's node says anew what is wrong with it now."""
    told.running()
    told.crashed(rank=1)
    say(told, ISOLATE)
    assert len(told.incidents) == 1
    told.tell(ev.RunContinued(settings=ev.Settings(), node="node-a", world_size=2, wall_s=0.0, session=1))
    told.restarted(20)
    assert len(told.incidents) == 1
    say(told, ISOLATE)
    assert told.incidents["002"].action == "isolate_node"
    told.tell(ev.RunContinued(settings=ev.Settings(), node="node-a", world_size=2, wall_s=0.0, session=2))
    told.restarted(30)
    say(told, ISOLATE)
    assert told.incidents["003"].action == "isolate_node", "it is bad again"


def test_what_asks_for_a_restart_gets_one(told: Told) -> None:
    told.running()
    assert kinds(say(told, finding("gpu_xid", response=Response.RESTART), at_s=5.0)) == ["WriteIncident", "StopAttempt"]
    told.stopped(6.0)
    assert told.incidents["001"].action == "restart"
    told.restarted(20)
    assert len(told.incidents) == 1


@pytest.mark.parametrize("act", [True, False])
def test_the_users_word_counts_and_nothing_is_done_where_guardrun_may_not_act(told: Told, act: bool) -> None:
    told.running(act=act, responses={"gpu_ecc": "isolate", "gpu_remap": "note"})
    told.tell(ev.NodeFindingsReported(node="node-a", findings=[ISOLATE, finding("gpu_ecc")], devices=DEVICES))
    assert [i.action for i in told.incidents.values()] == ["none", "isolate_node" if act else "none"]


def test_a_rate_needs_enough_of_both_sides() -> None:
    rate = StepRate()
    for n in range(100):
        rate.add(float(n), n * 5)
    assert slowdown(rate, 5.0, 99.0) is None, "not known how it was before"
    assert slowdown(rate, 80.0, 99.0) is None, "not known how it is since"
    slower = slowdown(rate, 55.0, 99.0)
    assert slower is not None and slower.factor == pytest.approx(1.0, rel=0.1)


def test_one_pause_does_not_make_a_slowdown() -> None:
    rate, step = StepRate(), 0
    for n in range(200):
        step += 0 if 120 <= n < 128 else 5
        rate.add(float(n), step)
    slower = slowdown(rate, 100.0, 199.0)
    assert slower is not None and slower.factor == pytest.approx(1.0, rel=0.05)


def test_what_is_wrong_with_a_device_is_said_of_a_crash_there(told: Told) -> None:
    told.running()
    say(told, finding("gpu_link"), finding("clock", "node"), finding("gpu_link", "gpu:GPU-0"), at_s=5.0)
    told.crashed(rank=1)
    crash = next(i for i in told.incidents.values() if i.kind == "crash")
    assert crash.evidence["node_findings"] == ["GPU 1 has gpu_link.", "GPU 1 has clock."]
    assert crash.summary.endswith("; at that time: GPU 1 has gpu_link.")


def test_a_node_that_was_not_isolated_is_used_on(told: Told) -> None:
    told.running()
    say(told, ISOLATE, at_s=5.0)
    told.tell(ev.NotIsolated(node="node-a", incident="001", why="ada has released it since"))
    assert told.incidents["001"].action == "none"
    told.crashed(rank=0)
    assert told.incidents["002"].action == "restart"


def test_a_device_that_is_not_known_any_more_is_nobodys(told: Told) -> None:
    """Its rank was found to train on another one, or on nobody knows which: blaming it would be a guess."""
    told.running()
    told.step(1, 2.0)
    say(told, at_s=2.0)
    told.tell(ev.NodeFindingsReported(node="node-a", findings=[], devices={1: None}), 2.5)
    assert kinds(say(told, finding("gpu_xid"), at_s=3.0, known=False)) == []
    told.tell(ev.NodeFindingsReported(node="node-a", findings=[], devices={0: DEVICES[1]}), 4.0)
    [incident] = told.incidents.values()
    assert [(c.rank, c.gpu) for c in incident.culprits] == [(0, 1)]


def test_devices_without_sensors_are_named_once_a_run(told: Told) -> None:
    told.running()

    def tell(at_s: float, unsensed: dict[str, list[int]]) -> list[str]:
        event = ev.NodeFindingsReported(node="node-a", findings=[], unsensed=unsensed)
        return [action.text for action in told.tell(event, at_s) if isinstance(action, ac.Say)]

    assert tell(2.0, {"xpu": [0, 1]}) == [
        "Ranks 0-1 on node-a: nothing is sensed of xpu devices (heat, errors, links: Unknown)"
    ]
    assert tell(3.0, {"xpu": [1]}) == [], "another node says so, too"
    assert len(tell(4.0, {"hip": [1]})) == 1
