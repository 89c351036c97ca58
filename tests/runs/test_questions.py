"""What a person asks a live run's ranks, and changes there: modules' times, what they train with, code, rates."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from guardrun.supervisor.rundir.traces import read_traces
from tests.runs.runs import EdgeRuns, finish
from tests.support import scenes
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until


def said(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done
    return done.stdout


def ask(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(said(folder, *arguments, "--json", code=code))
    return told


def test_a_live_run_is_traced_inspected_and_changed(edge: EdgeRuns) -> None:
    """Half a minute: one run, and a dozen requests, which take two seconds each, rates six."""
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
    printed = scenes.guardctl(folder, "profile", "show")
    scenes.check("what steps go to", "guardctl profile", printed, folder, until="^comm: ")
    explode(folder)
    (folder / "end").touch()
    finished = finish(run)
    assert finished.returncode == 0 and [one["cause"] for one in finished.incidents] == ["nan_loss"], finished
    (incident,) = finished.incidents
    words = "learning rate × 1e+06 (0.02 → 20000) in SGD by scale at step"
    assert f"Changed by hand before: {words}" in incident["summary"], incident
    changes = incident["evidence"]["changed_by_hand"]
    assert [one["verb"] for one in changes] == ["eval", "eval", "eval", "scale", "scale"]
    assert "print(type(model)" in changes[0]["code"] and words in changes[4]["said"]
    assert ask(folder, "trace", "show")["number"] == ask(folder, "profile", "show")["number"] == 1


def explode(folder: Path) -> None:
    """Code is run in one rank, which changes nothing; then all get another learning rate, and too high a one."""
    told = ask(folder, "eval", "1", "print(type(model).__name__, x.shape)\noptimizer.param_groups[0]['lr']")
    assert (told["outcome"], told["where"], told["result"], told["ranks"]) == ("done", "step", "0.1", 2)
    assert told["output"] == "DistributedDataParallel torch.Size([4, 16])\n" and told["changes"] == []
    assert told["frame"].startswith("<module> (replicas.py:")
    told = ask(folder, "eval", "0", "while True: pass", "--timeout", "0.5", code=1)
    assert (told["outcome"], told["where"]) == ("interrupted", "step")
    assert "no rank 7 on this node: ranks 0-1 are here" in ask(folder, "eval", "7", "1", code=1)["error"]
    for scene, words in (
        ("learning rate seen", ["eval", "1", "optimizer.param_groups[0]['lr']"]),
        ("learning rate changed", ["scale", "lr", "0.1"]),
    ):
        scenes.check(scene, shlex.join(["guardctl", *words]), said(folder, *words), folder)
    told = ask(folder, "scale", "lr", "1e6")
    ranks = [told["ranks"][number] for number in ("0", "1")]
    changed = [f"learning rate × 1e+06 ({rate}) in SGD" for rate in ("0.02 → 20000", "0.01 → 10000")]
    assert [one["changes"] for one in ranks] == [[one] for one in changed], told
    assert ranks[0]["step"] == ranks[1]["step"] and ranks[0]["lasting"] and told["missing"] == {}
    wait_until(lambda: ask(folder, "status")["incidents"], 60, "an incident")
    told = ask(folder, "diagnose", "--gap", "1")
    assert "changed by hand before: learning rate × 1e+06" in told["why"], told
    assert len(told["evidence"]["changed_by_hand"]) == 5
