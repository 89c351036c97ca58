"""One line in the script, and a rank that is well saves the last finished step before the ranks are ended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guardrun.supervisor.engine.model.actions import SaveInTime
from guardrun.supervisor.rundir.journal import read_lines
from tests.runs.runs import QUICK, RESUME, EdgeRuns, Finished, only, own_lines

JIT_S = 8
"""What it takes where it is over before it has come to anything; all others need not be so quick."""
STEPS, AT = 16, 9
FIRST_SAVE = 5


class Trained:
    """A run to its end."""

    def __init__(self, folder: Path, finished: Finished) -> None:
        assert finished.returncode == 0, finished
        self.finished = finished
        self.asked = sorted(path.name for path in folder.glob("asked-*"))
        lines = [line.split() for n in (0, 1) for line in (folder / f"losses-{n}").read_text().splitlines()]
        self.losses = sorted({(int(step), loss) for _, step, loss in lines})
        self.taken = {attempt: [int(step) for one, step, _ in lines if one == attempt] for attempt in ("0", "1")}


def train(edge: EdgeRuns, *arguments: str, jit_s: int = 30) -> Trained:
    config = f"{RESUME}jit_s = {jit_s}\n{QUICK}"
    return Trained(edge.folder, edge.run("in_time.py", f"--steps={STEPS}", *arguments, config=config))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    runs = EdgeRuns(tmp_path_factory.mktemp("undisturbed"))
    trained = train(runs)
    runs.close()
    return trained


def orders(trained: Trained) -> list[SaveInTime]:
    assert trained.finished.run_dir is not None
    lines = [line for line in read_lines(trained.finished.run_dir) if line is not None]
    return [action for line in lines for action in line.actions if isinstance(action, SaveInTime)]


@pytest.mark.parametrize(("fault", "culprit"), [("kill", 0), ("block", 1)])
def test_no_step_is_done_twice_and_every_loss_is_the_same(
    fault: str, culprit: int, edge: EdgeRuns, undisturbed: Trained
) -> None:
    """Rank 0 is the one that dies: the others have to save in its place."""
    trained = train(edge, f"--fault={fault}@{AT}:{culprit}")
    incident = only(trained.finished)
    jit = incident["evidence"]["jit"]
    assert "rank" in jit, trained.finished
    assert (jit["rank"], jit["step"], Path(jit["path"]).name) == (1 - culprit, AT - 1, f"jit_{AT - 1}.pt")
    assert incident["resumed_from"] == {"path": jit["path"], "step": AT - 1}
    assert trained.taken == {"0": [*range(1, AT)] * 2, "1": [*range(AT, STEPS + 1)] * 2}
    assert trained.losses == undisturbed.losses
    assert trained.asked == [f"asked-0-{1 - culprit}"]
    lines = own_lines(trained.finished)
    assert (
        sum(re.match(rf"rank {1 - culprit} saved step {AT - 1} in [\d.]+ s ", line) is not None for line in lines) == 1
    )


@pytest.mark.parametrize("how", ["well", "there"])
def test_by_torch_s_own_format_without_a_collective(how: str, edge: EdgeRuns, undisturbed: Trained) -> None:
    trained = train(edge, f"--fault=kill@{AT}:0", "--dcp", f"--how={how}", f"--first-save={FIRST_SAVE}")
    incident = only(trained.finished)
    saved = AT - 1 if how == "well" else FIRST_SAVE
    assert incident["resumed_from"]["step"] == saved and trained.losses == undisturbed.losses
    assert trained.taken["1"] == [*range(saved + 1, STEPS + 1)] * 2
    if how == "there":
        assert incident["evidence"]["jit"]["why"] == f"rank 1: jit_{AT - 1} is there already"
        assert list((edge.folder / "out" / f"jit_{AT - 1}").iterdir()) == [], "nobody's"


def test_who_waits_between_two_steps_saves_if_the_script_says_where_one_ends(
    edge: EdgeRuns, undisturbed: Trained
) -> None:
    """One rank evaluates, say, and never ends; the other is in the barrier behind it."""
    trained = train(edge, f"--fault=between@{AT}:1", "--said")
    incident = only(trained.finished)
    assert (incident["evidence"]["jit"].get("rank"), incident["resumed_from"]["step"]) == (0, AT), incident
    assert trained.taken == {"0": [*range(1, AT + 1)] * 2, "1": [*range(AT + 1, STEPS + 1)] * 2}
    assert trained.losses == undisturbed.losses


def test_one_that_hangs_after_it_has_saved_costs_its_time_and_the_one_before_is_taken(
    edge: EdgeRuns, undisturbed: Trained
) -> None:
    """What it left is whole, and newer; nobody knows what it is."""
    trained = train(edge, f"--fault=kill@{AT}:1", "--how=hangs", f"--first-save={FIRST_SAVE}", jit_s=JIT_S)
    incident = only(trained.finished)
    assert incident["evidence"]["jit"] == {"why": f"it was not done within {JIT_S} s"}
    assert (edge.folder / "out" / f"jit_{AT - 1}.pt").exists()
    assert Path(incident["resumed_from"]["path"]).name == f"ckpt_{FIRST_SAVE}.pt"
    assert trained.taken["1"][0] == FIRST_SAVE + 1
    assert trained.losses == undisturbed.losses


def test_one_that_would_wait_for_the_others_is_told_at_once(edge: EdgeRuns, undisturbed: Trained) -> None:
    trained = train(edge, f"--fault=kill@{AT}:1", "--how=collective", f"--first-save={FIRST_SAVE}")
    why = only(trained.finished)["evidence"]["jit"]["why"]
    assert why.startswith(
        "rank 0: RuntimeError: barrier() in a function given to save_with(): other ranks don't call it"
    )
    assert trained.taken["1"][0] == FIRST_SAVE + 1
    assert trained.losses == undisturbed.losses


def test_who_is_not_asked_hears_nothing(undisturbed: Trained) -> None:
    assert undisturbed.asked == [] and orders(undisturbed) == []
    assert undisturbed.finished.incidents == []
