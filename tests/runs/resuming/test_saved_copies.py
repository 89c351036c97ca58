"""A script saves over its only checkpoint, and is killed while it does.

`make soak` kills 200 attempts, ten runs of twenty; `make test` three of one.
"""

from __future__ import annotations

import random
import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.runs.runs import RESUME, EdgeRuns, own_lines

STEPS, EVERY, CUT = 60, 10, 40


@pytest.mark.parametrize("mirror", [True, False])
def test_a_save_that_is_cut_short_over_the_only_checkpoint(edge: EdgeRuns, mirror: bool) -> None:
    """With a copy in memory one interval is done again; without, everything, as nothing whole is left."""
    config = f"{RESUME}mirror = {'true' if mirror else 'false'}\n"
    arguments = (f"--steps={STEPS}", f"--save-every={EVERY}", f"--cut-at={CUT}", *(["--copies"] if mirror else []))
    finished = edge.run("in_place.py", *arguments, config=config)
    assert finished.returncode == 0, finished
    [incident] = finished.incidents
    path, copy = (edge.folder / "out" / name for name in ("last.pt", "last.guardrun.pt"))
    assert [skipped["path"] for skipped in incident["evidence"]["skipped_checkpoints"]] == [str(path)]
    taken = {
        (attempt, rank): dict(
            line.split() for line in (edge.folder / f"steps-{attempt}-{rank}").read_text().splitlines()
        )
        for attempt in (0, 1)
        for rank in (0, 1)
    }
    first = min(int(step) for step in taken[1, 0])
    said = [line for line in own_lines(finished) if line.startswith(f"wrote the copy of {path} from memory in ")]
    if mirror:
        assert first == CUT - EVERY + 1 == incident["resumed_from"]["step"] + 1
        told = incident["evidence"]["snapshot"]
        assert (told["original"], told["path"], told["step"]) == (str(path), str(copy), CUT - EVERY)
        assert incident["resumed_from"]["path"] == str(copy) and len(said) == 1
    else:
        assert first == 1 and "snapshot" not in incident["evidence"]
        assert incident["resumed_from"] is None and not copy.exists() and said == []
    for rank in (0, 1):
        again = taken[1, rank]
        assert all(again[step] == loss for step, loss in taken[0, rank].items() if step in again), "bit for bit"
        assert len(again | taken[0, rank]) == STEPS
    assert sorted(one.name for one in (edge.folder / "out").iterdir()) == sorted(
        [path.name, *([copy.name] if mirror else [])]
    )


def test_a_script_that_cannot_load_the_copy_goes_on_as_without_one(edge: EdgeRuns) -> None:
    """It wants another file beside it, by its name: the original has one."""
    finished = edge.run(
        "in_place.py",
        f"--cut-at={CUT}",
        "--copies",
        "--sidecar",
        config=f"{RESUME}mirror = true\n[restart]\nmax_restarts = 1\n",
    )
    assert finished.returncode == 0, finished
    killed, refused = finished.incidents
    assert killed["evidence"]["snapshot"]["step"] == CUT - EVERY
    assert (refused["cause"], refused["action"], refused["resumed_from"]) == ("exception", "restart", None)
    assert "last.guardrun.json" in refused["summary"]
    assert finished.summary is not None and finished.summary["restarts"] == 1
    assert (edge.folder / "steps-2-0").read_text().startswith("1 ")


def test_a_run_that_is_given_up_leaves_the_copy_on_the_disk(edge: EdgeRuns) -> None:
    """Memory is gone with it, and nothing else whole is left."""
    config = f"{RESUME}mirror = true\n[restart]\nmax_restarts = 0\n"
    finished = edge.run("in_place.py", f"--cut-at={CUT}", "--copies", config=config)
    assert finished.returncode == 128 + 9, finished
    assert sorted(one.name for one in (edge.folder / "out").iterdir()) == ["last.guardrun.pt", "last.pt"]
    assert sum(line.startswith("wrote the copy of ") for line in own_lines(finished)) == 1


def play(runs: EdgeRuns, kills: int) -> None:
    """One run, in so many attempts of which rank 0 is killed, at the same moments for the same seed."""
    seed, every = random.randrange(1 << 30), 2
    arguments = (f"--kills={seed}:{kills}", "--copies", f"--save-every={every}", f"--steps={3 * every * (kills + 1)}")
    config = f"{RESUME}mirror = true\n[restart]\nmax_restarts = {kills}\nmax_no_progress = 0\n"
    finished = runs.run("in_place.py", *arguments, config=config, timeout_s=600.0)
    assert finished.returncode == 0, (seed, finished)
    whole = 0
    for attempt in range(kills + 1):
        steps = (runs.folder / f"steps-{attempt}-0").read_text().splitlines()
        assert int(steps[0].split()[0]) == whole + 1, (seed, attempt, finished)
        saved = runs.folder / f"saved-{attempt}"
        whole = int(saved.read_text().split()[-1]) if saved.exists() else whole
    names = [path.name for path in (runs.folder / "out").iterdir()]
    assert all(re.fullmatch(r"last(\.guardrun(-\d+)?)?\.pt", name) for name in names), (seed, names)


def test_killed_at_any_moment_of_a_save_it_goes_on_from_the_last_whole_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_soak = request.config.getoption("--hypothesis-profile") == "soak"
    for number in range(10 if is_soak else 1):
        (folder := tmp_path / str(number)).mkdir()
        with closing(EdgeRuns(folder)) as runs:
            play(runs, kills=20 if is_soak else 3)
