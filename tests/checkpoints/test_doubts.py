"""What could not be judged is neither whole nor torn: passed over for what is whole, taken where nothing is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guardrun.supervisor.checkpoints import chooser as choosers
from guardrun.supervisor.checkpoints.chooser import Chooser
from guardrun.supervisor.checkpoints.reading.confined_reader import Answer, Here, Patience
from tests.checkpoints.conftest import Write
from tests.checkpoints.saves import BEGAN, Clock, passed_over, save, taken


class Doubting(Here):
    """Judges all but some files."""

    def __init__(self, **doubted: bool) -> None:
        """doubted: by the file's name without its ending, whether that is final."""
        super().__init__()
        self.doubted = doubted
        self.asked: list[str] = []

    def ask(self, kind: str, path: str, patience: Patience, *, name: str = "", deep: bool = False) -> Answer:
        stem = os.path.basename(path).partition(".")[0]
        self.asked.append(stem)
        if stem in self.doubted:
            return Answer(unjudged="it is odd", is_final=self.doubted[stem])
        return super().ask(kind, path, patience, name=name, deep=deep)


def saved(tmp_path: Path, write: Write, judge: Doubting, **kinds: str) -> Chooser:
    """A chooser of a run that has saved these, one after the other."""
    chooser, clock = Chooser(BEGAN, judge=judge), Clock()
    for stem, kind in kinds.items():
        save(chooser, clock, write, tmp_path / f"{stem}.pt", kind=kind, step=int(stem.rpartition("_")[2]))
    return chooser


def test_the_next_older_one_is_taken_and_the_file_not_asked_about_again(tmp_path: Path, write: Write) -> None:
    judge = Doubting(ckpt_40=True)
    chooser = saved(tmp_path, write, judge, ckpt_20="@training", ckpt_40="@training")
    for _ in range(3):
        choice = chooser.choose(is_urgent=True)
        assert (taken(choice), passed_over(choice), choice.doubt) == ("ckpt_20.pt", ["ckpt_40.pt"], "")
        assert choice.skipped[0].reason == "could not be judged: it is odd"
    assert judge.asked.count("ckpt_40") == 1
    os.utime(tmp_path / "ckpt_40.pt", (BEGAN + 100, BEGAN + 100))
    chooser.choose(is_urgent=True)
    assert judge.asked.count("ckpt_40") == 2, "what is written anew is"


def test_what_a_disk_held_up_is_asked_about_again(tmp_path: Path, write: Write) -> None:
    judge = Doubting(ckpt_40=False)
    chooser = saved(tmp_path, write, judge, ckpt_20="@training", ckpt_40="@training")
    assert taken(chooser.choose(is_urgent=True)) == "ckpt_20.pt"
    judge.doubted = {}
    assert taken(chooser.choose(is_urgent=True)) == "ckpt_40.pt"


def test_where_nothing_is_whole_a_restart_takes_the_newest_of_it(tmp_path: Path, write: Write) -> None:
    """To begin anew would lose all of it."""
    judge = Doubting(ckpt_20=True, ckpt_40=True)
    chooser = saved(tmp_path, write, judge, ckpt_20="@training", ckpt_40="@training", ckpt_60="@training")
    (tmp_path / "ckpt_60.pt").write_bytes(b"PK")
    choice = chooser.choose(is_urgent=True)
    assert (taken(choice), passed_over(choice)) == ("ckpt_40.pt", ["ckpt_60.pt", "ckpt_20.pt"])
    assert choice.doubt == "could not be judged: it is odd"
    assert choice.checkpoint is not None and choice.checkpoint.step == 40


def test_only_a_restart_does(tmp_path: Path, write: Write) -> None:
    """Nobody else who asks is to take it for whole: a copy that is kept would be let go for it."""
    chooser = saved(tmp_path, write, Doubting(ckpt_40=True), ckpt_40="@training")
    assert chooser.prevalidate().checkpoint is None
    assert chooser.choose().checkpoint is None


