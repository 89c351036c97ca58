"""Nodes are tried together before they train; whatever comes of it, training starts where it can."""

from __future__ import annotations

import pytest

from guardrun.launcher.base.terminal_lines import NOT_FIT
from guardrun.supervisor.engine.membership import node_checks
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from tests.engine.conftest import Told
from tests.engine.membership.checks import DEAF, checked, opened
from tests.engine.membership.stories import starts


def asked(actions: list[ac.Action]) -> list[ac.CheckNodes]:
    return [action for action in actions if isinstance(action, ac.CheckNodes)]


def said(actions: list[ac.Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, ac.Say))


def isolated(actions: list[ac.Action]) -> list[ac.Isolate]:
    return [action for action in actions if isinstance(action, ac.Isolate)]


def test_all_that_are_there_are_tried_before_the_first_attempt(told: Told) -> None:
    actions = opened(told)
    assert asked(actions) == [ac.CheckNodes(check=1, nodes=["n0", "n1", "n2"], level="quick")]
    assert told.phase is Phase.CHECKING and not starts(actions)
    actions = checked(told, 1, None, "n1 has torch 2.5.1, n0 and n2 2.6.0")
    assert "pre-flight: n1 has torch 2.5.1" in said(actions)
    assert starts(actions)[0].nodes == ["n0", "n1"]
    assert not told.incidents and not isolated(actions), "who is merely different is not to blame"


def test_nothing_is_tried_where_nobody_wants_it(told: Told) -> None:
    assert starts(opened(told, level="off"))


def test_a_faulty_node_is_named_and_a_spare_takes_its_place(told: Told) -> None:
    opened(told)
    actions = checked(told, 1, {"n1": DEAF})
    assert f"pre-flight: n1 {DEAF}." in said(actions) and "--guard-preflight=off" in said(actions)
    assert starts(actions)[0].nodes == ["n0", "n2"], "the spare was tried with the others: no second time"
    assert told.state.fleet is not None and told.state.fleet.members["n1"].standing is Standing.OUT


def test_a_faulty_node_is_an_incident_and_kept_out_of_what_comes(told: Told) -> None:
    opened(told)
    actions = checked(told, 1, {"n1": DEAF})
    incident = told.incidents["001"]
    assert (incident.kind, incident.cause, incident.action, incident.attempt) == ("node", "network", "isolate_node", 0)
    assert incident.summary == f"pre-flight: n1 {DEAF}."
    assert incident.culprits == [ac.Culprit(rank=None, local_rank=None, node="n1", pid=None)]
    assert incident.evidence["check"] == "reach" and incident.evidence["failed_with"] == ["n0", "n2"]
    assert isolated(actions) == [
        ac.Isolate(
            node="n1",
            incident="001",
            cause="network",
            summary=incident.summary,
            evidence_s=incident.detected_s,
            finding="network/node:n1/preflight",
        )
    ]
    assert [action.is_new for action in actions if isinstance(action, ac.WriteIncident)] == [True]
    told.fleet_started(told.now_s + 1.0)
    told.step(1, told.now_s + 1.0)
    assert told.incidents["001"].recovered_s is not None, "training is past it"


@pytest.mark.parametrize("responses", [{"network_preflight": "note"}, {"network": "note"}])
def test_the_users_word_keeps_a_faulty_node_in(told: Told, responses: dict[str, str]) -> None:
    opened(told, responses=responses)
    actions = checked(told, 1, {"n1": DEAF})
    assert told.incidents["001"].action == "none" and not isolated(actions)
    assert starts(actions)[0].nodes == ["n0", "n1"]


def test_the_job_shrinks_where_the_user_allows_it(told: Told) -> None:
    opened(told, most=3, spares=0, least=2)
    assert starts(checked(told, 1, {"n1": DEAF}))[0].nodes == ["n0", "n2"]


