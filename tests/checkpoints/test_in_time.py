"""What a rank has saved just in time is taken if it is whole, and of the step that is finished."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from guardrun.hooks.wire.examinations import SAVE_PREFIX
from guardrun.supervisor.checkpoints.chooser import Chooser, PartSaved
from guardrun.supervisor.checkpoints.saved import Memory, Saved
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.events import Checkpoint
from tests.checkpoints.conftest import Write
from tests.checkpoints.saves import BEGAN, passed_over, taken


class Run:
    def __init__(self, folder: Path, write: Write) -> None:
        self.folder, self._write, self.chooser = folder, write, Chooser(BEGAN)

    def save(self, name: str, step: int, kind: str = "@training", attempt: int = 0) -> Path:
        """An ordinary one, that the hooks have seen. "@training" says step 40."""
        path = self.write(name, kind)
        self.chooser.saw_saved(str(path), step, time.time(), path.stat().st_ino, attempt)
        return path

    def write(self, name: str, kind: str = "@training") -> Path:
        self._write(self.folder, {name: kind})
        return self.folder / name

    def saw(self, path: Path, step: int) -> Checkpoint | str:
        inode = path.stat().st_ino if path.exists() else 0
        found = self.chooser.saw_in_time(str(path), step, time.time(), inode, 0)
        if isinstance(found, str):
            return found
        self.is_unchecked = found.is_unchecked
        return found.checkpoint

    def saw_parts(self, paths: dict[int, Path], step: int = 40) -> Checkpoint | str:
        """paths: by who has written them."""
        parts = [PartSaved(str(path), rank, time.time(), path.stat().st_ino) for rank, path in paths.items()]
        found = self.chooser.saw_parts_in_time(parts, step, 0)
        return found if isinstance(found, str) else found.checkpoint


@pytest.fixture
def run(tmp_path: Path, write: Write) -> Run:
    return Run(tmp_path, write)


def test_parts_may_be_one_folder_that_says_what_belongs_to_it(run: Run) -> None:
    whole = {0: run.write("step_40", "@dcp"), 1: run.folder / "step_40"}
    found = run.saw_parts(whole)
    assert isinstance(found, Checkpoint) and (found.path, found.step) == (str(run.folder / "step_40"), 40)
    assert run.chooser.choose().checkpoint == found
    assert run.saw_parts(whole, step=41) == "it says step 40, and 41 are finished"
    part = next(one for one in whole[0].iterdir() if one.suffix == ".distcp")
    part.write_bytes(part.read_bytes()[:-1])
    assert isinstance(run.saw_parts(whole), str)
    (whole[0] / ".metadata").unlink()
    assert "their names are to differ" in str(run.saw_parts(whole)), "a folder of which nobody knows what belongs to it"


def test_one_that_is_whole_is_the_newest(run: Run) -> None:
    found = run.saw(run.write("jit_40.pt"), 40)
    assert isinstance(found, Checkpoint)
    assert (found.path, found.step) == (str(run.folder / "jit_40.pt"), 40)
    assert run.chooser.choose().checkpoint == found and run.is_unchecked


def test_a_trainers_own_count_is_the_one_that_counts(run: Run) -> None:
    """A run that was begun by hand in the middle has counted other steps."""
    path, now_s = str(run.write("jit_40.pt")), time.time()
    found = run.chooser.saw_in_time(path, 7, now_s, 0, 0, says=40)
    assert not isinstance(found, str) and found.checkpoint.step == 40 and not found.is_unchecked
    assert run.chooser.choose().checkpoint == found.checkpoint
    assert run.chooser.saw_in_time(path, 40, now_s, 0, 0, says=41) == "it says step 40, where 41 is right"


def test_a_trainers_save_that_was_broken_off_is_not_looked_into(run: Run) -> None:
    run.save("ckpt_30.pt", 30)
    run.write(f"{SAVE_PREFIX}7.part/checkpoint-41/optimizer.pt")
    run.write(f"{SAVE_PREFIX}8.part/guardrun-epoch=0-step=41.ckpt")
    choice = run.chooser.choose()
    assert choice.checkpoint is not None and choice.checkpoint.path.endswith("ckpt_30.pt") and not choice.skipped


@pytest.mark.parametrize("step", [39, 41])
def test_one_that_says_another_step_is_none(step: int, run: Run) -> None:
    assert run.saw(run.write("jit.pt"), step) == f"it says step 40, and {step} are finished"
    assert run.chooser.choose().checkpoint is None


def test_a_script_that_counts_from_0_is_known_by_what_it_saved_before(run: Run) -> None:
    run.save("ckpt_30.pt", 41)
    assert isinstance(run.saw(run.write("jit_a.pt"), 41), Checkpoint) and not run.is_unchecked
    assert isinstance(run.saw(run.write("jit_b.pt"), 40), str)


def test_what_another_attempt_saved_tells_nothing_of_that(run: Run) -> None:
    """There the count began elsewhere."""
    run.save("ckpt_30.pt", 41, attempt=3)
    assert isinstance(run.saw(run.write("jit.pt"), 40), Checkpoint)


def test_one_that_says_none_is_of_the_step_that_was_counted(run: Run) -> None:
    found = run.saw(run.write("jit.pt", "@module"), 12)
    assert isinstance(found, str) or found.step == 12


def test_what_is_torn_gone_or_no_checkpoint_is_none(run: Run) -> None:
    torn = run.write("jit_40.pt")
    torn.write_bytes(torn.read_bytes()[:-40])
    for path in (torn, run.folder / "nowhere.pt", run.write("log.txt", "step 40"), run.write("w.pt", "@metrics")):
        assert isinstance(run.saw(path, 40), str)
    assert run.chooser.choose().checkpoint is None


def test_what_a_failed_one_wrote_is_not_taken_even_if_nothing_else_is_there(run: Run) -> None:
    since_s = time.time() - 1
    run.chooser = Chooser(BEGAN, str(run.folder))
    run.chooser.prior()
    run.write("jit_40.pt")
    spoilt = Spoiled(attempt=0, from_step=2**62, since_s=since_s, until_s=time.time() + 1)
    assert taken(run.chooser.choose(is_urgent=True, spoiled=[spoilt])) == "jit_40.pt", "of which nobody is sure"
    certain = Spoiled(attempt=0, from_step=2**62, since_s=since_s, until_s=time.time() + 1, why="it failed")
    choice = run.chooser.choose(is_urgent=True, spoiled=[certain])
    assert choice.checkpoint is None and passed_over(choice) == ["jit_40.pt"]
    assert [one.reason for one in choice.skipped] == ["it failed"]


def test_what_others_saved_meanwhile_is_taken_all_the_same(run: Run) -> None:
    """The hooks saw it, at a step of its own."""
    since_s = time.time() - 1
    run.save("ckpt_40.pt", 40)
    certain = Spoiled(attempt=0, from_step=2**62, since_s=since_s, until_s=time.time() + 1, why="it failed")
    assert taken(run.chooser.choose(is_urgent=True, spoiled=[certain])) == "ckpt_40.pt"


def test_one_that_failed_in_the_place_of_an_ordinary_save_is_better_than_to_begin_anew(run: Run) -> None:
    """What could be gone back to was written over; without the line it would still be there."""
    run.save("last.pt", 40)
    since_s = time.time() + 0.01
    time.sleep(0.02)
    assert isinstance(run.saw(run.write("last.pt", "@training"), 39), str)
    certain = Spoiled(attempt=0, from_step=2**62, since_s=since_s, until_s=time.time() + 1, why="it failed")
    choice = run.chooser.choose(is_urgent=True, spoiled=[certain])
    assert taken(choice) == "last.pt" and choice.doubt == "it failed"
    run.save("ckpt_30.pt", 40)
    assert taken(run.chooser.choose(is_urgent=True, spoiled=[certain])) == "ckpt_30.pt"


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_function_that_removes_older_ones_and_fails_does_not_cost_all(is_removed: bool, run: Run) -> None:
    older = run.save("ckpt_30.pt", 30)
    since_s = time.time() + 0.01
    time.sleep(0.02)
    run.write("jit_40.pt")
    if is_removed:
        older.unlink()
    certain = Spoiled(attempt=0, from_step=2**62, since_s=since_s, until_s=time.time() + 1, why="it failed")
    choice = run.chooser.choose(is_urgent=True, spoiled=[certain])
    assert taken(choice) == ("jit_40.pt" if is_removed else "ckpt_30.pt")
    assert choice.doubt == ("it failed" if is_removed else "")


def test_how_a_script_counts_is_known_from_a_save_that_was_written_over(run: Run) -> None:
    run.save("last.pt", 41)
    assert run.chooser.prevalidate().checkpoint is not None
    (run.folder / "last.pt").unlink()
    assert run.saw(run.write("last.pt", "@training"), 40) == "it says step 40, where 39 is right"
    assert isinstance(run.saw(run.folder / "last.pt", 41), Checkpoint)


# In parts: four ranks, two parts -----------------------------------------------------------------------------------


@pytest.fixture
def four(run: Run) -> Run:
    run.chooser.set_world_size(4)
    return run


@pytest.mark.parametrize("name", ["s_40_shard{}_of_2.pt", "s_40_rank{}of2.pt"])
def test_as_many_files_as_their_names_say_are_one(name: str, four: Run) -> None:
    paths = {rank: four.write(name.format(rank)) for rank in (0, 1)}
    found = four.saw_parts(paths)
    assert isinstance(found, Checkpoint) and (found.path, found.step) == (str(paths[0]), 40)
    assert four.chooser.choose().checkpoint == found
    paths[1].unlink()
    assert four.chooser.choose().checkpoint is None, "an ordinary one, too, is torn without it"


def test_files_that_say_nothing_of_that_are_one_where_others_wrote_them(four: Run) -> None:
    """Rank 2 would have written rank2.pt, if each had a file of its own."""
    paths = {2: four.write("s_40_rank0.pt"), 1: four.write("s_40_rank1.pt")}
    assert four.chooser.choose().checkpoint is None, "torn: of four"
    found = four.saw_parts(paths)
    assert isinstance(found, Checkpoint) and four.chooser.choose().checkpoint == found
    later = Chooser.from_state(four.chooser.state())
    assert later.choose().checkpoint == found, "for the next supervisor as well"
    later.close()
    four.save("s_41_rank0.pt", 41)
    four.save("s_41_rank1.pt", 41)
    assert four.chooser.choose().checkpoint == found, "no other of such names is"
    four.write("s_40_rank1.pt")
    assert four.chooser.choose().checkpoint is None, "nor it, once it is another"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({0: "s_40_rank0.pt", 1: "s_40_rank1.pt"}, "may be lacking others: their names are to say …_of_2"),
        ({2: "s_40_rank2.pt", 3: "s_40_rank3.pt"}, "from 0 to 1, and have 2, 3"),
        ({2: "s_40_shard0_of_4.pt", 3: "s_40_shard1_of_4.pt"}, "by their names there are 4 of them"),
        ({2: "s_40_shard0_of_2.pt", 3: "s_41_shard1_of_2.pt"}, "differ in the part's number alone"),
        ({2: "s_40_shard0_of_2.pt", 3: "x/s_40_shard1_of_2.pt"}, "differ in the part's number alone"),
        ({2: "s_40_shard0_of_2.pt", 3: "s_40.pt"}, "differ in the part's number alone"),
        ({2: "s_40_shard0_of_2.pt", 3: "s_40_shard0_of_2.pt"}, "differ in the part's number alone|have 0, 0"),
        ({2: "s_41_shard0_of_2.pt", 3: "s_41_shard1_of_2.pt"}, "one says step 41, where 40 is right"),
    ],
)
def test_what_may_be_torn_is_none(names: dict[int, str], why: str, four: Run) -> None:
    found = four.saw_parts({rank: four.write(name) for rank, name in names.items()})
    assert isinstance(found, str) and any(one in found for one in why.split("|")), found


def test_files_of_two_saves_are_none(four: Run) -> None:
    """The next save was written over them, and cut short."""
    paths = {
        rank: four.save(f"last_shard{rank}_of_2.pt", 40, kind) for rank, kind in enumerate(("@training", "@lightning"))
    }
    choice = four.chooser.choose()
    assert [one.reason for one in choice.skipped] == ["its files are of different steps (40 and 77)"]
    assert four.saw_parts(paths) == "its files are of different steps (40 and 77)"
    assert choice.checkpoint is None


def test_a_part_that_is_torn_or_of_another_step_or_not_alone_is_none(four: Run) -> None:
    paths = {rank: four.write(f"last_rank{rank - 2}.pt") for rank in (2, 3)}
    assert four.saw_parts(paths, 41) == "one says step 40, where 41 is right"
    paths[3].write_bytes(paths[3].read_bytes()[:-40])
    torn = four.saw_parts(paths)
    assert isinstance(torn, str) and torn.startswith("last_rank1.pt: ")
    four.write("last_rank1.pt")
    four.write("last_rank2.pt")
    assert four.saw_parts(paths) == "lacks the file of rank 3"
    assert four.chooser.choose().checkpoint is None


def test_that_a_script_has_named_it_is_remembered_in_whichever_order_it_is_told() -> None:
    memory, stat = Memory(0.0, "/out", "auto", 1), (1, 2, 3, 4)
    memory.remember("/out/a.pt", Saved(40, 1.0, stat, is_sure=True))
    memory.remember("/out/a.pt", Saved(41, 2.0, stat, is_named=True))
    known = memory.saved["/out/a.pt"]
    assert (known.step, known.is_sure, known.is_named) == (40, True, True)
