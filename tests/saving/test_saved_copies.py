"""What was whole once is written out where its files are torn or gone, and in no other case."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from guardrun.supervisor.checkpoints.reading.confined_reader import Here
from guardrun.supervisor.collect.host.memory_limits import Limit, MemoryLimits
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.events import SnapshotWritten
from guardrun.supervisor.saving import saved_copies, snapshot_files
from guardrun.supervisor.saving.saved_copies import SavedCopies
from tests.support.waiting import wait_until

BEGAN_S = time.time() - 1000
TABLE: dict[str, Any] = {"mirror": True, "mirror_gb": 1.0, "mirror_mb_s": 1000.0, "resume_args": ["--resume", "{path}"]}
GIB = 1 << 30


class Job:
    """A script that saves, and the supervisor's part of it."""

    def __init__(self, folder: Path, world_size: int = 1, policy: dict[str, Any] | None = None, **table: Any) -> None:
        self.folder = folder / "out"
        self.folder.mkdir()
        self.said: list[str] = []
        self.chooser = Chooser(BEGAN_S, world_size=world_size, judge=Here())
        self.copies = SavedCopies(
            {"checkpoint": {**TABLE, **table}, "policy": policy or {}}, self.chooser, self.said.append
        )
        self._now_s = BEGAN_S
        self._tried = threading.Event()
        copy = self.copies._copy

        def try_copy(found: Any) -> str:
            try:
                return copy(found)
            finally:
                self._tried.set()

        self.copies._copy = try_copy  # type: ignore[method-assign]

    def path(self, name: str) -> Path:
        return self.folder / name

    def save(self, name: str, step: int, numbers: int = 64) -> bytes:
        """One rank's save of a training's state, over what is there; its bytes."""
        path = self.path(name)
        weight = torch.full((numbers,), float(step), requires_grad=True)
        optimizer = torch.optim.AdamW([weight])
        weight.sum().backward()
        optimizer.step()
        torch.save({"model": {"w": weight}, "optimizer": optimizer.state_dict(), "step": step}, path)
        self._now_s += 1
        os.utime(path, (self._now_s, self._now_s))
        self.chooser.saw_saved(str(path), step, self._now_s)
        return path.read_bytes()

    def look(self) -> None:
        """What is newest is seen."""
        self.see(self.chooser.prevalidate())

    def see(self, choice: Choice) -> None:
        """This is it."""
        self._tried.clear()
        self.copies.seen(choice)

    def keep(self, name: str, step: int, numbers: int = 64) -> bytes:
        """The same, and that is copied."""
        data = self.save(name, step, numbers)
        self.look()
        wait_until(lambda: self.kept_step() == step, 30, f"the copy of step {step}")
        return data

    def kept_step(self) -> int | None:
        kept = self.copies._kept
        return kept.found.done if kept is not None else None

    def settle(self) -> None:
        """What was seen last is copied, or not."""
        assert self._tried.wait(30)

    def cut(self, name: str) -> None:
        """The next save has got no further."""
        os.truncate(self.path(name), 100)

    def write(self, *avoid: str, spoiled: list[Spoiled] | None = None) -> SnapshotWritten | None:
        """As before a restart."""
        choice = self.chooser.choose(avoid=avoid, is_urgent=True, spoiled=spoiled or [])
        return self.copies.write_lost(choice, avoid, spoiled or [])

    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make_job(**options: Any) -> Job:
        jobs.append(Job(tmp_path, **options))
        return jobs[-1]

    yield make_job
    for job in jobs:
        job.copies.close()
        if job.copies._thread is not None:
            job.copies._thread.join(30)
        job.copies._exchange(None)


@pytest.fixture
def job(make: Callable[..., Job]) -> Job:
    return make()


