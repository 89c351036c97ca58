"""Which checkpoint is resumed from: the newest whole one that this run wrote or started from."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from guardrun.supervisor.engine.model.events import Checkpoint
from tests.checkpoints.conftest import Write
from tests.checkpoints.saves import BEGAN, Clock, passed_over, save, taken


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_the_script_could_not_load_is_not_taken_until_it_is_written_anew(
    tmp_path: Path, clock: Clock, write: Write
) -> None:
    chooser = Chooser(BEGAN)
    for step in (20, 40):
        save(chooser, clock, write, tmp_path / f"ckpt_{step}.pt", step=step)
    torn = str(tmp_path / "ckpt_40.pt")
    assert chooser.name_of(torn) == torn
    choice = chooser.choose(avoid=[torn])
    assert (taken(choice), passed_over(choice)) == ("ckpt_20.pt", ["ckpt_40.pt"])
    assert choice.skipped[0].reason == "the script could not load it"
    again = Chooser.from_state(json.loads(json.dumps(chooser.state())))
    assert taken(again.choose(avoid=[torn])) == "ckpt_20.pt", "another supervisor knows it, too"
    save(again, clock, write, tmp_path / "ckpt_40.pt", step=40)
    assert taken(again.choose(avoid=[torn])) == "ckpt_40.pt"


# Seen by the hooks, no dir ------------------------------------------------------------------------------------------


def test_without_any_there_is_none() -> None:
    assert Chooser(BEGAN).choose() == Choice()


def test_the_newest_seen_is_taken(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    for step in (20, 40, 60):
        save(chooser, clock, write, tmp_path / f"ckpt_{step}.pt", kind="@weights", step=step)
    checkpoint = chooser.choose().checkpoint
    assert checkpoint == Checkpoint(path=str(tmp_path / "ckpt_60.pt"), step=60, format="file", written_wall_s=clock.now)


def test_the_furthest_wins_over_what_was_written_last(tmp_path: Path, clock: Clock, write: Write) -> None:
    """An attempt that began anew writes what the one before had already."""
    chooser = Chooser(BEGAN)
    for step in (10, 20, 30, 10):
        save(chooser, clock, write, tmp_path / f"checkpoint-{step}.pt", step=step)
    assert taken(chooser.choose()) == "checkpoint-30.pt"


def test_places_that_take_turns_are_told_by_the_steps_that_were_counted(
    tmp_path: Path, clock: Clock, write: Write
) -> None:
    chooser = Chooser(BEGAN)
    for step in (10, 20, 30):
        save(chooser, clock, write, tmp_path / f"ckpt_{step // 10 % 2}.pt", step=step)
        assert taken(chooser.choose()) == f"ckpt_{step // 10 % 2}.pt"


def test_a_resume_that_nobody_saw_counts_from_its_own_name(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    for name, counted in ((30, 30), (40, 10)):
        save(chooser, clock, write, tmp_path / f"ckpt_{name}.pt", step=counted)
    assert taken(chooser.choose()) == "ckpt_40.pt"


def test_what_has_no_step_is_as_far_as_what_was_written_before_it(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN, str(tmp_path))
    chooser.prior()
    for name in ("ckpt_20.pt", "ckpt_last.pt", "ckpt_10.pt"):
        write(tmp_path, {name: "@training"})
        clock.touch(tmp_path / name)
    assert taken(chooser.choose()) == "ckpt_last.pt"


def test_a_save_that_a_crash_cut_short_is_named_and_the_one_before_taken(
    tmp_path: Path, clock: Clock, write: Write
) -> None:
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, tmp_path / "ckpt_20.pt")
    save(chooser, clock, write, tmp_path / "ckpt_40.pt")
    torn = tmp_path / "ckpt_60.pt"
    torn.write_bytes((tmp_path / "ckpt_40.pt").read_bytes()[:-100])  # Never reported.
    clock.touch(torn)
    empty = tmp_path / "ckpt_80.pt"
    empty.touch()
    clock.touch(empty)
    choice = chooser.choose()
    assert taken(choice) == "ckpt_40.pt"
    assert passed_over(choice) == ["ckpt_80.pt", "ckpt_60.pt"]
    assert [skipped.reason for skipped in choice.skipped] == [
        "the file is empty",
        "ends too early: no zip directory at its end",
    ]


def test_one_file_written_over_and_torn_leaves_none(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    path = tmp_path / "ckpt.pt"
    save(chooser, clock, write, path, step=20)
    assert taken(chooser.prevalidate()) == "ckpt.pt"
    os.truncate(path, path.stat().st_size - 1)
    clock.touch(path)
    choice = chooser.choose()
    assert choice.checkpoint is None
    assert passed_over(choice) == ["ckpt.pt"]


def test_what_was_there_before_is_not_this_runs(tmp_path: Path, clock: Clock, write: Write) -> None:
    write(tmp_path, {"ckpt_900.pt": "@training"})
    clock.touch(tmp_path / "ckpt_900.pt")
    chooser = Chooser(BEGAN)
    assert chooser.choose() == Choice()
    save(chooser, clock, write, tmp_path / "ckpt_20.pt")
    assert taken(chooser.choose()) == "ckpt_20.pt"
    (tmp_path / "ckpt_20.pt").unlink()
    assert chooser.choose() == Choice()


def test_the_step_is_the_metadatas_then_the_names_then_the_hooks(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    for name, kind, step in (("a.pt", "@weights", 33), ("model_55.pt", "@weights", 55), ("b.pt", "@training", 40)):
        save(chooser, clock, write, tmp_path / name, kind=kind, step=33)
        chosen = chooser.is_checkpoint_path(str(tmp_path / name))
        assert chosen is not None and chosen.step == step


def test_a_path_in_a_folder_is_the_folders(tmp_path: Path, clock: Clock, write: Write) -> None:
    folder = tmp_path / "out" / "checkpoint-40"
    write(
        folder,
        {
            "trainer_state.json": {"global_step": 40},
            "model.safetensors": "@safetensors",
            "optimizer.pt": "@training",
            "scheduler.pt": "@metrics",
            "rng_state.pth": "@cache",
        },
    )
    clock.touch(folder)
    chooser = Chooser(BEGAN)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        chooser.saw_saved(str(folder / name), 39, clock.now)
    choice = chooser.choose()
    assert choice.checkpoint is not None and choice.skipped == []
    assert (choice.checkpoint.path, choice.checkpoint.step) == (str(folder), 40)
    loaded = chooser.is_checkpoint_path(str(folder / "optimizer.pt"))
    assert loaded is not None and loaded.path == str(folder)


def test_a_part_that_looks_like_a_checkpoint_of_its_own_is_the_folders(
    tmp_path: Path, clock: Clock, write: Write
) -> None:
    """Each rank loads its `rng_state_R.pth` after the rest: steps still count from the folder's, not from R."""
    folder = tmp_path / "out" / "checkpoint-40"
    parts = {f"rng_state_{rank}.pth": "@cache" for rank in range(2)}
    write(folder, {"trainer_state.json": {"global_step": 40}, "model.safetensors": "@safetensors", **parts})
    write(folder, {"optimizer.pt": "@training", "scheduler.pt": "@metrics"})
    clock.touch(folder)
    chooser = Chooser(BEGAN, world_size=2)
    for name in ("optimizer.pt", *parts):
        chooser.saw_saved(str(folder / name), 39, clock.now)
    for name in parts:
        loaded = chooser.is_checkpoint_path(str(folder / name))
        assert loaded is not None and (loaded.path, loaded.step) == (str(folder), 40)