def test_where_too_few_are_left_the_run_ends_as_a_pre_flight_ends_it(told: Told) -> None:
    assert node_checks.NOT_FIT == NOT_FIT
    opened(told, spares=0)
    actions = checked(told, 1, {"n1": DEAF})
    [finish] = [action for action in actions if isinstance(action, ac.FinishRun)]
    assert (finish.exit_code, finish.summary.outcome) == (NOT_FIT, "interrupted")
    assert "without n1" in finish.summary.reason


def test_a_requeued_run_looks_at_the_faulty_node_again(told: Told) -> None:
    test_where_too_few_are_left_the_run_ends_as_a_pre_flight_ends_it(told)
    plan, settings = ev.FleetPlan(least=2, most=2), ev.Settings(check_nodes="quick")
    told.tell(ev.RunContinued(settings=settings, node="n0", world_size=2, wall_s=0.0, session=1, fleet=plan))
    told.chosen()
    actions = told.joined("n0", 0) + told.joined("n1", 1)
    assert asked(actions)[0].nodes == ["n0", "n1"]
    assert starts(checked(told, asked(actions)[0].check))
    told.fleet_started(told.now_s + 1.0)
    told.step(10, told.now_s + 1.0)
    told.crashed(0, ev.ErrorRecord(error="ValueError", message="bad sample"))
    assert starts(told.chosen())[0].nodes == ["n0", "n1"], "what was found before it was released is forgotten"


def test_without_acting_what_is_found_is_only_said(told: Told) -> None:
    opened(told, act=False)
    actions = checked(told, 1, {"n1": DEAF})
    assert f"n1 {DEAF}" in said(actions) and starts(actions)[0].nodes == ["n0", "n1"]
    assert told.incidents["001"].action == "none" and not isolated(actions)


@pytest.mark.parametrize("level", ["quick", "full"])
def test_no_answer_starts_all_the_same(told: Told, level: str) -> None:
    opened(told, level=level)
    actions = told.tick()
    assert told.now_s == pytest.approx(0.1 + node_checks.LIMITS_S[level], abs=0.1)
    assert "starting all the same" in said(actions) and starts(actions)[0].nodes == ["n0", "n1"]
    assert not checked(told, 1, {"n1": DEAF}), "late: nobody listens"


def test_a_supervisor_that_was_started_anew_does_not_try_again(told: Told) -> None:
    opened(told)
    assert starts(told.tell(ev.SupervisorRestarted()))


def test_a_plain_restart_tries_nobody_again_and_an_isolation_all(told: Told) -> None:
    opened(told)
    checked(told)
    told.fleet_started(told.now_s + 1.0)
    told.step(10, told.now_s + 1.0)
    told.crashed(1, ev.ErrorRecord(error="ValueError", message="bad sample"))
    assert starts(told.chosen())
    told.fleet_started(told.now_s + 1.0)
    told.step(20, told.now_s + 1.0, range(4), attempt=1)
    told.crashed(1, ev.ErrorRecord(error="torch.AcceleratorError", message="CUDA error: GPU is lost"), rank=2)
    assert asked(told.chosen()) == [ac.CheckNodes(check=2, nodes=["n0", "n2"], level="quick")]
    assert starts(checked(told, 2))[0].nodes == ["n0", "n2"]


def test_who_is_lost_meanwhile_is_replaced(told: Told) -> None:
    opened(told)
    told.tell(ev.NodeLeft(node="n1"))
    actions = checked(told)
    # Once it is said for whom the run waits, and once nobody is waited for any longer.
    assert starts(actions or told.tick() + told.tick())[0].nodes == ["n0", "n2"]


def test_checks_of_one_attempt_are_bounded(told: Told) -> None:
    """Whoever keeps joining and being faulty holds the others up no longer than a few checks."""
    opened(told, most=2, spares=0)
    for number in range(1, node_checks.MOST + 2):
        told.joined(f"late{number}")
        actions = checked(told, number, {("n1", "late1", "late2", "late3")[number - 1]: DEAF})
        if starts(actions):
            break
    assert told.phase is Phase.STARTING and number == node_checks.MOST