def test_a_save_that_is_cut_short_over_the_only_checkpoint_leaves_the_one_before(job: Job) -> None:
    before = job.keep("last.pt", 40)
    mtime_ns = job.path("last.pt").stat().st_mtime_ns
    job.cut("last.pt")
    torn = job.path("last.pt").read_bytes()
    written = job.write()
    assert written is not None and written.original == str(job.path("last.pt"))
    assert (written.step, written.files, written.size_bytes, written.why) == (40, 1, len(before), "")
    assert job.files() == ["last.guardrun.pt", "last.pt"]
    assert job.path("last.pt").read_bytes() == torn, "nothing of the user's is changed"
    assert job.path("last.guardrun.pt").read_bytes() == before
    assert job.path("last.guardrun.pt").stat().st_mtime_ns == mtime_ns, "of the same data, and as old"
    chosen = job.chooser.choose(is_urgent=True)
    assert chosen.checkpoint is not None and chosen.checkpoint.path == written.path and chosen.checkpoint.step == 40
    assert job.chooser.steps_done(chosen.checkpoint) == 40
    assert job.write() is None and not job.copies.has_any, "the file is the copy now"


def test_what_was_removed_before_the_next_one_was_written_has_its_name_again(job: Job) -> None:
    before = job.keep("last.pt", 40)
    job.path("last.pt").unlink()
    written = job.write()
    assert written is not None and written.path == str(job.path("last.pt"))
    assert job.path("last.pt").read_bytes() == before
    job.keep("last.pt", 60)
    assert job.write() is None


def test_of_several_ranks_files_all_are_written_where_one_is_torn(make: Callable[..., Job]) -> None:
    job = make(world_size=2)
    before = [job.save(f"state_rank{rank}.pt", 40) for rank in (0, 1)]
    job.look()
    wait_until(lambda: job.kept_step() == 40, 30, "their copies")
    job.cut("state_rank1.pt")
    written = job.write()
    assert written is not None and written.files == 2
    assert written.path == str(job.path("state_rank0.guardrun.pt"))
    names = ("state_rank0.guardrun.pt", "state_rank1.guardrun.pt")
    assert [job.path(name).read_bytes() for name in names] == before
    chosen = job.chooser.choose(is_urgent=True).checkpoint
    assert chosen is not None and chosen.path == written.path and chosen.step == 40


def test_what_is_there_as_it_was_is_left_alone(job: Job) -> None:
    """Whatever the chooser has against it: the script could not load it, its numbers are bad."""
    job.keep("last.pt", 40)
    path = str(job.path("last.pt"))
    always = Spoiled(attempt=-1, from_step=0, since_s=0.0, until_s=1e12, why="NaN")
    assert job.write() is None and job.write(path) is None and job.write(spoiled=[always]) is None
    assert job.files() == ["last.pt"]


def test_what_may_not_be_resumed_from_is_not_brought_back(job: Job) -> None:
    job.keep("last.pt", 40)
    job.cut("last.pt")
    saved_s = job._now_s
    assert job.write(str(job.path("last.pt"))) is None, "the script could not load it"
    spoiled = Spoiled(attempt=-1, from_step=0, since_s=saved_s - 10, until_s=saved_s + 10, why="NaN since step 30")
    assert job.write(spoiled=[spoiled]) is None
    assert job.write(spoiled=[Spoiled(attempt=-1, from_step=0, since_s=0.0, until_s=saved_s - 100, why="NaN")])


def test_what_has_another_name_by_now_is_there(job: Job) -> None:
    """And its own step is no step of guardrun's: an epoch."""
    job.keep("last.pt", 40)
    job.path("last.pt").rename(job.path("previous.pt"))
    assert job.write() is None
    job.path("last.pt").write_bytes(b"the next one has begun")
    assert job.write() is None


def test_an_older_one_that_is_whole_does_not_take_its_place(job: Job) -> None:
    """While the newest is written over, another look finds the one before newest."""
    job.save("best.pt", 10)
    before = job.keep("last.pt", 40)
    job.cut("last.pt")
    job.look()
    assert job.kept_step() == 40
    written = job.write()
    assert written is not None and written.step == 40 and job.path("last.guardrun.pt").read_bytes() == before


