"""An import that fails on one node only: the next attempt does without it, where a spare is there; once."""

from __future__ import annotations

from guardrun.hooks.wire.board import Milestone
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.eviction import PAST_IMPORTS
from guardrun.supervisor.engine.state.job_nodes import Standing
from tests.engine.conftest import Told
from tests.engine.recovery.missing_module import IMPORTED, WAITS, again, fails, started


def out(told: Told) -> list[str]:
    assert told.state.fleet is not None
    return [m.node for m in told.state.fleet.members.values() if m.standing is Standing.OUT]


def incident(told: Told) -> ac.Incident:
    return list(told.incidents.values())[-1]


def test_milestones_are_the_hooks_own() -> None:
    assert PAST_IMPORTS == Milestone.INIT_ENTERED | Milestone.INIT_DONE | Milestone.FIRST_PROGRESS


def test_a_node_that_alone_lacks_a_module_is_swapped(told: Told) -> None:
    started(told)
    actions = fails(told, 2, {0: WAITS, 1: IMPORTED, 3: IMPORTED})
    assert told.phase is Phase.CHOOSING and out(told) == ["n1"]
    assert not any(isinstance(action, ac.Isolate) for action in actions), "of this run only: no quarantine"
    said = incident(told)
    assert (said.cause, said.action, said.evidence["only_on"]) == ("import_error", "isolate_node", "n1")
    assert said.advice == "Install on n1 what the other nodes have: their ranks got past their imports."
    again(told)
    assert told.state.fleet is not None and told.state.fleet.placed == ["n0", "n2"]
    assert told.state.fleet.members["n1"].why == "incident 001: import_error, there alone"


def test_a_syntax_error_of_one_nodes_copy_is_the_same(told: Told) -> None:
    started(told)
    fails(told, 2, {0: WAITS}, ev.ErrorRecord(error="SyntaxError", message="invalid syntax (model.py, line 3)"))
    assert told.phase is Phase.CHOOSING and out(told) == ["n1"]


def test_what_fails_on_the_next_node_at_that_place_ends_the_run(told: Told) -> None:
    """A script may have one rank alone import something."""
    started(told, spares=3)
    fails(told, 0, {2: WAITS, 3: WAITS})
    again(told)
    fails(told, 0, {2: WAITS, 3: WAITS})
    assert told.phase is Phase.ENDED and out(told) == ["n0"]
    assert told.state.give_up_reason == "it would only happen again (on n2 as on the node that it replaced)"
    assert incident(told).action == "give_up"


def test_two_nodes_that_lack_it_are_swapped_one_after_the_other(told: Told) -> None:
    started(told, spares=2)
    fails(told, 2, {0: WAITS})
    again(told)
    fails(told, 0, {2: WAITS})
    again(told)
    assert told.state.fleet is not None and told.state.fleet.placed == ["n3", "n2"]
    assert told.state.no_progress == 0, "that it got no further says nothing of the script"


def test_without_a_spare_the_run_ends_and_names_the_node(told: Told) -> None:
    started(told, spares=0)
    fails(told, 2, {0: WAITS})
    assert told.phase is Phase.ENDED and out(told) == []
    assert told.state.give_up_reason == "it would only happen again (only on n1: is something missing there?)"
    assert incident(told).evidence["only_on"] == "n1"


def test_a_module_that_nobody_has_swaps_nobody(told: Told) -> None:
    """The first to fail ends the others on their way to the same line."""
    started(told)
    fails(told, 2, {0: IMPORTED, 1: IMPORTED, 3: IMPORTED})
    assert told.phase is Phase.ENDED and out(told) == []
    assert told.state.give_up_reason == "it would only happen again"
    assert "only_on" not in incident(told).evidence


def test_an_import_in_the_midst_of_training_swaps_nobody(told: Told) -> None:
    """Whoever comes to it first fails, and the others wait for that rank."""
    started(told)
    fails(told, 2, dict.fromkeys(range(4), WAITS | int(Milestone.FIRST_PROGRESS)))
    assert told.phase is Phase.ENDED and told.state.give_up_reason == "it would only happen again"


def test_an_import_of_one_rank_of_a_node_alone_is_the_scripts(told: Told) -> None:
    started(told)
    fails(told, 2, {0: WAITS, 1: WAITS, 3: WAITS})
    assert told.phase is Phase.ENDED and told.state.give_up_reason == "it would only happen again"


def test_budgets_hold(told: Told) -> None:
    started(told, max_restarts=0)
    fails(told, 2, {0: WAITS})
    assert told.phase is Phase.ENDED and out(told) == []
    assert told.state.give_up_reason == "no restart is allowed (max_restarts is 0)"


def test_who_only_watches_swaps_nobody(told: Told) -> None:
    started(told, act=False)
    fails(told, 2, {0: WAITS})
    assert out(told) == []
    assert incident(told).action == "none" and incident(told).evidence["only_on"] == "n1"


def test_a_requeued_run_does_not_swap_that_place_again(told: Told) -> None:
    started(told)
    fails(told, 2, {0: WAITS})
    told.tell(
        ev.RunContinued(
            settings=told.state.settings,
            node="n0",
            world_size=2,
            wall_s=100.0,
            session=1,
            fleet=ev.FleetPlan(least=2, most=2, spares=1),
        ),
        100.0,
    )
    assert told.state.fleet is not None and told.state.fleet.lacked == [1]
    assert out(told) == ["n1"]