def test_a_folder_of_dcps_under_any_name(tmp_path: Path, clock: Clock, write: Write) -> None:
    write(tmp_path, {"state": "@dcp"})
    clock.touch(tmp_path / "state")
    chooser = Chooser(BEGAN)
    chooser.saw_saved(str(tmp_path / "state"), 17, clock.now)
    choice = chooser.choose()
    assert choice.checkpoint is not None and choice.checkpoint.path == str(tmp_path / "state")
    assert choice.checkpoint.step == 17


def test_a_shard_that_never_came_skips_the_whole_family(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN, world_size=2)
    for step, rank in ((20, 0), (20, 1), (40, 0)):
        save(chooser, clock, write, tmp_path / f"ckpt_{step}_rank{rank}.pt", step=step)
    choice = chooser.choose()
    assert taken(choice) == "ckpt_20_rank0.pt"
    assert choice.skipped[0].reason == "lacks the file of rank 1"


def test_files_that_only_rank_0_writes_need_no_others(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN, world_size=2)
    save(chooser, clock, write, tmp_path / "log_rank1.pt", kind="@metrics")
    save(chooser, clock, write, tmp_path / "ckpt_20_rank0.pt")
    assert chooser.choose().checkpoint is None, "rank 1's may have been cut short"
    save(chooser, clock, write, tmp_path / "ckpt_40_rank0.pt")
    assert taken(chooser.choose()) == "ckpt_40_rank0.pt"