def test_a_copy_may_be_read_by_whom_its_original_may(job: Job) -> None:
    job.save("last.pt", 40)
    job.path("last.pt").chmod(0o600)
    job.look()
    wait_until(lambda: job.kept_step() == 40, 30, "the copy")
    job.cut("last.pt")
    assert job.write() is not None
    assert job.path("last.guardrun.pt").stat().st_mode & 0o777 == 0o600


def test_what_goes_wrong_unforeseen_is_for_the_caller_and_leaves_the_lock(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.keep("last.pt", 40)
    job.cut("last.pt")

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(saved_copies, "write_here", fail)
    with pytest.raises(MemoryError):
        job.write()
    monkeypatch.undo()
    assert job.write() is not None


def test_what_the_script_has_written_instead_is_what_it_wants(job: Job) -> None:
    """A second phase, whose steps begin at 1, saves to the same file: it is whole."""
    job.keep("last.pt", 40)
    job.save("last.pt", 1)
    assert job.write() is None
    job.keep("last.pt", 2)
    job.cut("last.pt")
    written = job.write()
    assert written is not None and written.step == 2


def test_what_the_script_removes_once_there_is_a_newer_one_is_not_brought_back(job: Job) -> None:
    job.keep("step_40.pt", 40)
    job.save("phase2_5.pt", 5)
    job.path("step_40.pt").unlink()
    job.look()
    job.settle()
    job.path("phase2_5.pt").unlink()
    written = job.write()
    assert written is not None and written.step == 5


def test_a_newer_whole_checkpoint_is_enough(job: Job) -> None:
    job.keep("last.pt", 40)
    job.save("step_60.pt", 60)
    job.cut("last.pt")
    assert job.write() is None and "last.guardrun.pt" not in job.files()


def test_what_is_written_to_while_it_is_copied_is_not_taken_and_the_one_before_stays(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = job.keep("last.pt", 40)
    job.save("last.pt", 60)
    read = job.copies._read

    def write_meanwhile(path: str, *rest: Any) -> int:
        crc = read(path, *rest)
        job.cut("last.pt")
        return crc

    monkeypatch.setattr(job.copies, "_read", write_meanwhile)
    job.look()
    job.settle()
    assert job.kept_step() == 40 and job.said == []
    assert job.write() is not None and job.path("last.guardrun.pt").read_bytes() == before


def test_what_changed_since_it_was_judged_is_not_taken(job: Job) -> None:
    job.keep("last.pt", 40)
    job.save("last.pt", 60)
    choice = job.chooser.prevalidate()
    job.cut("last.pt")
    job.see(choice)
    job.settle()
    assert job.kept_step() == 40


def test_where_there_is_room_for_one_the_older_one_makes_room(make: Callable[..., Job]) -> None:
    job = make(mirror_gb=300_000 / 1e9)
    job.keep("last.pt", 40, numbers=20_000)
    job.keep("last.pt", 60, numbers=20_000)
    job.cut("last.pt")
    written = job.write()
    assert written is not None and written.step == 60 and job.said == []


def test_one_that_is_too_large_is_told_once(make: Callable[..., Job]) -> None:
    job = make(mirror_gb=1e-6)
    for step in (40, 60):
        job.save("last.pt", step)
        job.look()
        job.settle()
    path = job.path("last.pt")
    assert job.said == [f"no copy of {path} is kept in memory: [checkpoint] mirror_gb = 1e-06 is too little"]
    job.cut("last.pt")
    assert not job.copies.has_any and job.write() is None


def test_the_jobs_own_memory_comes_first(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.keep("last.pt", 40)
    job.copies.sample()
    assert job.copies.has_any
    monkeypatch.setattr(MemoryLimits, "nearest", lambda *_: Limit(GIB, GIB - GIB // 16))
    job.copies.sample()
    job.copies.sample()
    assert not job.copies.has_any
    assert job.said == ["memory is short: no copy of what the script has saved is kept"]
    monkeypatch.setattr(MemoryLimits, "nearest", lambda *_: Limit(GIB, GIB - GIB // 11))
    job.save("last.pt", 60)
    job.look()
    job.settle()
    assert not job.copies.has_any, "a tenth stays free"
    monkeypatch.undo()
    job.keep("last.pt", 80)


def test_a_copy_that_cannot_be_written_leaves_nothing_and_says_why(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.keep("last.pt", 40)
    job.cut("last.pt")
    monkeypatch.setattr(snapshot_files, "SPARE_BYTES", 1 << 60)
    written = job.write()
    assert written is not None and not written.path and "too much for the disk" in written.why
    assert written.original == str(job.path("last.pt")) and job.files() == ["last.pt"]
    monkeypatch.undo()
    assert job.write() is not None, "it is still there"


def test_names_that_are_taken_stay_what_they_are(job: Job) -> None:
    job.keep("last.pt", 40)
    job.cut("last.pt")
    job.path("last.guardrun.pt").write_bytes(b"the user's")
    written = job.write()
    assert written is not None and written.path == str(job.path("last.guardrun-2.pt"))
    assert job.path("last.guardrun.pt").read_bytes() == b"the user's"


@pytest.mark.parametrize(
    ("policy", "table"),
    [
        ({}, {"mirror": False}),
        ({}, {"mirror_gb": 0.0}),
        ({"act": False}, {}),
        ({}, {"resume_args": []}),  # reads the file that it knows, which is torn, or none
        ({}, {"resume_args": ["--init_from=resume"]}),
        ({}, {"resume_args": ["--dir", "{dir}"]}),  # where the copy has another name
        ({}, {"resume_args": [], "resume_env": {"RESUME": "1"}}),
    ],
)
def test_where_nobody_wants_one_none_is_made(
    make: Callable[..., Job], policy: dict[str, Any], table: dict[str, Any]
) -> None:
    job = make(policy=policy, **table)
    job.save("last.pt", 40)
    job.look()
    assert job.copies._thread is None and not job.copies.has_any
    is_told = any("{path}" in word for word in table.get("resume_args", ["{path}"]))
    assert job.copies.is_untold == (not is_told and policy.get("act") is not False)


def test_a_variable_tells_the_script_as_well(make: Callable[..., Job]) -> None:
    make(resume_args=[], resume_env={"FROM": "{path}"}).keep("last.pt", 40)


def save_dcp(job: Job, step: int) -> dict[str, bytes]:
    """A save by torch.distributed.checkpoint over the same folder."""
    import torch.distributed.checkpoint as dcp

    path = job.path("ckpt")
    weight = torch.full((64,), float(step))
    dcp.save({"model": {"w": weight}, "step": step}, checkpoint_id=str(path), no_dist=True)
    job.chooser.saw_saved(str(path), step, time.time())
    job.look()
    wait_until(lambda: job.kept_step() == step, 30, f"the copy of step {step}")
    return {one.name: one.read_bytes() for one in path.iterdir()}


def test_a_file_with_companions_is_left_out(job: Job) -> None:
    """Beside a copy's name they would not be found, and the original would be taken for one without."""
    for name in ("model.pt", "optimizer.pt"):
        job.save(name, 40)
    choice = job.chooser.prevalidate()
    assert len(choice.stats) == 2
    job.see(choice)
    assert job.copies._thread is None


def test_one_that_has_a_companion_by_now_is_let_go(job: Job) -> None:
    """The model is there first, and whole."""
    job.keep("model.pt", 20)
    job.save("optimizer.pt", 20)
    job.look()
    assert not job.copies.has_any
    job.cut("model.pt")
    assert job.write() is None and job.files() == ["model.pt", "optimizer.pt"]


def test_one_that_gets_a_companion_while_it_is_copied_is_not_kept(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    read, may_go_on = job.copies._read, threading.Event()

    def wait_first(*arguments: Any) -> tuple[int, int]:
        assert may_go_on.wait(30)
        return read(*arguments)

    monkeypatch.setattr(job.copies, "_read", wait_first)
    job.save("model.pt", 20)
    job.look()
    job.save("optimizer.pt", 20)
    job.copies.seen(job.chooser.prevalidate())
    may_go_on.set()
    job.settle()
    assert not job.copies.has_any


def test_one_descriptor_is_enough(make: Callable[..., Job]) -> None:
    job = make(world_size=50)
    before = len(os.listdir("/proc/self/fd"))
    for rank in range(50):
        job.save(f"state_rank{rank}.pt", 40)
    job.look()
    wait_until(lambda: job.kept_step() == 40, 30, "their copies")
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_copying_stops_where_memory_is_short(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    short = iter([False, True])
    monkeypatch.setattr(saved_copies, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(job.copies._room, "is_short", lambda: next(short, True))
    job.save("last.pt", 40)
    job.look()
    job.settle()
    assert not job.copies.has_any


@pytest.mark.parametrize("lost", ["torn", "gone"])
@pytest.mark.filterwarnings("ignore")  # torch says that nothing is distributed here
def test_a_folder_of_torchs_is_written_into_a_new_one(job: Job, lost: str) -> None:
    before = save_dcp(job, 40)
    times = {one.name: one.stat().st_mtime_ns for one in job.path("ckpt").iterdir()}
    if lost == "torn":
        job.cut("ckpt/__0_0.distcp")
    else:
        shutil.rmtree(job.path("ckpt"))
    job.path(".ckpt.guardrun.tmp").mkdir()  # of a supervisor that was killed here
    written = job.write()
    name = "ckpt.guardrun" if lost == "torn" else "ckpt"
    assert written is not None and written.path == str(job.path(name)) and written.files == len(before) == 2
    assert {one.name: one.read_bytes() for one in job.path(name).iterdir()} == before
    assert {one.name: one.stat().st_mtime_ns for one in job.path(name).iterdir()} == times
    assert job.files() == (["ckpt", "ckpt.guardrun"] if lost == "torn" else ["ckpt"])
    chosen = job.chooser.choose(is_urgent=True).checkpoint
    assert chosen is not None and chosen.path == written.path and chosen.format == "dcp"
    assert job.chooser.steps_done(chosen) == 40
    assert job.write() is None


@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_cannot_be_written_leaves_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    save_dcp(job, 40)
    job.cut("ckpt/__0_0.distcp")
    monkeypatch.setattr(snapshot_files, "SPARE_BYTES", 1 << 60)
    written = job.write()
    assert written is not None and not written.path and "too much for the disk" in written.why
    assert job.files() == ["ckpt"]


def test_what_is_no_single_file_of_any_name_is_left_out(job: Job) -> None:
    """Its loader wants the names that it has."""
    for step in (20, 40):
        folder = job.path(f"step_{step}")
        folder.mkdir()
        job.save(f"step_{step}/optimizer.pt", step)
        job.save(f"step_{step}/model.pt", step)
    choice = job.chooser.prevalidate()
    assert choice.checkpoint is not None and choice.checkpoint.format == "folder"
    job.look()
    assert job.copies._thread is None


def test_nothing_but_a_file_is_opened(job: Job) -> None:
    """Put in its place since it was judged."""
    job.save("last.pt", 40)
    choice = job.chooser.prevalidate()
    job.path("last.pt").rename(job.path("other"))
    os.mkfifo(job.path("last.pt"))
    job.see(choice)
    job.settle()
    assert not job.copies.has_any
    job.path("last.pt").unlink()
    job.path("last.pt").symlink_to("other")
    job.copies._wanted = None
    job.see(choice)
    job.settle()
    assert not job.copies.has_any, "through no link"


def test_a_choice_in_doubt_is_none_to_act_on(job: Job) -> None:
    job.keep("last.pt", 40)
    job.cut("last.pt")
    choice = Choice(doubt="it could not be judged")
    assert job.copies.write_lost(choice, [], []) is None


def test_a_run_that_ends_waits_for_no_copy(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    job = make(mirror_mb_s=1e-6)
    monkeypatch.setattr(saved_copies, "CHUNK_BYTES", 100)
    job.save("last.pt", 40)
    job.look()
    thread = job.copies._thread
    assert thread is not None
    job.copies.close()
    thread.join(30)
    assert not thread.is_alive() and not job.copies.has_any
