"""Which checkpoints are of training that had gone wrong: by the step of what they hold, however they are called now."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from guardrun.supervisor.checkpoints.chooser import Chooser
from guardrun.supervisor.checkpoints.spoiled import MARGIN_S
from guardrun.supervisor.engine.model.actions import Spoiled
from tests.checkpoints.conftest import Write
from tests.checkpoints.saves import BEGAN, Clock, passed_over, taken

BAD_FROM = 100
"""Step."""


class Run:
    """A script that saves, one second after another, and is heard by a chooser."""

    def __init__(self, folder: Path, write: Write, checkpoint_dir: str = "") -> None:
        self.folder, self._write, self.clock = folder, write, Clock()
        self.chooser = Chooser(BEGAN, checkpoint_dir)
        self.attempt = 0

    def write(self, name: str, kind: str = "@training") -> tuple[str, float, int]:
        """A save returns. What its report says: path, time, inode."""
        path = self.folder / name
        self._write(self.folder, {name: kind})
        self.clock.touch(path)
        return str(path), self.clock.now, path.stat().st_ino

    def hear(self, written: tuple[str, float, int], step: int) -> None:
        """The report of it comes."""
        path, wall_s, inode = written
        self.chooser.saw_saved(path, step, wall_s, inode, self.attempt)

    def save(self, name: str, step: int, kind: str = "@training") -> None:
        self.hear(self.write(name, kind), step)

    def rename(self, name: str, to: str) -> None:
        (self.folder / to).parent.mkdir(exist_ok=True)
        (self.folder / name).replace(self.folder / to)

    def gone_wrong(self, since_s: float | None = None) -> Spoiled:
        """Step BAD_FROM was the first that may be spoilt. since_s: when that was heard of; None: only now."""
        since_s = self.clock.now if since_s is None else since_s
        return Spoiled(attempt=0, from_step=BAD_FROM, since_s=since_s, until_s=self.clock.now + 1)

    def passes_over(self, since_s: float | None = None) -> list[str]:
        return passed_over(self.chooser.choose(spoiled=[self.gone_wrong(since_s)]))

    def takes(self, since_s: float | None = None) -> str | None:
        return taken(self.chooser.choose(spoiled=[self.gone_wrong(since_s)]))


@pytest.fixture
def run(tmp_path: Path, write: Write) -> Run:
    return Run(tmp_path, write)


# Where it is not known at which step -------------------------------------------------------------------------------


def test_what_was_written_meanwhile_is_not_taken(run: Run) -> None:
    """And a moment before: a bad step is heard of a little later."""
    for number in (1, 2, 3, 4):
        path, wall_s, inode = run.write(f"ckpt_{number}.pt")
        run.chooser.saw_saved(path, number, wall_s, inode)  # of an attempt that nobody knows

    def passed(since_s: float, until_s: float) -> list[str]:
        return passed_over(run.chooser.choose(spoiled=[Spoiled(attempt=0, since_s=since_s, until_s=until_s)]))

    end_s = run.clock.now
    assert passed(end_s - 1.1 + MARGIN_S, end_s) == ["ckpt_4.pt", "ckpt_3.pt"]
    assert passed(end_s + 1 + MARGIN_S, end_s + 10) == []
    assert passed(BEGAN, end_s - 3.5) == [], "by whoever came after it"
    choice = run.chooser.choose(spoiled=[Spoiled(since_s=end_s, until_s=end_s)])
    assert choice.skipped[0].reason == "it was written when training had gone wrong"


# Where it is ---------------------------------------------------------------------------------------------------------


def test_steps_count_and_not_times(run: Run) -> None:
    """The one before was hardly written when it was heard of, the one after long before."""
    run.save("ckpt_99.pt", 99)
    began_s = run.clock.now
    run.save("ckpt_100.pt", 100)
    run.clock.now += 100
    assert (run.passes_over(began_s - 0.5), run.takes(began_s - 0.5)) == (["ckpt_100.pt"], "ckpt_99.pt")
    assert run.takes(run.clock.now) == "ckpt_99.pt"


def test_what_an_attempt_before_or_after_it_has_written_is_not_of_it(run: Run) -> None:
    run.save("ckpt_150.pt", 150)
    spoiled = Spoiled(attempt=1, from_step=BAD_FROM, since_s=run.clock.now + 1.5, until_s=run.clock.now + 3)
    assert taken(run.chooser.choose(spoiled=[spoiled])) == "ckpt_150.pt"
    run.attempt = 1
    run.save("ckpt_160.pt", 160)
    assert taken(run.chooser.choose(spoiled=[spoiled])) == "ckpt_150.pt"
    run.attempt = 2
    run.save("ckpt_160.pt", 160)
    assert taken(run.chooser.choose(spoiled=[spoiled])) == "ckpt_160.pt"


@pytest.mark.parametrize("is_late", [False, True], ids=["reported before the rename", "after it"])
@pytest.mark.parametrize("temporary", ["{final}.tmp", "next.tmp", "tmp7f3a"])
def test_a_checkpoint_that_is_renamed_into_place(run: Run, temporary: str, is_late: bool) -> None:
    """Under a temporary name of its own, or one that each save uses."""
    for step in (80, 90, 110, 120):
        final = f"ckpt_{step}.pt"
        written = run.write(temporary.format(final=final))
        if not is_late:
            run.hear(written, step)
        run.rename(temporary.format(final=final), final)
        if is_late:
            run.hear(written, step)
    assert run.passes_over() == ["ckpt_120.pt", "ckpt_110.pt"]
    assert run.takes(BEGAN) == "ckpt_90.pt", "it is not by time"


@pytest.mark.parametrize("is_late", [False, True], ids=["reported before the rename", "after it"])
def test_the_only_one_which_each_save_takes_the_place_of(run: Run, is_late: bool) -> None:
    for step, expected in ((90, "last.pt"), (110, None)):
        written = run.write("last.pt.tmp")
        if not is_late:
            run.hear(written, step)
        run.rename("last.pt.tmp", "last.pt")
        if is_late:
            run.hear(written, step)
        assert run.takes(run.clock.now - 1) == expected
        run.clock.now += 60


def test_the_only_one_that_is_written_over_in_place(run: Run) -> None:
    run.save("last.pt", 90)
    assert run.takes(BEGAN) == "last.pt"
    run.save("last.pt", 110)
    assert run.takes(run.clock.now + 100) is None


def test_an_older_file_in_the_place_of_a_newer_one(run: Run) -> None:
    """A script that keeps what was best puts it back."""
    run.save("ckpt_90.pt", 90)
    run.save("last.pt", 110)
    assert run.takes(BEGAN) == "ckpt_90.pt"
    run.rename("ckpt_90.pt", "last.pt")
    assert run.takes(BEGAN) == "last.pt"


def test_a_newer_file_in_the_place_of_an_older_one(run: Run) -> None:
    run.save("best.pt", 90)
    run.save("ckpt_110.pt", 110)
    run.rename("ckpt_110.pt", "best.pt")
    assert run.takes(run.clock.now + 100) is None


def test_a_hard_link_and_a_symlink_are_what_they_lead_to(run: Run) -> None:
    for step in (90, 110):
        run.save("last.pt.tmp", step)
        run.rename("last.pt.tmp", "last.pt")
        os.link(run.folder / "last.pt", run.folder / f"ckpt_{step}.pt")
        (run.folder / "link.tmp").symlink_to(f"ckpt_{step}.pt")
        run.rename("link.tmp", "latest.pt")
    assert sorted(run.passes_over()) == ["ckpt_110.pt", "last.pt"]
    assert run.takes(BEGAN) == "ckpt_90.pt"


def test_a_file_that_is_moved_to_another_folder(tmp_path: Path, write: Write) -> None:
    run = Run(tmp_path, write, str(tmp_path))
    run.chooser.prior()
    for step in (90, 110):
        run.save("staging.tmp", step)
        run.rename("staging.tmp", f"done/ckpt_{step}.pt")
    assert (run.passes_over(), run.takes(BEGAN)) == (["ckpt_110.pt"], "ckpt_90.pt")


@pytest.mark.parametrize("is_late", [False, True], ids=["reported before the rename", "after it"])
def test_a_folder_of_shards_that_is_renamed(run: Run, is_late: bool) -> None:
    for step in (90, 110):
        written = [run.write(f"tmp-step_{step}/{name}.pt") for name in ("model", "optimizer")]
        for each in () if is_late else written:
            run.hear(each, step)
        run.rename(f"tmp-step_{step}", f"step_{step}")
        for each in written if is_late else ():
            run.hear(each, step)
    assert (run.passes_over(), run.takes(BEGAN)) == (["step_110"], "step_90")


def test_a_folder_of_dcps_that_is_renamed(run: Run) -> None:
    """Its parts are not reported, but for the file that completes it."""
    for step in (90, 110):
        run.save("saving.tmp", step, "@dcp")
        run.rename("saving.tmp", f"step_{step}")
    assert (run.passes_over(), run.takes(BEGAN)) == (["step_110"], "step_90")


@pytest.mark.parametrize("is_urgent", [False, True], ids=["to see what there is", "for a restart"])
def test_where_there_is_no_other_a_restart_takes_a_spoilt_one(run: Run, is_urgent: bool) -> None:
    """To begin anew would lose all. What one was only thought to be, it may not be."""
    for step in (110, 120):
        run.save(f"ckpt_{step}.pt", step)
    torn = run.folder / "ckpt_130.pt"
    torn.write_bytes((run.folder / "ckpt_120.pt").read_bytes()[:-100])
    run.clock.touch(torn)
    choice = run.chooser.choose(is_urgent=is_urgent, spoiled=[run.gone_wrong(BEGAN)])
    assert taken(choice) == ("ckpt_120.pt" if is_urgent else None)
    assert choice.doubt == ("it was written when training had gone wrong" if is_urgent else "")
    assert "ckpt_110.pt" in passed_over(choice) or is_urgent
    run.save("ckpt_90.pt", 90)
    assert taken(run.chooser.choose(is_urgent=is_urgent, spoiled=[run.gone_wrong(BEGAN)])) == "ckpt_90.pt"


def test_what_is_newest_is_none_that_is_spoilt(run: Run) -> None:
    """Else it would take the place of the good one that is kept (tests/checkpoints/test_retention.py)."""
    run.save("ckpt_90.pt", 90)
    run.save("ckpt_110.pt", 110)
    assert taken(run.chooser.prevalidate()) == "ckpt_110.pt"
    assert taken(run.chooser.prevalidate([run.gone_wrong()])) == "ckpt_90.pt"


# What only looks alike -----------------------------------------------------------------------------------------------


def test_a_copy_goes_by_its_time(run: Run) -> None:
    """Nobody can tell of what it is one."""
    run.save("ckpt_90.pt", 90)
    shutil.copy(run.folder / "ckpt_90.pt", run.folder / "last.pt")
    run.clock.touch(run.folder / "last.pt")
    assert run.passes_over(run.clock.now - 0.5) == ["last.pt"]
    run.clock.now += 100
    assert run.takes() == "last.pt"


def test_a_file_of_that_name_with_other_content_goes_by_its_time(run: Run) -> None:
    """A save of which no report came: the rank was killed first."""
    run.save("last.pt", 90)
    run.write("last.pt")
    assert run.takes(run.clock.now - 0.5) is None
    run.clock.now += 100
    assert run.takes() == "last.pt"


def test_a_file_written_beside_it_just_then_is_not_taken_for_it(run: Run) -> None:
    """What was saved has gone elsewhere: what has its ending is another's."""
    run.save("ckpt_110.pt", 110)
    written = run.write("part.pt")
    (run.folder / "part.pt").unlink()
    run.hear(written, 90)
    assert run.takes(run.clock.now + 100) is None