# Which files are checkpoints ----------------------------------------------------------------------------------------


def test_metrics_saved_later_are_no_checkpoint(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, tmp_path / "ckpt.pt")
    save(chooser, clock, write, tmp_path / "metrics.pt", kind="@metrics")
    save(chooser, clock, write, tmp_path / "train_cache.pt", kind="@cache")
    assert taken(chooser.choose()) == "ckpt.pt"
    assert chooser.is_checkpoint_path(str(tmp_path / "ckpt.pt")) is not None


def test_metrics_alone_are_none(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, tmp_path / "metrics.pt", kind="@metrics")
    save(chooser, clock, write, tmp_path / "tokens.pt", kind="@cache")
    assert chooser.choose() == Choice()


def test_a_torn_checkpoint_is_not_replaced_by_metrics(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, tmp_path / "ckpt.pt")
    save(chooser, clock, write, tmp_path / "model_metrics.pt", kind="@metrics")
    os.truncate(tmp_path / "ckpt.pt", 100)
    choice = chooser.choose()
    assert choice.checkpoint is None
    assert passed_over(choice) == ["ckpt.pt"]


def test_of_two_families_the_one_with_the_optimizer_counts(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    for step in (20, 40):
        save(chooser, clock, write, tmp_path / f"full_{step}.pt", step=step)
        save(chooser, clock, write, tmp_path / f"export_{step}.pt", kind="@weights", step=step)
    assert taken(chooser.choose()) == "full_40.pt"


def test_of_two_families_without_one_the_largest_counts(
    torch: ModuleType, tmp_path: Path, clock: Clock, write: Write
) -> None:
    chooser = Chooser(BEGAN)
    for name, size in (("model_20.pt", 5000), ("ema_20.pt", 50)):
        torch.save({"weight": torch.zeros(size)}, tmp_path / name)
        clock.touch(tmp_path / name)
        chooser.saw_saved(str(tmp_path / name), 20, clock.now)
    assert taken(chooser.choose()) == "model_20.pt"


def test_what_the_script_has_named_is_no_family_among_others(torch: ModuleType, tmp_path: Path, clock: Clock) -> None:
    """Without an optimizer: a snapshot that was resumed from, ordinary saves since, and one in time; then others."""
    chooser = Chooser(BEGAN)

    def saved(name: str, step: int, size: int, *, is_named: bool = False) -> None:
        torch.save({"weight": torch.zeros(size)}, tmp_path / name)
        clock.touch(tmp_path / name)
        chooser.saw_saved(str(tmp_path / name), step, clock.now, is_named=is_named)

    saved("snapshot_14.pt", 14, 5100, is_named=True)
    assert taken(chooser.choose()) == "snapshot_14.pt"
    saved("step_18.pt", 18, 5000)
    saved("ema_18.pt", 18, 50)
    assert taken(chooser.choose()) == "step_18.pt"
    saved("snapshot_22.pt", 22, 40, is_named=True)
    assert taken(chooser.choose()) == "snapshot_22.pt"
    saved("step_22.pt", 22, 5000, is_named=True)  # the same family as ordinary ones
    saved("ema_23.pt", 23, 50)
    again = Chooser.from_state(chooser.state())
    assert taken(chooser.choose()) == taken(again.choose()) == "step_22.pt"


def test_another_file_at_that_place_is_not_what_the_script_has_named(
    torch: ModuleType, tmp_path: Path, clock: Clock
) -> None:
    chooser = Chooser(BEGAN)
    for name, size in (("model_20.pt", 5000), ("last.pt", 50)):
        torch.save({"weight": torch.zeros(size)}, tmp_path / name)
        clock.touch(tmp_path / name)
        chooser.saw_saved(str(tmp_path / name), 20 + (size == 50), clock.now, is_named=size == 50)
    assert taken(chooser.choose()) == "last.pt"
    (tmp_path / "last.pt").unlink()
    torch.save({"bias": torch.zeros(60)}, tmp_path / "last.pt")
    clock.touch(tmp_path / "last.pt")
    assert taken(chooser.choose()) == "model_20.pt"


def test_what_the_script_has_named_does_not_outdo_those_with_an_optimizer(
    torch: ModuleType, tmp_path: Path, clock: Clock, write: Write
) -> None:
    """It may be half of what is to be resumed; nobody has tried."""
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, tmp_path / "full_20.pt", step=20)
    torch.save({"weight": torch.zeros(50)}, tmp_path / "named_30.pt")
    clock.touch(tmp_path / "named_30.pt")
    chooser.saw_saved(str(tmp_path / "named_30.pt"), 30, clock.now, is_named=True)
    assert taken(chooser.choose()) == "full_20.pt"


