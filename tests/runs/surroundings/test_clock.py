"""A wall clock that is set back by an hour in mid-run: nothing is decided by it."""

from __future__ import annotations

import json
import signal

import pytest

from tests.runs.runs import RESUME, EdgeRuns, finish, only, ranks_of
from tests.support.waiting import wait_until
from tests.support.wallclock import WallClock


@pytest.mark.real("cc")
def test_a_clock_set_back_by_an_hour_changes_nothing(edge: EdgeRuns) -> None:
    clock = WallClock(edge.folder)
    config = RESUME + "[hang]\nfloor_s = 2\n"
    run = edge.start("plain.py", "--when", "now:stop", "--steps", "100000", config=config, env=clock.environment)
    wait_until((edge.folder / "out/ckpt_50.safetensors").exists, 60, "fifty steps")
    clock.set(-3600)
    wait_until((edge.folder / "out/ckpt_150.safetensors").exists, 60, "a hundred more")
    assert run.incidents() == []
    (edge.folder / "now").touch()
    wait_until(lambda: any(incident["recovered"] for incident in run.incidents()), 60, "a stopped rank to be mended")
    run.send(signal.SIGTERM)
    finished = finish(run, 60)
    incident = only(finished)
    assert finished.returncode == 143
    assert (incident["cause"], ranks_of(incident), incident["action"]) == ("rank_stopped", [1], "restart")
    assert incident["resumed_from"]["step"] == 10 * (incident["step"] // 10)
    assert incident["onset"] <= incident["detected"] <= incident["recovered"]
    summary = finished.summary
    assert summary is not None
    assert 0 < summary["wall_s"] < 120
    assert 0 <= summary["goodput"] <= 1
    assert all(seconds >= 0 for seconds in summary["lost_s"].values())
    assert finished.run_dir is not None
    lines = [json.loads(line) for line in (finished.run_dir / "events.jsonl").read_text().splitlines()]
    times = [line["t"] for line in lines]
    walls = [line["wall"] for line in lines]
    assert times == sorted(times)
    assert walls != sorted(walls), "the clock was not set back"
