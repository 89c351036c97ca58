"""Ranks are killed, nothing was saved, and two intervals of steps are done again at most."""

from __future__ import annotations

import re

import pytest

from tests.runs.runs import RESUME, EdgeRuns, own_lines

EVERY = 2
STEPS = 130
CONFIG = f"{RESUME}snapshot_steps = {EVERY}\n"


@pytest.mark.parametrize(("how", "kills"), [("replicas", "0@70,1@90,0@110"), ("shards", "1@75,0@100")])
def test_two_intervals_are_lost_at_most_whoever_is_killed(how: str, kills: str, edge: EdgeRuns) -> None:
    """At a random moment of the step; what is resumed from is whole, and every number is as it would have been."""
    finished = edge.run("snapshots.py", f"--how={how}", f"--steps={STEPS}", f"--kills={kills}", config=CONFIG)
    assert finished.returncode == 0, finished
    planned = kills.split(",")
    assert len(finished.incidents) == len(planned)
    taken = {
        (attempt, rank): dict(
            line.split() for line in (edge.folder / f"steps-{attempt}-{rank}").read_text().splitlines()
        )
        for attempt in range(len(planned) + 1)
        for rank in (0, 1)
    }
    for attempt, incident in enumerate(finished.incidents):
        last = max(int(step) for rank in (0, 1) for step in taken[attempt, rank])
        first = min(int(step) for rank in (0, 1) for step in taken[attempt + 1, rank])
        assert last - 2 * EVERY <= first - 1 <= last, (attempt, last, first)
        snapshot = incident["evidence"]["snapshot"]
        assert snapshot["step"] == first - 1 == incident["resumed_from"]["step"]
        assert snapshot["path"] == incident["resumed_from"]["path"]
        assert snapshot["files"] == (2 if how == "shards" else 1)
    steps: set[str] = set()
    for rank in (0, 1):
        losses: dict[str, str] = {}
        for attempt in range(len(planned) + 1):
            for step, loss in taken[attempt, rank].items():
                assert losses.setdefault(step, loss) == loss, (rank, attempt, step)
        steps |= losses.keys()  # one may have kept a step whose line the other had no time to write
    assert len(steps) == STEPS
    lines = [line for line in own_lines(finished) if re.match(r"wrote the snapshot of step \d+ from memory in ", line)]
    assert len(lines) == len(planned)
    assert [path for path in (edge.folder / "out").iterdir() if path.name.startswith(".")] == []
    assert (edge.folder / "end-0").read_text() == (edge.folder / "end-1").read_text()


def test_a_run_that_nobody_disturbs_writes_nothing(edge: EdgeRuns) -> None:
    finished = edge.run("snapshots.py", "--steps=8", "--how=alone", config=CONFIG)
    assert finished.returncode == 0 and finished.incidents == []
    assert not (edge.folder / "out").exists()


def test_a_run_that_is_given_up_leaves_what_its_ranks_held(edge: EdgeRuns) -> None:
    config = f"{CONFIG}[restart]\nmax_restarts = 0\n"
    finished = edge.run("snapshots.py", "--steps=40", "--how=default", "--kills=0@20", config=config)
    assert finished.returncode == 128 + 9, finished
    [path] = (edge.folder / "out").iterdir()
    last = max(int(line.split()[0]) for line in (edge.folder / "steps-0-0").read_text().splitlines())
    assert path.name in {f"snapshot_step_{step}.pt" for step in range(last - 2 * EVERY, last + 1)} and last >= 19
    lines = own_lines(finished)
    assert sum(line.startswith("wrote the snapshot of step ") for line in lines) == 1