class LateOnce(Doubting):
    """The disk answers when it is asked a second time."""

    def ask(self, kind: str, path: str, patience: Patience, *, name: str = "", deep: bool = False) -> Answer:
        answer = super().ask(kind, path, patience, name=name, deep=deep)
        self.doubted = {}
        return answer


def test_where_nothing_else_is_whole_a_slow_disk_is_waited_for(tmp_path: Path, write: Write) -> None:
    chooser = saved(tmp_path, write, LateOnce(ckpt_40=False), ckpt_20="@training", ckpt_40="@training")
    (tmp_path / "ckpt_20.pt").write_bytes(b"PK")
    choice = chooser.choose(is_urgent=True)
    assert (taken(choice), passed_over(choice), choice.doubt) == ("ckpt_40.pt", ["ckpt_20.pt"], "")


def test_it_does_not_make_its_family_one_of_another_kind(tmp_path: Path, write: Write) -> None:
    """Weights beside it would be taken for the checkpoints."""
    judge = Doubting(ckpt_40=True)
    chooser = saved(tmp_path, write, judge, export_30="@weights", ckpt_20="@training", ckpt_40="@training")
    assert taken(chooser.choose(is_urgent=True)) == "ckpt_20.pt"


def test_its_name_does_not_outdo_what_is_whole(tmp_path: Path, write: Write) -> None:
    """`ckpt_99.pt` sounds like a checkpoint with an optimizer, which the others have not."""
    judge = Doubting(ckpt_99=True)
    chooser = saved(tmp_path, write, judge, export_30="@weights", ckpt_99="@training")
    choice = chooser.choose(is_urgent=True)
    assert (taken(choice), passed_over(choice)) == ("export_30.pt", ["ckpt_99.pt"])


class Hasty(Here):
    """Notes how much time there was for each question."""

    def __init__(self) -> None:
        super().__init__()
        self.left_s: list[float] = []

    def ask(self, kind: str, path: str, patience: Patience, *, name: str = "", deep: bool = False) -> Answer:
        self.left_s.append(patience.left_s())
        return super().ask(kind, path, patience, name=name, deep=deep)


def test_a_load_after_a_choice_has_time_of_its_own(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, clock = Hasty(), Clock()
    chooser = Chooser(BEGAN, judge=judge)
    save(chooser, clock, write, tmp_path / "ckpt.pt", step=20)
    monkeypatch.setattr(choosers, "CHOICE_S", 0.0)
    chooser.choose(is_urgent=True)
    save(chooser, clock, write, tmp_path / "ckpt.pt", step=40)
    judge.left_s.clear()
    assert chooser.saw_loaded(str(tmp_path / "ckpt.pt")) is not None
    assert judge.left_s and min(judge.left_s) > 0


def test_what_is_torn_beside_it_is_torn(tmp_path: Path, write: Write) -> None:
    chooser = Chooser(BEGAN, str(tmp_path / "out"), judge=Doubting(a=True))
    write(tmp_path / "out", {"step_20/a.pt": "@training", "step_20/b.pt": b"PK\3\4"})
    choice = chooser.choose(resume_first=True, is_urgent=True)
    assert choice.checkpoint is None
    assert choice.skipped[0].reason.startswith("b.pt: ")


def test_what_a_format_names_is_bounded(tmp_path: Path, write: Write) -> None:
    """A file's name can claim any number of ranks."""
    write(tmp_path / "out", {"step_20/random_states_0.pkl": "@metrics", "step_20/model.pt": "@training"})
    (tmp_path / "out" / "step_20" / f"random_states_{'9' * 100}.pkl").write_bytes(b"x")
    choice = Chooser(BEGAN, str(tmp_path / "out")).choose(resume_first=True, is_urgent=True)
    assert choice.checkpoint is None
    assert choice.skipped[0].reason.startswith("lacks random_states_{rank}.pkl of ranks 1, 2, ")
