"""A rank whose device stands in a collective that never ends saves the last finished step, by a stream of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.tensor  # what is sharded is loaded as its tensors

from tests.emu.ranks import LIGHT
from tests.emu.ranks import SCRIPT as TRAIN
from tests.runs.runs import QUICK as SOON
from tests.runs.runs import RESUME, EdgeRuns, finish, only
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("g++")

STEPS, AT = 12, 8
CONFIG = f"{RESUME}jit_s = 60\n{SOON}"
SHORT = {**LIGHT, "EMU_QUEUE": "200"}
"""What is queued, a device on a busy machine is through with within seconds."""


SCRIPT = str(TRAIN.with_name("in_time.py"))


class Trained:
    """A run to its end."""

    def __init__(self, runs: EdgeRuns, *arguments: str, ranks: int = 2) -> None:
        planted = (f"--steps={STEPS}", f"--at={AT}", *arguments)  # the last of each counts
        self.finished = runs.run(SCRIPT, *planted, config=CONFIG, env=dict(SHORT), ranks=ranks)
        assert self.finished.returncode == 0, self.finished
        files = [runs.folder / f"losses-{number}" for number in range(ranks)]
        lines = [line.split() for file in files for line in file.read_text().splitlines()]
        self.losses = sorted({(int(step), loss) for _, step, loss in lines})
        self.taken = {attempt: sorted({int(step) for one, step, _ in lines if one == attempt}) for attempt in "01"}
        self.asked = sorted(path.name for path in runs.folder.glob("asked-*"))


@pytest.fixture
def runs(library: Path, tmp_path: Path) -> Iterator[EdgeRuns]:
    one = EdgeRuns(tmp_path)
    yield one
    one.close()


@pytest.fixture(scope="module")
def undisturbed(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    one = EdgeRuns(tmp_path_factory.mktemp("undisturbed"))
    trained = Trained(one)
    one.close()
    return trained


@pytest.mark.parametrize(("fault", "done"), [("block", AT - 1), ("kill", AT - 1), ("between", AT)])
def test_no_step_is_done_twice_and_every_loss_is_the_same(
    fault: str, done: int, runs: EdgeRuns, undisturbed: Trained
) -> None:
    """Rank 1 never comes, or is gone; rank 0's device waits for its gradients, or for its loss, once a step is done."""
    trained = Trained(runs, f"--fault={fault}")
    incident = only(trained.finished)
    jit = incident["evidence"]["jit"]
    assert (jit.get("rank"), jit.get("step")) == (0, done), (jit, trained.finished)
    assert incident["resumed_from"] == {"path": jit["path"], "step": done}
    assert trained.taken == {"0": [*range(1, done + 1)], "1": [*range(done + 1, STEPS + 1)]}
    assert trained.losses == undisturbed.losses and trained.asked == ["asked-0-0"]


def test_of_shards_with_replicas_each_part_is_saved(runs: EdgeRuns, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Long: four ranks, twice. Rank 3 never comes; in its forward pass rank 2's device waits for shards of it."""
    trained = Trained(runs, "--shards=2", "--fault=block", "--culprit=3", ranks=4)
    incident = only(trained.finished)
    jit = incident["evidence"]["jit"]
    assert (jit.get("ranks"), jit.get("step")) == ([0, 1], AT - 1), (jit, trained.finished)
    assert Path(incident["resumed_from"]["path"]).name == f"jit_{AT - 1}_shard0_of_2.pt"
    assert trained.taken == {"0": [*range(1, AT)], "1": [*range(AT, STEPS + 1)]}
    assert trained.asked == ["asked-0-0", "asked-0-1"]
    whole = EdgeRuns(tmp_path_factory.mktemp("whole"))
    assert trained.losses == Trained(whole, "--shards=2", ranks=4).losses
    whole.close()


def test_a_host_that_is_past_its_step_has_nothing_that_could_be_saved(runs: EdgeRuns, undisturbed: Trained) -> None:
    """It waits for its loss after the step: the optimizer's count is of that step, its parameters of the one before."""
    trained = Trained(runs, "--fault=block", "--waits=after")
    incident = only(trained.finished)
    assert incident["evidence"]["jit"]["why"] == f"ranks have finished different numbers of steps: {AT - 1} and {AT}"
    assert trained.asked == [] and trained.taken["1"] == [*range(1, STEPS + 1)]


@pytest.mark.parametrize(("shards", "name"), [((), "jit_{}.pt"), (("--shards=2",), "jit_{}_shard0_of_2.pt")])
def test_before_the_job_ends_a_device_that_is_behind_is_waited_for(
    shards: tuple[str, ...], name: str, runs: EdgeRuns, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The host launches step after step, and looks at nothing: it is kept before its next until the device is there.

    What follows from the checkpoint has the losses of a run that nothing has disturbed.
    """
    endless = ("--steps=100000", "--waits=never", "--kernel-s=0.03", *shards)
    run = runs.start(SCRIPT, *endless, config=CONFIG, env=dict(SHORT))
    wait_until(lambda: len(list(runs.folder.glob("ahead-*"))) == 2, 60, "steps")
    run.send(signal.SIGUSR1)
    finished = finish(run, 60)
    assert finished.returncode == 138, finished
    incident = only(finished)
    saved = incident["evidence"]["checkpoint"]
    assert incident["evidence"]["in_time"] and Path(saved["path"]).name == name.format(saved["step"])
    content, further = torch.load(runs.folder / saved["path"]), f"--steps={saved['step'] + 3}"
    assert {content["step"], *(int(one["step"]) for one in content["optimizer"]["state"].values())} == {saved["step"]}
    resumed = Trained(runs, further, f"--resume={saved['path']}", *shards)
    whole = EdgeRuns(tmp_path_factory.mktemp("whole"))
    assert resumed.losses == Trained(whole, further, *shards).losses[-6:] and len(resumed.losses) == 6
    whole.close()
