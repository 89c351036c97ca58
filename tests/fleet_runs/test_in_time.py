"""Several nodes: whoever is well saves the last finished step before the ranks are ended, wherever it lives.

One run for all that goes well: its ranks are killed, hang, raise and are stopped, and a node is lost, one after the
other. One for what goes wrong while a rank saves: nothing of that is resumed from.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.engine.model.actions import SaveInTime
from guardrun.supervisor.rundir.journal import read_lines
from tests.fleet_runs.jobs import QUICK, Job, go, kill
from tests.runs.runs import QUICK as SOON
from tests.runs.runs import RESUME, SCRIPTS, EdgeRuns, check_replay
from tests.support.netlab import Lab

pytestmark = [pytest.mark.real("netns"), pytest.mark.timeout(600)]

JIT_S = 30
LOOKED_S = 10
"""A rank that blocks as its node is about to be lost is not to be found before that."""
FLEET = QUICK[QUICK.index("[fleet]") :]
CONFIG = f"{RESUME}jit_s = {JIT_S}\n{SOON}[restart]\nstop_grace_s = 3\nmax_no_progress = 9\n{FLEET}"
PATIENT = CONFIG.replace("floor_s = 2\n", f"floor_s = {LOOKED_S}\n")
STEPS = 26
FAULTS = ("kill@5:0", "block@9:1", "raise@13:1", "stop@17:0", "lose@20:1", "lose@23:1")
"""Of the attempts: which rank suffers what, at which step."""
CULPRITS = [("head", 0), ("node1", 1), ("node1", 1), ("head", 0), ("node1", 1), ("node2", 1)]
SPOILT = ("kill@9:0", "kill@9:1", "kill@9:0", "raise@9:0")
HOW = ("hangs", "hangs", "hangs", "apart")
"""What the other rank does, asked to save."""
KEPT = 5
"""The ordinary save before."""


class Told:
    """What is left of a run."""

    def __init__(self, job: Job) -> None:
        check_replay(job.run_dir)
        self.folder, self.outputs, self.incidents = job.folder, job.outputs(), job.incidents()
        lines = [line.split() for n in (0, 1) for line in (job.folder / f"losses-{n}").read_text().splitlines()]
        self.losses = sorted({(int(step), loss) for _, step, loss in lines})
        attempts = range(1 + max(int(one) for one, _, _ in lines))
        self.taken = [sorted({int(step) for one, step, _ in lines if int(one) == n}) for n in attempts]
        self.asked = {path.name for path in job.folder.glob("asked-*")}
        lines_of = (line for line in read_lines(job.run_dir) if line is not None)
        self.orders = [one for line in lines_of for one in line.actions if isinstance(one, SaveInTime)]


def begin(job: Job, config: str, faults: tuple[str, ...], *more: str) -> None:
    job.script = SCRIPTS / "in_time.py"
    script_args = [f"--steps={STEPS}", *(f"--fault={fault}" for fault in faults), *more]
    job.start(2, ["head", "node1", "node2"], spares=1, config=config, script_args=script_args)


@pytest.fixture(scope="module")
def told(hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    job = Job(hosts, tmp_path_factory.mktemp("in_time"))
    try:
        begin(job, PATIENT, FAULTS)
        for attempt in range(len(FAULTS)):
            if attempt == 5:  # while it is being started: once its rank blocks, that is found within seconds
                job.says("head", "the next attempt goes without node1")
                job.lab.restore(job["node1"].host)
                job.says("head", "node1 is back")
            go(job, attempt)
            if FAULTS[attempt].startswith("lose"):
                job.wait_for((job.folder / f"lose-{attempt}").exists, 60.0, "a node to be lost")
            if attempt == 4:  # nothing is heard of it any more, and no connection is closed
                job.lab.cut(job["node1"].host)
        job["node2"].host.crash()
        codes = job.ended(60.0)
        assert (codes["head"], codes["node1"]) == (0, 0), job.outputs()
        yield Told(job)
    finally:
        job.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    runs = EdgeRuns(tmp_path_factory.mktemp("undisturbed"))
    finished = runs.run("in_time.py", f"--steps={STEPS}")
    lines = [line.split() for n in (0, 1) for line in (runs.folder / f"losses-{n}").read_text().splitlines()]
    runs.close()
    assert finished.returncode == 0, finished
    return sorted({(int(step), loss) for _, step, loss in lines})


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_no_step_is_done_twice(number: int, told: Told) -> None:
    """Long: all faults of the run, of which two are hangs, and a lease that has to end."""
    at, (node, culprit) = int(FAULTS[number].split("@")[1].partition(":")[0]), CULPRITS[number]
    incident: dict[str, Any] = told.incidents[number]
    jit = incident["evidence"]["jit"]
    assert [(one["node"], one["rank"]) for one in incident["culprits"]] == [(node, culprit)], told.outputs
    assert (jit.get("rank"), jit.get("step")) == (1 - culprit, at - 1), (jit, told.outputs)
    assert Path(incident["resumed_from"]["path"]).name == f"jit_{at - 1}.pt"
    assert told.taken[number][-1] == at - 1 and told.taken[number + 1][0] == at
    assert f"asked-{number}-{1 - culprit}" in told.asked and f"asked-{number}-{culprit}" not in told.asked


def test_every_loss_is_the_same(told: Told, undisturbed: list[tuple[int, str]]) -> None:
    assert told.losses == undisturbed


def test_of_a_lost_node_nobody_is_waited_for(told: Told) -> None:
    assert [(one.global_ranks, one.alive) for one in told.orders[-2:]] == [([0], [0])] * 2


def test_what_goes_wrong_meanwhile_costs_its_time_and_nothing_else(
    job: Job, undisturbed: list[tuple[int, str]]
) -> None:
    """Its node is cut off, the head's supervisor is killed, its own is; or nobody else can see what it wrote.

    Long: a lease has to end.
    """

    def saves(attempt: int, rank: int) -> None:
        go(job, attempt)
        job.wait_for((job.folder / f"asked-{attempt}-{rank}").exists, 60.0, f"rank {rank} to be asked")
        job.wait_for((job.folder / "out" / "jit_8.pt").exists, 20.0, "it to have written")

    (job.folder / "apart").mkdir(exist_ok=True)
    begin(job, CONFIG, SPOILT, *(f"--how={how}" for how in HOW), f"--first-save={KEPT}")
    saves(0, 1)
    job.lab.cut(job["node1"].host)
    saves(1, 0)
    kill(job["head"].supervisor())
    saves(2, 1)
    joined = '"type":"node_joined","node":"node2"'
    count = (job.run_dir / "events.jsonl").read_text().count(joined)
    kill(job["node2"].supervisor())
    for name in ("node1", "node2"):
        job[name].host.hide(job.folder / "apart")
    job.lab.restore(job["node1"].host)
    try:
        job.happens(joined, count + 1)
        go(job, 3)
        job.ended(90.0)
    finally:
        for name in ("node1", "node2"):
            job[name].host.run("umount", str(job.folder / "apart"))
    told = Told(job)
    whys = [one["evidence"]["jit"]["why"] for one in told.incidents if "jit" in one["evidence"]]
    unseen = f"rank 1 saved {job.folder}/apart/jit_8.pt: {{}} does not see it: it is not there"
    away = "rank 1: {} can't be reached any more"
    assert whys[:2] == [away.format("node1"), "the supervisor was started anew"], told.outputs
    # Where its next supervisor takes its time, that is all that is known.
    assert whys[2:-1] in (["rank 1: its supervisor was started anew"], [away.format("node2")]), told.outputs
    assert whys[-1] in {unseen.format("head"), unseen.format("node1")}, "whichever was the first to answer"
    assert [taken[0] for taken in told.taken] == [1, *[KEPT + 1] * len(SPOILT)]
    assert told.losses == undisturbed


@pytest.mark.parametrize(
    ("shards", "jit_s", "saved_by", "files"),
    [
        pytest.param([], JIT_S, {"rank": 0}, ["jit_{}.pt"], id="one for all"),
        pytest.param(
            ["--shards=2"],
            2 * JIT_S,  # ranks train on for some seconds first
            {"rank": 0, "ranks": [0, 1]},
            ["jit_{}_shard0_of_2.pt", "jit_{}_shard1_of_2.pt"],
            id="parts",
        ),
        pytest.param(
            ["--shards=2", "--dcp"], 2 * JIT_S, {"rank": 0, "ranks": [0, 1]}, ["jit_{}"], id="parts of one folder"
        ),
    ],
)
def test_a_job_that_is_about_to_end_has_ranks_save_while_all_train_on(
    shards: list[str], jit_s: int, saved_by: dict[str, Any], files: list[str], job: Job
) -> None:
    """Each rank is on a node of its own: what is saved on one, the other sees; parts are of one step."""
    job.script = SCRIPTS / "in_time.py"
    config = CONFIG.replace(f"jit_s = {JIT_S}\n", f"jit_s = {jit_s}\n")
    job.start(2, ["head", "node1"], config=config, script_args=["--steps=100000", "--marks=on", *shards])
    losses = [job.folder / f"losses-{rank}" for rank in (0, 1)]
    job.wait_for(lambda: all(one.exists() and one.read_text().count("\n") > 3 for one in losses), 60.0, "steps")
    job["head"].send(signal.SIGUSR1)
    assert set(job.ended(60.0).values()) == {138}, job.outputs()
    check_replay(job.run_dir)
    [incident] = job.incidents()
    saved = incident["evidence"]["checkpoint"]
    assert incident["evidence"]["in_time"], (incident, job.outputs())
    assert saved_by.items() <= incident["evidence"]["jit"].items()
    assert sorted(path.name for path in (job.folder / "out").iterdir()) == [
        name.format(saved["step"]) for name in files
    ]
    assert {path.name for path in job.folder.glob("asked-*")} == {
        f"asked-0-{rank}" for rank in saved_by.get("ranks", [0])
    }
