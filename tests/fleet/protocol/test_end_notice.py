"""What nodes that do not lead say at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.fleet.protocol.leader_loss_policy import is_silent, last_words, leaving_words

RUN = Path("/runs/long")


def ended(outcome: str, exit_code: int, reason: str, incident: str | None = None) -> State:
    told = Incident(
        id="002",
        attempt=1,
        kind="crash",
        cause="exit_code",
        confidence=0.9,
        summary="Rank 3 on node1 exited with code 7.",
        culprits=[],
        onset_s=1.0,
        detected_s=1.0,
        step=None,
        evidence={},
        advice="",
        action="give_up",
    )
    state = State(outcome=outcome, exit_code=exit_code, give_up_reason=reason, incidents={"002": told})
    state.attempts = [{"attempt": 1, "incident": incident}]
    return state


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ended("finished", 0, "training ended well"), ""),
        (
            ended("gave_up", 7, "all 3 restarts are used up", "002"),
            "the run was given up: all 3 restarts are used up; incident 002: Rank 3 on node1 exited with code 7; "
            "report, on head: /runs/long/incidents/002-exit_code/report.html",
        ),
        (
            ended("failed", 1, "could not start the ranks: no memory"),
            "the run has failed: could not start the ranks: no memory; its record, on head: /runs/long",
        ),
        (
            ended("interrupted", 143, "SIGTERM to guardrun on node2", "002"),
            "the run was ended: SIGTERM to guardrun on node2; its record, on head: /runs/long",
        ),
        (
            ended("preempted", 138, "SIGUSR1"),
            "the run was ended before its time: SIGUSR1; its record, on head: /runs/long",
        ),
        (ended("gave_up", 1, "why", "009"), "the run was given up: why; its record, on head: /runs/long"),
    ],
)
def test_why_it_ended_and_where_that_is_told(state: State, words: str) -> None:
    assert last_words(state, "head", RUN) == words


def test_in_a_step_of_slurms_the_head_speaks_for_all() -> None:
    assert is_silent({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})
    assert not is_silent({"SLURM_JOB_ID": "7"}) and not is_silent({})


def test_a_spare_that_goes() -> None:
    assert leaving_words("node2", 15) == "SIGTERM to guardrun here: node2 leaves the job, which goes on without it"
