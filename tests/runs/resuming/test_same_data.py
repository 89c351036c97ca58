"""Real ranks that are killed at random: which samples each step was computed from, and what is told of it."""

from __future__ import annotations

import random
from typing import Any

from tests.runs.runs import EdgeRuns, Finished, own_lines
from tests.runs.samples import trained, undisturbed

SAMPLES, EPOCHS = 220, 4
KILLS = 20
CONFIG = f"""
[checkpoint]
dir = "out"
exact_data = {{exact}}
jit_s = 5
[restart]
max_restarts = {2 * KILLS}
"""
EXACT, TOLD = CONFIG.format(exact="true"), CONFIG.format(exact="false")


def replays(finished: Finished) -> list[dict[str, Any]]:
    assert finished.summary is not None
    return [one["data_replay"] for one in finished.summary["attempts"] if "data_replay" in one]


def test_each_sample_comes_once_over_twenty_kills(edge: EdgeRuns) -> None:
    """Twenty restarts of two ranks: takes half a minute. Every fourth attempt has a function for save_with()."""
    pick = random.Random(18)
    steps = sorted(pick.sample(range(5, EPOCHS * 27), KILLS))
    kills = ",".join(f"{step}:{pick.randint(0, 1)}" for step in steps)
    finished = edge.run("once.py", f"--kills={kills}", "--workers=0,1,4", config=EXACT, timeout_s=240)
    assert finished.returncode == 0, finished
    assert [incident["cause"] for incident in finished.incidents] == ["killed"] * KILLS
    for rank in (0, 1):
        assert trained(edge.folder, rank) == undisturbed(rank, SAMPLES, EPOCHS)
    told = replays(finished)
    assert {one["status"] for one in told} <= {"skipped", "continued"} and len(told) == KILLS
    assert finished.incidents[0]["evidence"]["data_replay"]["status"] == "skipped"
    said = [line for line in own_lines(finished) if "that the checkpoint holds are not trained on again." in line]
    assert len(said) == [one["status"] for one in told].count("skipped") >= KILLS - 2
    assert sorted(path.name for path in (edge.folder / "out").iterdir() if path.suffix != ".pt") == []


def test_a_script_that_skips_by_itself_does_so_once(edge: EdgeRuns) -> None:
    finished = edge.run("once.py", "--kills=6:0,47:1", "--itself", "--workers=1,0", config=EXACT)
    assert finished.returncode == 0, finished
    for rank in (0, 1):
        assert trained(edge.folder, rank) == undisturbed(rank, SAMPLES, EPOCHS)
    assert [one["status"] for one in replays(finished)] == ["skipped"] * 2
    assert all(one["passed_over"] for one in replays(finished))


def test_by_default_it_is_told_what_comes_twice_and_nothing_is_changed(edge: EdgeRuns) -> None:
    finished = edge.run("once.py", "--kills=10:1", config=TOLD)
    assert finished.returncode == 0, finished
    [told], [incident] = replays(finished), finished.incidents
    assert (told["status"], told["samples"], told["repeated"]) == ("repeated", 64, 64)
    assert told == incident["evidence"]["data_replay"]
    again = trained(edge.folder, 0)
    assert again[8:18] == undisturbed(0, SAMPLES, EPOCHS)[:10] and len(again) == EPOCHS * 27 + 8
    said = "64 samples of epoch 0 that the checkpoint holds are trained on again."
    assert sum(said in line for line in own_lines(finished)) == 1
    assert (
        finished.run_dir is not None
        and said in (finished.run_dir / "incidents").glob("*/report.html").__next__().read_text()
    )


def test_a_shuffle_that_cannot_be_repeated_is_told(edge: EdgeRuns) -> None:
    finished = edge.run("once.py", "--kills=6:0", "--unseeded", "--epochs=1", config=EXACT)
    assert finished.returncode == 0, finished
    [told] = replays(finished)
    assert told["status"] == "reordered" and told["repeated"] == told["left_out"] == 0
