"""What a person asks a live run's ranks: which modules their steps go to, and what they train with."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from guardrun.supervisor.rundir.traces import read_traces
from tests.runs.runs import EdgeRuns, finish
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until


def ask(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_live_run_is_traced_and_inspected(edge: EdgeRuns) -> None:
    run: GuardrunRun = edge.start("replicas.py", config=None)
    folder = edge.folder

    def steps() -> int:
        told = ask(folder, "status")
        return min([rank["step"] for rank in told["ranks"]], default=0)

    wait_until((folder / "guardrun-runs" / "latest").exists, 60, "a run")
    wait_until(lambda: steps() > 20, 120, "steps")
    traced = ask(folder, "trace", "on", "--steps", "3")
    assert sorted(traced["ranks"]) == ["0", "1"] and traced["missing"] == {}
    for told in traced["ranks"].values():
        calls = {(one["module"], one["stage"]): one["count"] for one in told["modules"]}
        assert calls["module.0", "forward"] == calls["module.2", "backward"] == calls["(whole)", "forward"] == 3
        assert len(told["steps"]) == 3 and told["memory"] == "host" and not told["is_cut"]
    kept = list(read_traces((folder / "guardrun-runs" / "latest").resolve()))
    assert [(one.number, one.rank) for one in kept] == [(1, 0), (1, 1)] and all(one.rows for one in kept)
    state = ask(folder, "inspect")
    assert sorted(state["ranks"]) == ["0", "1"] and state["missing"] == {}
    one = state["ranks"]["0"]
    assert one["models"][0]["type"] == "DistributedDataParallel" and one["troubles"] == {}
    assert [group["backend"] for group in one["groups"]] == ["gloo"] and one["at_step"]["gradient_norm"] > 0
    assert list(state["differences"]) == ["optimizers.0.groups.0.lr"]
    profiled = ask(folder, "profile", "--steps", "2")
    assert sorted(profiled["ranks"]) == ["0", "1"] and profiled["missing"] == {}
    for told in profiled["ranks"].values():
        found = told["breakdown"]
        names = {one["name"] for one in found["operators"]}
        assert (
            len(told["steps"]) == 2
            and not told["why"]
            and found["where"] == "host"
            and not told["unrecorded"]
            and found["trouble"] == ""
        )
        assert {"aten::addmm", "gloo:all_reduce"} <= names and sum(found["parts"].values()) > 0
        trace = (folder / "guardrun-runs" / "latest").resolve() / told["trace"]
        with gzip.open(trace, "rt") as file:
            assert sum("guardrun.step#" in line for line in file) == 3
    assert Path(profiled["page"]).read_text().startswith("<!doctype html>")
    (folder / "end").touch()
    finished = finish(run)
    assert (finished.returncode, finished.incidents) == (0, []), finished
    assert ask(folder, "trace", "show")["number"] == ask(folder, "profile", "show")["number"] == 1