def test_a_named_checkpoint_without_tensors_will_do(torch: ModuleType, tmp_path: Path, clock: Clock) -> None:
    chooser = Chooser(BEGAN)
    torch.save({"step": 12}, tmp_path / "state.pt")
    chooser.saw_saved(str(tmp_path / "state.pt"), 3, clock.now)
    checkpoint = chooser.choose().checkpoint
    assert checkpoint is not None and checkpoint.step == 12


# Renames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True], ids=["reported before the rename", "after it"])
@pytest.mark.parametrize("temporary", ["ckpt.pt.tmp", "tmp_ckpt.pt", ".ckpt.pt.tmp", "ckpt.pt.partial", "ckpt.tmp"])
def test_a_file_renamed_into_place_is_followed(
    tmp_path: Path, clock: Clock, write: Write, temporary: str, is_late: bool
) -> None:
    chooser = Chooser(BEGAN)
    write(tmp_path, {temporary: "@training"})
    clock.touch(tmp_path / temporary)
    if not is_late:
        chooser.saw_saved(str(tmp_path / temporary), 40, clock.now)
    (tmp_path / temporary).replace(tmp_path / "ckpt.pt")
    if is_late:
        chooser.saw_saved(str(tmp_path / temporary), 40, clock.now)
    assert taken(chooser.choose()) == "ckpt.pt"


