"""Run directories: made, continued, refused, kept elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from guardrun.launcher.creation.run_continuation import LOCK_FILE, find_living_owner
from guardrun.launcher.creation.run_creation import (
    OpenRun,
    RunIdError,
    Wish,
    choose_directory,
    node_name,
    open_run,
)
from guardrun.supervisor.config import Config
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.rundir.journal import Journal
from guardrun.supervisor.rundir.run_directory import read_run_file, write_run_file
from tests.support.journals import set_version
from tests.support.waiting import wait_until


class Opener:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sockets = folder / "s" / "guardrun-x"
        self.sockets.mkdir(parents=True)
        self.opened: list[OpenRun] = []

    def open(self, run_id: str | None = None, directory: str = "runs", config: Config | None = None) -> OpenRun:
        wish = Wish(
            config=config or Config(),
            directory=self.folder / directory,
            run_id=run_id,
            command=["guardrun", "--token", "abc", "train.py"],
            script=["python", "train.py", "--api-key=abc"],
            name="train",
            cwd=self.folder,
        )
        run = open_run(wish, self.sockets, {})
        self.opened.append(run)
        return run

    def close(self) -> None:
        for run in self.opened:
            if run.ownership is not None:
                run.ownership.release()


@pytest.fixture
def opener(tmp_path: Path) -> object:
    opener = Opener(tmp_path)
    yield opener
    opener.close()


def dead_owner(run: OpenRun, node: str | None = None) -> None:
    """Let the run look as a guardrun leaves it that was killed."""
    assert run.ownership is not None
    run.ownership.release()
    file = run.file
    file.launcher_start += 1
    if node:
        file.node = node
    write_run_file(run.path, file)


def test_a_new_run(opener: Opener) -> None:
    config = msgspec.structs.replace(Config(), checkpoint=msgspec.structs.replace(Config().checkpoint, dir="out"))
    run = opener.open(config=config)
    assert run.path.stat().st_mode & 0o777 == 0o700 and (run.path.parent / "latest").resolve() == run.path
    file = read_run_file(run.path)
    assert file.checkpoint_dir == str(opener.folder / "out") and file.launcher_pid == os.getpid()
    assert "abc" not in (run.path / "run.json").read_text()
    other = opener.open()
    assert other.path != run.path and other.file.token != file.token
    assert (run.path.parent / "latest").resolve() == other.path


def test_an_id_that_is_none(opener: Opener) -> None:
    for bad in ("", "..", "a/b", "latest", "x" * 101, "-x"):
        with pytest.raises(RunIdError):
            opener.open(bad)
    assert not (opener.folder / "runs").exists()


def test_an_unfinished_run_is_continued(opener: Opener) -> None:
    first = opener.open("job")
    (first.path / "events.jsonl").write_text('{"t": 12.5}\n')
    (first.path / "summary.json").write_text('{"outcome": "interrupted"}')
    dead_owner(first)
    second = opener.open("job")
    assert second.is_continued and second.path == first.path
    file = second.file
    assert (file.session, file.clock_base_s, file.created_wall_s) == (1, 12.5, first.file.created_wall_s)
    assert not (first.path / "summary.json").exists() and (first.path / "summary.0.json").exists()


@pytest.mark.parametrize(("age_s", "base_s"), [(5000.0, 5000.0), (12.0, 12.5), (-3600.0, 12.5)])
def test_a_run_that_is_continued_has_aged_meanwhile(opener: Opener, age_s: float, base_s: float) -> None:
    """What happened before keeps its date; a wall clock that was set back turns nothing back."""
    first = opener.open("job")
    (first.path / "events.jsonl").write_text('{"t": 12.5}\n')
    first.file.created_wall_s -= age_s
    dead_owner(first)
    file = opener.open("job").file
    assert file.clock_base_s == pytest.approx(base_s, abs=60.0) and file.clock_base_s >= 12.5
    assert file.created_wall_s == first.file.created_wall_s
    if age_s > 12.5:
        assert file.date_s(file.clock_base_s) == pytest.approx(time.time(), abs=60.0)


@pytest.mark.parametrize("outcome", ["finished", "failed", "gave_up"])
def test_a_run_that_has_ended_is_not(opener: Opener, outcome: str) -> None:
    first = opener.open("job")
    (first.path / "summary.json").write_text(json.dumps({"outcome": outcome}))
    dead_owner(first)
    with pytest.raises(RunIdError, match="has ended"):
        opener.open("job")


@pytest.mark.parametrize("last", ["all has ended", "and was told", "and one had not"])
def test_one_whose_ranks_have_all_ended_well_is_not_whatever_was_written_of_it(opener: Opener, last: str) -> None:
    """Killed before its summary.json was there: the journal says so."""
    first = opener.open("job")
    journal, engine = Journal(first.path), Engine()
    ranks = [ev.Rank(global_rank=n, local_rank=n, pid=100 + n, node="n") for n in range(2)]
    events: list[ev.Event] = [
        ev.RunOpened(run_id="job", settings=ev.Settings(), node="n", command=[], world_size=2, wall_s=0.0),
        ev.AttemptStarted(attempt=0, ranks=ranks),
        ev.RankExited(attempt=0, global_rank=0, pid=100, exitcode=0, at_s=3.0),
    ]
    if last != "and one had not":
        events.append(ev.RankExited(attempt=0, global_rank=1, pid=101, exitcode=0, at_s=3.0))
    if last == "and was told":
        events.append(ev.AttemptStopped(attempt=0, exitcodes={0: 0, 1: 0}, stopped_by_us=[]))
    for at_s, event in enumerate(events):
        journal.append(event, engine.handle(event, float(at_s)), float(at_s))
    journal.close()
    dead_owner(first)
    if last == "and one had not":
        assert opener.open("job").is_continued
    else:
        with pytest.raises(RunIdError, match=r"has ended \(finished\)"):
            opener.open("job")


@pytest.mark.parametrize("version", [0, 9])
def test_one_whose_journal_another_version_wrote_goes_on(opener: Opener, version: int) -> None:
    first = opener.open("job")
    snapshot = {"v": version, "n": 0, "t": 0.0, "wall": "", "snapshot": {"phase": 3}}
    (first.path / "events.jsonl").write_text(json.dumps(snapshot) + "\n")
    dead_owner(first)
    assert opener.open("job").is_continued


@pytest.mark.parametrize("version", [0, 9])
@pytest.mark.parametrize("has_ended", [True, False])
def test_unless_that_journal_itself_says_that_it_has_finished(opener: Opener, version: int, has_ended: bool) -> None:
    """Killed before its summary.json was there, and upgraded since: training that is over is not begun again."""
    first = opener.open("job")
    journal, engine = Journal(first.path), Engine()
    ranks = [ev.Rank(global_rank=0, local_rank=0, pid=100, node="n")]
    events: list[ev.Event] = [
        ev.RunOpened(run_id="job", settings=ev.Settings(), node="n", command=[], world_size=1, wall_s=0.0),
        ev.AttemptStarted(attempt=0, ranks=ranks),
    ]
    if has_ended:
        events.append(ev.RankExited(attempt=0, global_rank=0, pid=100, exitcode=0, at_s=3.0))
        events.append(ev.AttemptStopped(attempt=0, exitcodes={0: 0}, stopped_by_us=[]))
    for at_s, event in enumerate(events):
        journal.append(event, engine.handle(event, float(at_s)), float(at_s))
    journal.close()
    set_version(first.path / "events.jsonl", version)
    dead_owner(first)
    if has_ended:
        with pytest.raises(RunIdError, match=r"has ended \(finished\)"):
            opener.open("job")
    else:
        assert opener.open("job").is_continued


def test_one_that_was_killed_before_it_was_a_run_is_a_new_one(opener: Opener) -> None:
    for left in ([], [LOCK_FILE], [LOCK_FILE, "nccl"]):
        path = opener.folder / "runs" / f"job{len(left)}"
        path.mkdir(mode=0o700, parents=True)
        for name in left:
            (path / name).mkdir() if name == "nccl" else (path / name).touch(0o600)
        if left:
            os.utime(path / LOCK_FILE, (0, 0))
        run = opener.open(path.name)
        assert not run.is_continued and run.file.session == 0 and not run.warning and read_run_file(path).session == 0


def test_one_that_another_is_opening_is_left_to_it(opener: Opener) -> None:
    path = opener.folder / "runs" / "job"
    path.mkdir(mode=0o700, parents=True)
    hold = (
        "import fcntl, os, sys; f = open(sys.argv[1], 'w'); os.utime(sys.argv[1], (0, 0)); "
        "fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(path / LOCK_FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        (path / LOCK_FILE).chmod(0o600)
        with pytest.raises(RunIdError, match="being opened by another"):
            opener.open("job")
        assert [one.name for one in path.iterdir()] == [LOCK_FILE]
        holder.communicate()


def test_one_that_only_wants_a_word_on_how_it_resumes_goes_on(opener: Opener) -> None:
    first = opener.open("job")
    (first.path / "summary.json").write_text(json.dumps({"outcome": "gave_up", "may_go_on": True}))
    dead_owner(first)
    assert opener.open("job").is_continued


def test_neither_is_one_that_somebody_owns(opener: Opener) -> None:
    run = opener.open("job")
    with pytest.raises(RunIdError, match=f"is running, by process {os.getpid()}"):
        opener.open("job")
    # An owner whose process cannot be told any more, but that holds the lock.
    dead_owner(run)
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(run.path / LOCK_FILE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(RunIdError, match="owned by another guardrun"):
            opener.open("job")
        holder.communicate()


def test_an_owner_on_another_node_lives_while_it_touches_the_lock(opener: Opener) -> None:
    run = opener.open("job")
    dead_owner(run, node="elsewhere")
    lock = run.path / LOCK_FILE
    touch = "import os, sys, time\nwhile True:\n    os.utime(sys.argv[1]); time.sleep(0.1)"
    before_ns = lock.stat().st_mtime_ns
    with subprocess.Popen([sys.executable, "-c", touch, str(lock)]) as owner:
        wait_until(lambda: lock.stat().st_mtime_ns != before_ns, 30, "the first touch")
        assert "elsewhere" in find_living_owner(run.path, run.file, "here", patience_s=5.0)
        owner.kill()
    assert find_living_owner(run.path, run.file, "here", patience_s=0.5) == ""
    os.utime(lock, (0, 0))
    assert opener.open("job").is_continued


def test_a_folder_that_is_no_run(opener: Opener) -> None:
    (opener.folder / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(RunIdError, match="holds no run"):
        opener.open("mine")
    (opener.folder / "runs" / "mine" / "run.json").write_text("{")
    with pytest.raises(RunIdError, match="holds no run"):
        opener.open("mine")


def test_where_nothing_can_be_written_it_is_kept_elsewhere(opener: Opener) -> None:
    (opener.folder / "file").write_text("")
    run = opener.open("job", directory="file/runs")
    assert run.path.parents[1] == opener.sockets.parent / f"guardrun-runs-{os.getuid()}" and run.path.name == "job"
    assert "cannot write in" in run.warning and str(run.path) in run.warning


def test_elsewhere_too_an_id_names_a_run_of_its_own_guard_directory(opener: Opener) -> None:
    """Two projects, one id, and nothing of either can be written: neither goes on from the other's checkpoints."""
    (opener.folder / "file").write_text("")
    run = opener.open("job", directory="file/runs")
    dead_owner(run)
    other = opener.open("job", directory="file/others")
    assert not other.is_continued and other.path != run.path
    assert opener.open("job", directory="file/runs").is_continued


def test_names_and_places() -> None:
    assert node_name({"SLURMD_NODENAME": "n7"}) == "n7" and node_name({})
    here = Path("/here")
    assert choose_directory(None, {}, here) == here / "guardrun-runs"
    assert choose_directory(None, {"GUARDRUN_DIR": "/d"}, here) == Path("/d")
    assert choose_directory(Path("e"), {"GUARDRUN_DIR": "/d"}, here) == here / "e"
