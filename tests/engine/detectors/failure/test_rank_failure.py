"""Crashes of which only a log that ranks share says why."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.events import ExitTrace
from tests.engine.conftest import Told

ECC = "what(): CUDA error: uncorrectable ECC error encountered"
SAID = {"node-a": ECC}


def test_the_one_rank_that_aborted_is_who_said_it(told: Told) -> None:
    told.running(3)
    told.exits(1, -6, 20.0)
    told.tick()
    told.tell(ev.ExitsRead(attempt=0, traces=[], last_words=SAID), 20.5)
    incident = told.incidents["001"]
    assert (incident.cause, [c.rank for c in incident.culprits]) == ("gpu_lost", [1])
    assert incident.evidence["stderr"] == ECC
    assert "SIGABRT): CUDA error: uncorrectable ECC error encountered" in incident.summary


@pytest.mark.parametrize(("codes", "cause"), [({1: -6, 2: -6}, "abort"), ({1: -11}, "segfault"), ({1: -9}, "killed")])
def test_where_several_or_none_aborted_nobody_said_it(told: Told, codes: dict[int, int], cause: str) -> None:
    told.running(3)
    for rank, code in codes.items():
        told.exits(rank, code, 20.0)
    told.tick()
    told.tell(ev.ExitsRead(attempt=0, traces=[], last_words=SAID), 20.5)
    told.tell(ev.Ticked(), 23.0)
    incident = told.incidents["001"]
    assert incident.cause == cause
    assert "stderr" not in incident.evidence


def test_another_node_s_words_and_words_of_its_own(told: Told) -> None:
    told.running(3)
    told.exits(1, -6, 20.0)
    told.tick()
    own = ExitTrace(global_rank=1, stderr_tail="[rank1]: free(): invalid pointer")
    told.tell(ev.ExitsRead(attempt=0, traces=[own], last_words={**SAID, "node-b": ECC}), 20.5)
    incident = told.incidents["001"]
    assert (incident.cause, incident.evidence["stderr"]) == ("abort", "[rank1]: free(): invalid pointer")


def test_lines_of_its_own_that_say_nothing_of_its_end_keep_nobody_from_hearing_it(told: Told) -> None:
    told.running(3)
    told.exits(1, -6, 20.0)
    told.tick()
    own = ExitTrace(global_rank=1, stderr_tail="[rank1]:[W123] using devices that are unknown by this process")
    told.tell(ev.ExitsRead(attempt=0, traces=[own], last_words=SAID), 20.5)
    incident = told.incidents["001"]
    assert (incident.cause, incident.evidence["stderr"]) == ("gpu_lost", f"{own.stderr_tail}\n{ECC}")
