"""guardctl compare: two run folders side by side, whatever is left of them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.rundir.environment import Environment, FileDigest, add_environment
from guardrun.supervisor.rundir.journal import Journal
from guardrun.supervisor.rundir.step_values import StepsFile, StepValues
from tests.cli.conftest import NODE, Ctl, make_run
from tests.report.soundness import check
from tests.support.journals import read

SCRIPT = ["/usr/bin/python3", "-u", "train.py", "--lr", "0.1"]


def record(run_dir: Path, *, losses: list[float], rate: float = 0.1, order: str = "beef", ranks: int = 2) -> None:
    """A journal of a training of that many steps, with a report a second, and the values of single steps."""
    engine, journal = Engine(), Journal(run_dir)
    started = [ev.Rank(global_rank=n, local_rank=n, pid=4241 + n, node=NODE) for n in range(ranks)]
    opened = ev.RunOpened(
        run_id=run_dir.name, settings=ev.Settings(), node=NODE, command=[], world_size=ranks, wall_s=1795e6
    )
    story: list[tuple[float, ev.Event]] = [(0.0, opened), (0.5, ev.AttemptStarted(attempt=0, ranks=started))]
    for step, loss in enumerate(losses, start=1):
        metrics = ev.TrainingMetrics(first=step, last=step, loss=loss, grad_norm=1.0, learning_rate=rate)
        samples = [ev.SampleOrder(0, 0, 32, 256, order, length=40)] if step == 1 else []
        report = ev.RankReport(
            global_rank=0, progress_s=float(step), progress=step, step=step, metrics=metrics, samples=samples
        )
        story.append((float(step), ev.NodeReport(node=NODE, attempt=0, ranks=[report])))
    try:
        for now_s, event in story:
            journal.append(event, engine.handle(event, now_s), now_s)
    finally:
        journal.close()
    with closing(StepsFile(run_dir)) as file:
        file.add(0, [StepValues(step, loss, 1.0) for step, loss in enumerate(losses, start=1)])


@pytest.fixture
def pair(runs: Path) -> tuple[Path, Path]:
    """Two runs of 40 steps: with another learning rate, and another loss from step 11 on."""
    a, _ = make_run(runs, "one", script=SCRIPT)
    b, _ = make_run(runs, "two", script=[*SCRIPT[:-1], "0.2"])
    losses = [3.0 - step / 50 for step in range(40)]
    record(a, losses=losses)
    record(b, losses=[loss + (0.5 if step >= 10 else 0.0) for step, loss in enumerate(losses)], rate=0.2)
    return a, b


def test_what_differs_comes_first(ctl: Ctl, pair: tuple[Path, Path]) -> None:
    out = ctl("compare", "one", "two")
    words = "Loss: equal to the last bit for 10 steps; from step 11 on they differ; by more than noise from step 1"
    assert words in out, out
    place = [out.index(words) for words in ("--lr", "learning rate")]
    assert place == sorted(place)
    assert "Not known: code, versions, flags and variables: neither run has recorded them" in out


def test_as_json(ctl: Ctl, pair: tuple[Path, Path]) -> None:
    data = ctl.json("compare", "one", "two")
    assert [one["kind"] for one in data["differences"]] == ["arguments", "learning_rate"]
    assert data["curves"]["loss"]["unequal_from"] == 11
    assert (data["a"]["run_id"], data["b"]["run_id"], len(data["a"]["curves"]["loss"])) == ("one", "two", 40)


def test_runs_of_two_guard_directories(ctl: Ctl, pair: tuple[Path, Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (pair[1]).rename(elsewhere / "two")
    assert ctl.json("compare", "one", str(elsewhere / "two"))["b"]["run_dir"] == str(elsewhere / "two")


def test_what_was_recorded_of_the_code(ctl: Ctl, pair: tuple[Path, Path]) -> None:
    for folder, digest in zip(pair, ("00" * 8, "11" * 8), strict=True):
        files = {"train.py": FileDigest(digest=digest, size_bytes=10)}
        assert add_environment(folder, Environment(files=files, seed=3))
    data = ctl.json("compare", "one", "two")
    assert next(one["what"] for one in data["differences"]) == "train.py"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("one", "one"), "both are the same run"),
        (("one", "guardrun-runs/one"), "both are the same run"),
        (("one", "three"), "no run three in"),
        (("one", "./nowhere"), "no run in"),
    ],
)
def test_no_two_runs(ctl: Ctl, pair: tuple[Path, Path], names: tuple[str, str], said: str) -> None:
    ctl("compare", *names, code=1)
    assert said in ctl.err


def test_one_run_alone(ctl: Ctl, pair: tuple[Path, Path]) -> None:
    ctl("compare", "one", code=2)


def spoil(path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "noise":
        path.write_bytes(os.urandom(4000) + b"\n" + b"[" * 100_000)
    elif how == "numbers":
        path.write_text(
            "attempt,step,loss,grad_norm\n0,-3,1,1\n0,1e9,1,1\n0,9" + "9" * 300 + ",1,1\n0,5,nan,inf\n0,6,1e999,"
        )
    elif how == "large":
        with path.open("wb") as file:
            file.truncate(17 << 20)


@pytest.mark.parametrize("how", ["gone", "link", "fifo", "folder", "noise", "numbers", "large"])
@pytest.mark.parametrize("name", ["events.jsonl", "steps.csv", "environment.json", "summary.json"])
def test_a_file_that_is_not_what_it_should_be(ctl: Ctl, pair: tuple[Path, Path], name: str, how: str) -> None:
    spoil(pair[1] / name, how)
    data: dict[str, Any] = ctl.json("compare", "one", "two")
    assert [one["what"] for one in data["differences"] if one["kind"] == "arguments"] == ["--lr"]
    ctl("compare", "two", "one")
    if how in ("link", "fifo", "folder") and name != "summary.json":
        assert data["b"]["missing"]


def test_of_a_run_that_is_no_run(ctl: Ctl, pair: tuple[Path, Path]) -> None:
    (pair[1] / "run.json").write_text("[")
    ctl("compare", "one", "two", code=1)
    assert "not a run of this version of guardrun" in ctl.err


def test_words_that_would_steer_a_terminal(ctl: Ctl, runs: Path) -> None:
    make_run(runs, "one", script=["python", "train.py", "--name", "\x1b[2Jgone"])
    make_run(runs, "two", script=["python", "train.py", "--name", "\x1b]0;x\x07"])
    assert "\x1b" not in ctl("compare", "one", "two")
    assert msgspec.json.decode(ctl("compare", "one", "two", "--json"))


def test_a_page(ctl: Ctl, pair: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "two.html"
    assert ctl("compare", "one", "two", "--html", "two.html").splitlines()[-1] == str(page)
    assert "from step 11 on they differ" in check(page.read_text())
    assert ctl.json("compare", "one", "two")["page"] is None
    assert ctl.json("compare", "one", "two", "--html", "two.html")["page"] == str(page)
    for bad in ("nowhere/two.html", "guardrun-runs"):
        ctl("compare", "one", "two", "--html", bad, code=1)


@pytest.mark.real("root")
def test_a_strangers_run_is_nobody_elses(ctl: Ctl, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (pair[1], *pair[1].rglob("*")):
        os.chown(path, 4711, 4711)
    assert ctl.json("compare", "one", "two")["b"]["run_id"] == "two", "root reads whoever's runs"
    # A link of theirs that leads to somebody else's file is not followed, whoever asks.
    (pair[1] / "steps.csv").unlink()
    (pair[1] / "steps.csv").symlink_to(pair[0] / "steps.csv")
    assert ctl.json("compare", "one", "two")["b"]["missing"] == [f"{pair[1] / 'steps.csv'} is a link"]


@pytest.mark.parametrize("case", ["killed", "eval", "poison", "torn", "groups_killed"])
def test_recorded_runs_of_an_earlier_guardrun(ctl: Ctl, runs: Path, case: str) -> None:
    """Nothing but the journal: a run and a copy of it do not differ, and another one is no error."""
    for name, journal in (("one", case), ("two", case), ("other", "sleep")):
        folder, _ = make_run(runs, name, script=SCRIPT)
        (folder / "events.jsonl").write_bytes(b"\n".join(read(journal)) + b"\n")
    data = ctl.json("compare", "one", "two")
    assert data["differences"] == [] and data["a"]["world_size"] and data["a"]["attempts"]
    ctl("compare", "one", "other", "--html", "page.html")