def test_a_name_with_nothing_in_common_is_found_by_its_inode(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    write(tmp_path, {"a81f": "@weights", "old_model_9.pt": "@weights"})
    clock.touch(tmp_path / "old_model_9.pt")
    clock.touch(tmp_path / "a81f")
    chooser.saw_saved(str(tmp_path / "a81f"), 40, clock.now)
    (tmp_path / "a81f").rename(tmp_path / "final.pt")
    choice = chooser.choose()
    assert taken(choice) == "final.pt"
    assert choice.checkpoint is not None and choice.checkpoint.step == 40


def test_renamed_before_its_report_came_it_is_found_by_its_inode(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    write(tmp_path, {"tmp7f3a": "@training", "d/xk2/model.pt": "@training", "other.pt": "@training"})
    for name in ("other.pt", "tmp7f3a"):
        clock.touch(tmp_path / name)
    inodes = [path.stat().st_ino for path in (tmp_path / "tmp7f3a", tmp_path / "d" / "xk2" / "model.pt")]
    (tmp_path / "tmp7f3a").rename(tmp_path / "best.pt")
    (tmp_path / "d" / "xk2").rename(tmp_path / "d" / "20")
    chooser.saw_saved(str(tmp_path / "tmp7f3a"), 40, clock.now, inodes[0])
    choice = chooser.choose()
    assert taken(choice) == "best.pt"
    assert choice.checkpoint is not None and choice.checkpoint.step == 40
    chooser = Chooser(BEGAN)
    chooser.saw_saved(str(tmp_path / "d" / "xk2" / "model.pt"), 20, clock.now, inodes[1])
    assert taken(chooser.choose()) == "20"


def test_a_temporary_name_that_is_used_again_is_not_taken_for_what_it_was(
    tmp_path: Path, clock: Clock, write: Write
) -> None:
    """The report of the first save comes when the second is being written."""
    chooser = Chooser(BEGAN)
    temporary = tmp_path / "next.tmp"
    for step in (10, 20):
        write(tmp_path, {"next.tmp": "@weights"})
        inode = temporary.stat().st_ino
        clock.touch(temporary)
        if step == 10:
            first = inode
            temporary.rename(tmp_path / "a.pt")
    chooser.saw_saved(str(temporary), 10, clock.now, first)
    checkpoint = chooser.choose().checkpoint
    assert checkpoint is not None and (Path(checkpoint.path).name, checkpoint.step) == ("a.pt", 10)


def test_a_folder_renamed_into_place_is_followed(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    write(tmp_path, {"step_40.tmp/model.pt": "@training"})
    clock.touch(tmp_path / "step_40.tmp")
    chooser.saw_saved(str(tmp_path / "step_40.tmp" / "model.pt"), 40, clock.now)
    assert chooser.choose().checkpoint is None
    (tmp_path / "step_40.tmp").rename(tmp_path / "step_40")
    assert taken(chooser.choose()) == "step_40"


def test_a_folder_renamed_before_its_report_came_is_found(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    write(tmp_path, {"a/checkpoint_40/model.pt": "@training", "b/40": "@dcp"})
    chooser.saw_saved(str(tmp_path / "a" / "tmp-checkpoint_40" / "model.pt"), 40, clock.now)
    assert taken(chooser.choose()) == "checkpoint_40"
    chooser = Chooser(BEGAN)
    chooser.saw_saved(str(tmp_path / "b" / "40.incomplete"), 40, clock.now)
    assert taken(chooser.choose()) == "40"


def test_links_are_no_second_checkpoint(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, tmp_path / "ckpt_20.pt")
    (tmp_path / "latest.pt").symlink_to("ckpt_20.pt")
    choice = chooser.choose()
    assert taken(choice) == "ckpt_20.pt" and choice.skipped == []
    loaded = chooser.is_checkpoint_path(str(tmp_path / "latest.pt"))
    assert loaded is not None and loaded.path == str(tmp_path / "ckpt_20.pt")


# A dir that the user named ------------------------------------------------------------------------------------------


def test_what_appears_or_changes_in_dir_since_the_run_began_is_its_own(
    tmp_path: Path, clock: Clock, write: Write
) -> None:
    write(tmp_path, {"deep/er/ckpt_10.pt": "@training", "deep/er/ckpt_20.pt": "@training"})
    clock.touch(tmp_path / "deep")
    chooser = Chooser(BEGAN, str(tmp_path))
    chooser.prior()
    assert chooser.choose() == Choice()
    assert taken(Chooser(BEGAN, str(tmp_path)).choose(resume_first=True)) == "ckpt_20.pt"
    clock.touch(tmp_path / "deep/er/ckpt_10.pt")
    assert taken(chooser.choose()) == "ckpt_10.pt"
    write(tmp_path, {"deep/er/ckpt_30.pt": "@training"})
    clock.touch(tmp_path / "deep/er/ckpt_30.pt")
    assert taken(chooser.choose()) == "ckpt_30.pt"


def test_an_old_file_of_dir_stays_old_whatever_else_is_saved_there(tmp_path: Path, clock: Clock, write: Write) -> None:
    """A clock that was set back makes what is new look older than what is old."""
    write(tmp_path, {"ckpt_900.pt": "@training"})
    os.utime(tmp_path / "ckpt_900.pt", (BEGAN + 9e6, BEGAN + 9e6))
    chooser = Chooser(BEGAN, str(tmp_path))
    chooser.prior()
    save(chooser, clock, write, tmp_path / "ckpt_20.pt")
    assert taken(chooser.choose()) == "ckpt_20.pt"


def test_dir_may_be_one_checkpoint_that_is_written_over(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN, str(tmp_path / "state"))
    chooser.prior()
    write(tmp_path, {"state": "@dcp"})
    clock.touch(tmp_path / "state")
    assert taken(chooser.choose()) == "state"
    (tmp_path / "state" / ".metadata").unlink()
    assert passed_over(chooser.choose()) == ["state"]


def test_dir_that_is_not_there_is_none(tmp_path: Path) -> None:
    chooser = Chooser(BEGAN, str(tmp_path / "later"))
    chooser.prior()
    assert chooser.choose(resume_first=True) == Choice()


# Started from -------------------------------------------------------------------------------------------------------


def test_what_the_script_loads_to_begin_with_is_not_this_runs(tmp_path: Path, clock: Clock, write: Write) -> None:
    """Resumed from its base at step 900, a fine-tuning of 100 steps would be over at once, with exit status 0."""
    write(tmp_path, {"old/ckpt_900.pt": "@training", "old/base_weights.pt": "@weights", "data/tokens.pt": "@cache"})
    clock.touch(tmp_path / "old")
    chooser = Chooser(BEGAN)
    assert chooser.saw_loaded(str(tmp_path / "data/tokens.pt")) is None
    assert chooser.saw_loaded(str(tmp_path / "old/base_weights.pt")) is None, "weights to begin with are no resume"
    assert chooser.saw_loaded(str(tmp_path / "old/ckpt_900.pt")) is None
    assert chooser.choose() == Choice()
    save(chooser, clock, write, tmp_path / "new/ckpt_20.pt")
    assert taken(chooser.choose()) == "ckpt_20.pt"
    loaded = chooser.saw_loaded(str(tmp_path / "new/ckpt_20.pt"))
    assert loaded is not None and loaded.step == 40, "its own"


def test_what_lies_in_dir_counts_the_steps_but_is_not_taken_unasked(tmp_path: Path, clock: Clock, write: Write) -> None:
    write(tmp_path, {"ckpt_40.pt": "@training"})
    clock.touch(tmp_path)
    chooser = Chooser(BEGAN, str(tmp_path))
    chooser.prior()
    loaded = chooser.saw_loaded(str(tmp_path / "ckpt_40.pt"))
    assert loaded is not None and loaded.step == 40
    assert chooser.choose() == Choice()


def test_what_guardrun_resumed_from_stays_eligible(tmp_path: Path, clock: Clock, write: Write) -> None:
    write(tmp_path, {"ckpt_40.pt": "@training"})
    clock.touch(tmp_path)
    chooser = Chooser(BEGAN, str(tmp_path))
    chooser.prior()
    assert taken(chooser.choose(resume_first=True)) == taken(chooser.choose()) == "ckpt_40.pt"


def test_a_dataset_of_many_files_is_soon_left_alone(tmp_path: Path, write: Write) -> None:
    write(tmp_path, {f"sample_{number}.pt": "@cache" for number in range(60)})
    chooser = Chooser(BEGAN)
    began = time.process_time()  # What others on the machine do is none of it.
    for number in range(60):
        assert chooser.is_checkpoint_path(str(tmp_path / f"sample_{number}.pt")) is None
    for number in range(2000):
        chooser.is_checkpoint_path(str(tmp_path / f"sample_{number}.pt"))
    assert time.process_time() - began < 2.0


# A restart of the supervisor ----------------------------------------------------------------------------------------


def test_a_new_process_knows_what_the_old_one_knew(tmp_path: Path, clock: Clock, write: Write) -> None:
    write(tmp_path, {"out/ckpt_900.pt": "@training"})
    clock.touch(tmp_path / "out")
    chooser = Chooser(BEGAN, str(tmp_path / "out"), "file", 2)
    chooser.prior()
    save(chooser, clock, write, tmp_path / "out/ckpt_20.pt")
    save(chooser, clock, write, tmp_path / "elsewhere/ckpt_40.pt.tmp", step=40)
    chooser.saw_loaded(str(tmp_path / "out/ckpt_900.pt"))
    state = json.loads(json.dumps(chooser.state()))
    (tmp_path / "elsewhere/ckpt_40.pt.tmp").rename(tmp_path / "elsewhere/ckpt_40.pt")
    again = Chooser.from_state(state)
    assert again.choose() == chooser.choose()
    assert taken(again.choose()) == "ckpt_40.pt"
    assert again.state() == chooser.state()


# What cannot be read ------------------------------------------------------------------------------------------------


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_what_may_not_be_read_is_skipped_with_the_reason(open_folder: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, open_folder / "ckpt_20.pt")
    save(chooser, clock, write, open_folder / "ckpt_40.pt")
    (open_folder / "ckpt_40.pt").chmod(0)
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        choice = chooser.choose()
        denied = Chooser(BEGAN, str(closed)).choose(resume_first=True)
    finally:
        os.seteuid(0)
    assert taken(choice) == "ckpt_20.pt"
    assert choice.skipped[0].reason == "cannot be read: Permission denied"
    assert denied.checkpoint is None
    assert (denied.skipped[0].path, denied.skipped[0].reason) == (str(closed), "cannot be read: Permission denied")


def test_loops_of_links_and_things_that_are_no_files_are_survived(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN, str(tmp_path))
    (tmp_path / "ckpt_a.pt").symlink_to("ckpt_b.pt")
    (tmp_path / "ckpt_b.pt").symlink_to("ckpt_a.pt")
    (tmp_path / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "ckpt_99.pt")
    (tmp_path / "checkpoint-80").mkdir()
    (tmp_path / "odd_\udcff_1.pt").write_bytes(b"x")
    chooser.prior()
    chooser.saw_saved("/no\0path", 1, clock.now)
    assert chooser.is_checkpoint_path("/no\0path") is None
    save(chooser, clock, write, tmp_path / "ckpt_20.pt")
    choice = chooser.choose(resume_first=True)
    assert taken(choice) == "ckpt_20.pt"
    assert {"ckpt_a.pt", "ckpt_b.pt"} <= set(passed_over(choice))


def test_what_vanishes_meanwhile_is_survived(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    stop = threading.Event()

    def rotate() -> None:
        while not stop.is_set():
            write(tmp_path, {"step_60/model.pt": "@training", "ckpt_60.pt": "@training"})
            shutil.rmtree(tmp_path / "step_60")
            (tmp_path / "ckpt_60.pt").unlink()

    save(chooser, clock, write, tmp_path / "ckpt_20.pt")
    thread = threading.Thread(target=rotate)
    thread.start()
    try:
        for _ in range(100):
            assert chooser.choose().checkpoint is not None
            chooser.warn_torn_latest()
    finally:
        stop.set()
        thread.join()


# Scripts that resume by themselves ----------------------------------------------------------------------------------


def test_a_pointer_to_a_torn_checkpoint_is_warned_about(tmp_path: Path, clock: Clock, write: Write) -> None:
    megatron = {"metadata.json": {}, "common.pt": "@metrics"}
    write(
        tmp_path,
        {
            "iter_0000020": "@dcp",
            "iter_0000040": "@dcp",
            **{f"iter_{step}/{name}": value for step in ("0000020", "0000040") for name, value in megatron.items()},
            "latest_checkpointed_iteration.txt": "40\n",
        },
    )
    chooser = Chooser(BEGAN, str(tmp_path))
    assert chooser.warn_torn_latest() == []
    (tmp_path / "iter_0000040" / "__0_0.distcp").unlink()
    (warning,) = chooser.warn_torn_latest()
    assert warning.path == str(tmp_path / "iter_0000040")
    assert "lacks __0_0.distcp" in warning.reason and "a megatron script that resumes by itself" in warning.reason
    shutil.rmtree(tmp_path / "iter_0000040")
    assert "is not there" in chooser.warn_torn_latest()[0].reason


@pytest.mark.parametrize(
    ("files", "link", "torn"),
    [
        ({"step-20": "@dcp", "step-40": "@dcp"}, None, "step-40/__0_0.distcp"),
        ({"g20/mp_rank_00_model_states.pt": "@training", "latest": "g20"}, None, "g20/mp_rank_00_model_states.pt"),
        (
            {"step_2": "@dcp", "step_2/train_state.pt": "@metrics", "step_2/metadata.json": {}},
            ("latest", "step_2"),
            "step_2/.metadata",
        ),
        ({"ep0-ba9-rank0.pt": "@training"}, ("latest-rank0.pt", "ep0-ba9-rank0.pt"), "ep0-ba9-rank0.pt"),
    ],
    ids=["torchtitan", "deepspeed", "kempnerforge", "composer"],
)
def test_each_self_resuming_format_is_asked(
    tmp_path: Path, write: Write, files: dict[str, str], link: tuple[str, str] | None, torn: str
) -> None:
    write(tmp_path, files)
    if link:
        (tmp_path / link[0]).symlink_to(link[1])
    chooser = Chooser(BEGAN, str(tmp_path))
    assert chooser.warn_torn_latest() == []
    os.truncate(tmp_path / torn, 10)
    (warning,) = chooser.warn_torn_latest()
    assert warning.path == str(tmp_path / torn.split("/", maxsplit=1)[0])


# Speed --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["files", "folders"])
def test_choosing_among_200_takes_milliseconds(tmp_path: Path, clock: Clock, write: Write, layout: str) -> None:
    chooser = Chooser(BEGAN, str(tmp_path))
    chooser.prior()
    for step in range(1, 201):
        if layout == "files":
            save(chooser, clock, write, tmp_path / f"ckpt_{step}.pt", step=step)
        else:
            folder = tmp_path / f"checkpoint-{step}"
            names = {"model.safetensors": "@safetensors", "optimizer.pt": "@training", "scheduler.pt": "@metrics"}
            write(folder, names | {"trainer_state.json": {"global_step": step}, "rng_state.pth": "@cache"})
            clock.touch(folder)
            chooser.saw_saved(str(folder / "optimizer.pt"), step, clock.now)
    assert chooser.prevalidate().checkpoint is not None
    times = []
    for _ in range(7):
        began = time.process_time()
        choice = chooser.choose()
        times.append(time.process_time() - began)
        assert choice.checkpoint is not None and choice.checkpoint.step in (40, 200)
    assert min(times) <= 0.1, times  # of a CPU; to judge all of them anew takes seconds


# Runs in folders that are named like steps -------------------------------------------------------------------------


@pytest.mark.parametrize("above", ["12345/out", "finetune-step-2/out", "2026/11", "checkpoint_0", "step-2"])
def test_a_runs_own_folder_is_no_checkpoint(tmp_path: Path, clock: Clock, write: Write, above: str) -> None:
    chooser = Chooser(BEGAN)
    (tmp_path / "12346").mkdir()
    for step in (20, 40):
        save(chooser, clock, write, tmp_path / above / f"ckpt_{step}.pt", step=step)
    checkpoint = chooser.choose().checkpoint
    assert checkpoint is not None
    assert (checkpoint.path, checkpoint.step) == (str(tmp_path / above / "ckpt_40.pt"), 40)


@pytest.mark.parametrize("above", ["12345/out", "2026"])
def test_nor_is_it_for_a_file_written_over(tmp_path: Path, clock: Clock, write: Write, above: str) -> None:
    chooser = Chooser(BEGAN)
    save(chooser, clock, write, tmp_path / above / "ckpt.pt", step=20)
    checkpoint = chooser.choose().checkpoint
    assert checkpoint is not None
    assert checkpoint.path == str(tmp_path / above / "ckpt.pt")


def test_the_working_folder_is_no_checkpoint(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN, cwd=str(tmp_path / "step_40"))
    save(chooser, clock, write, tmp_path / "step_40" / "model.pt", step=40)
    checkpoint = chooser.choose().checkpoint
    assert checkpoint is not None
    assert checkpoint.path == str(tmp_path / "step_40" / "model.pt")


def test_a_folder_named_by_the_mere_step_is_one(tmp_path: Path, clock: Clock, write: Write) -> None:
    chooser = Chooser(BEGAN)
    for step in (20, 40):
        save(chooser, clock, write, tmp_path / str(step) / "model.pt", step=step)
    checkpoint = chooser.choose().checkpoint
    assert checkpoint is not None
    assert (checkpoint.path, checkpoint.step) == (str(tmp_path / "40"), 40)