def test_an_inode_that_is_anothers_by_now(run: Run) -> None:
    """The report of a save comes late: its file has been removed, and a later save has got its inode."""
    path, wall_s, _ = run.write("old.pt")
    (run.folder / "old.pt").unlink()
    run.clock.now += 60
    later = run.write("last.pt")
    run.chooser.saw_saved(path, 90, wall_s, later[2], 0)
    assert run.takes(run.clock.now - 0.5) is None
    run.hear(later, 110)
    assert run.takes(run.clock.now + 100) is None


def test_an_inode_that_is_used_again_for_another_file(run: Run) -> None:
    run.save("ckpt_90.pt", 90)
    before = run.chooser.state()
    (run.folder / "ckpt_90.pt").unlink()
    run.write("last.pt")
    inode = (run.folder / "last.pt").stat().st_ino
    for save in before["saved"].values():
        save["stat"] = [*save["stat"][:3], inode]
    run.chooser = Chooser.from_state(before)
    assert run.takes(run.clock.now - 0.5) is None


def test_a_supervisor_that_is_started_anew_knows_it_too(run: Run) -> None:
    for step in (80, 90, 110, 120):
        run.save("next.tmp", step)
        run.rename("next.tmp", f"ckpt_{step}.pt")
    run.chooser = Chooser.from_state(json.loads(json.dumps(run.chooser.state())))
    assert (run.passes_over(), run.takes(BEGAN)) == (["ckpt_120.pt", "ckpt_110.pt"], "ckpt_90.pt")


def test_a_name_that_is_used_again_says_the_step_of_each(run: Run) -> None:
    """Without any that is spoilt: what was called so before is not as far as what is called so now."""
    for step, name in ((10, "b.pt"), (20, "a.pt")):
        run.save("next.tmp", step, "@weights")
        run.rename("next.tmp", name)
        found = run.chooser.is_checkpoint_path(str(run.folder / name))
        assert found is not None and found.step == step
    older = run.chooser.is_checkpoint_path(str(run.folder / "b.pt"))
    assert older is not None and older.step == 10
