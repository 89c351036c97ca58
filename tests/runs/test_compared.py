"""Two real runs of a script of which one line was changed, side by side."""

from __future__ import annotations

import json

from guardrun.supervisor.rundir.environment import NAME
from tests.runs.runs import SCRIPTS, EdgeRuns, finish
from tests.support import scenes
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until

STEPS, LATER = 40, 10
SECRET = "hunter2hunter2"


def train(edge: EdgeRuns, name: str, factor: str) -> GuardrunRun:
    """Run a copy of the script with one line changed, in a folder of its own; the run has its name."""
    folder = edge.folder / name
    folder.mkdir()
    source = (SCRIPTS / "compared.py").read_text()
    (folder / "compared.py").write_text(source.replace("FACTOR = 1.0", f"FACTOR = {factor}"))
    env: dict[str, str | None] = {"HF_TOKEN": SECRET, "OMP_NUM_THREADS": "1"}
    flags = ("--guard-run-id", name)
    run = edge.start(f"./{name}/compared.py", str(STEPS), "0.05", f"{name}/stop", flags=flags, config="", env=env)
    wait_until((run.guard_dir / name / NAME).exists, 120, "what was recorded of its code")
    (folder / "stop").touch()
    finished = finish(run)
    assert finished.returncode == 0 and finished.incidents == [], finished
    return run


def test_one_line_makes_the_difference(edge: EdgeRuns) -> None:
    train(edge, "first", "1.0")
    run = train(edge, "second", "1.5")
    [record] = json.loads((run.guard_dir / "first" / NAME).read_text())["records"]
    assert record["seed"] == 7 and record["packages"]["torch"].startswith(record["runtime"]["torch"].split("+")[0])
    assert (record["flags"]["num_threads"], record["variables"]["OMP_NUM_THREADS"]) == ("1", "1")
    for file in (run.guard_dir / "second").rglob("*"):
        assert not file.is_file() or SECRET not in file.read_text(errors="replace"), file

    data = json.loads(run.guardctl("compare", "first", "second", "--json"))
    differing = [(one["kind"], one["what"]) for one in data["differences"] if one["kind"] != "throughput"]
    assert differing == [("code", "compared.py"), ("arguments", "arguments"), ("place", "script")]
    printed = scenes.guardctl(edge.folder, "compare", "first", "second")
    scenes.check("evaluation worse", "guardctl compare first second", printed, edge.folder, until="^The same: ")
    loss = data["curves"]["loss"]
    assert (loss["equal"], loss["unequal_from"], loss["last_step"]) == (LATER, LATER + 1, STEPS)
    assert any("the samples of the first 32 batches of the first pass" in words for words in data["same"])
    assert "torch's seed on rank 0 (7)" in data["same"]
