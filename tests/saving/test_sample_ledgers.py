"""Which account belongs to which checkpoint, over renames, and over supervisors; what ranks get of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guardrun.hooks.data.data_replay import Account
from guardrun.hooks.data.sample_ledger import SampleLedger
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.ledger_page import consumed_name
from guardrun.hooks.wire.messages import CheckpointSaved
from guardrun.hooks.wire.snapshot_index import HOLDS, Record
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.saving import sample_ledgers
from guardrun.supervisor.saving.sample_ledgers import SampleLedgers
from guardrun.supervisor.saving.snapshot_files import Written
from guardrun.supervisor.saving.snapshot_sets import Copy, WholeSet

CHECKPOINT = Checkpoint(path="/out/a.pt", step=40)


class Training:
    """Ranks with pages of their own, and the supervisor's ledgers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.exact = True
        self._pages: list[SampleLedger] = []
        self.begin(0)
        self.ledgers = self.supervisor()

    def supervisor(self) -> SampleLedgers:
        def put(work: Callable[[], object]) -> bool:
            work()
            return True

        config = {"checkpoint": {"exact_data": self.exact}}
        node = SimpleNamespace(
            run_dir=self.folder, run_file=SimpleNamespace(config=config), writer=SimpleNamespace(put=put)
        )
        return SampleLedgers(cast(Any, node), self.folder)

    def begin(self, attempt: int) -> None:
        """Two ranks."""
        self.close()
        self.attempt, self.step = attempt, 0
        for number in (0, 1):
            self._monkeypatch.setenv("RANK", str(number))
            self._pages.append(SampleLedger(Rank({"sockets": str(self.folder)}, attempt)))
        about = {"key": "ab" * 8, "account": None, "number": 1, "flags": 0, "why": "", "epoch": 0, "resumed": None}
        self._streams = [SimpleNamespace(**about, source=None) for _ in (0, 1)]

    def close(self) -> None:
        for one in self._pages:
            one.close()
        self._pages.clear()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            for number, one in enumerate(self._pages):
                one._rank.pace.backwards += 1
                indices = [1000 * number + self.step, self.step]
                one.note(cast(Any, self._streams[number]), None, self.step, indices)

    def save(self, name: str, *, is_told: bool = True) -> Path:
        path = self.folder / name
        path.write_bytes(b"x" * (100 + self.step))
        found = path.stat()
        self._pages[0].note_save(self.step, self.step, 0, found.st_size, found.st_mtime_ns)
        if is_told:
            told = CheckpointSaved(
                attempt=self.attempt,
                global_rank=0,
                pid=1,
                path=str(path),
                writer="torch.save",
                step=self.step,
                began_ns=0,
                ended_ns=0,
                own_steps=self.step,
                size=found.st_size,
                mtime_ns=found.st_mtime_ns,
            )
            self.ledgers.saved(told, [0, 1])
        return path

    def handed_on(self, path: Path, ledgers: SampleLedgers | None = None, world_size: int = 2) -> dict[str, Any] | None:
        """What the ranks of attempt 7 get."""
        ledgers = ledgers or self.ledgers
        name = self.folder / consumed_name(7)
        name.unlink(missing_ok=True)
        ledgers.hand_on(7, CHECKPOINT, ledgers.find([str(path)]), world_size=world_size)
        return json.loads(name.read_text()) if name.exists() else None

    def batches(self, path: Path, ledgers: SampleLedgers | None = None) -> list[int]:
        """As each rank reads it."""
        fields = self.handed_on(path, ledgers)
        assert fields is not None and not fields["why"]
        return [Account(one).batches for rank in ("0", "1") for one in fields["ranks"][rank]]


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Training(tmp_path, monkeypatch)
    yield made
    made.close()


def test_a_checkpoint_is_known_by_its_file_whatever_it_is_called(training: Training) -> None:
    training.train(3)
    renamed = training.save("new.tmp").rename(training.folder / "step_3.pt")
    training.train(2)
    later = training.save("new.tmp").rename(training.folder / "step_5.pt")
    assert (training.batches(renamed), training.batches(later)) == ([3, 3], [5, 5])
    other = training.supervisor()
    assert training.batches(renamed, other) == [3, 3], "another supervisor reads it"
    os.utime(renamed, ns=(1, 1))
    told = training.handed_on(renamed)
    assert told is not None and told["why"] == sample_ledgers.NO_ACCOUNT and not told["ranks"]


def test_a_save_that_nobody_lived_to_tell_of(training: Training) -> None:
    training.train(3)
    path = training.save("a.pt", is_told=False)
    training.train(4)
    assert training.handed_on(path) is None, "nothing has been heard of any loader so far"
    training.ledgers.refresh(0, [0, 1])
    assert training.batches(path) == [3, 3]
    fields = training.handed_on(path)
    assert fields is not None and max(map(int, fields["ranks"]["1"][0]["near"])) == 7


def test_a_snapshot_that_is_written_out_holds_the_steps_of_its_copies(training: Training) -> None:
    """Ranks went on after the copy was made; which of two replicas is written out is all the same."""
    training.train(9)
    path = training.folder / "snapshot_6.pt"
    path.write_bytes(b"x" * 80)
    for at, is_counted in ((6, True), (5, False)):
        record = Record(1, at, is_counted, 46, 80, time.monotonic_ns(), HOLDS, 0, str(path))
        written = Written(46, (str(path),), (1,), 80, 0.1, whole=WholeSet((Copy(0, 0, record),)))
        training.ledgers.written_from_memory(0, written, [0, 1])
        assert training.batches(path) == [6, 6]
    training.ledgers.written_from_memory(0, Written(why="no copy of step 5 is known of rank 1"), [0, 1])
    assert training.batches(path, training.supervisor()) == [6, 6]


def test_a_save_before_the_first_step_holds_what_its_attempt_began_with(training: Training) -> None:
    training.train(3)
    path = training.save("a.pt")
    assert training.batches(path) == [3, 3]
    training.begin(1)
    assert training.batches(training.save("b.pt")) == [3, 3]


def test_other_ranks_get_no_account_and_hear_why(training: Training) -> None:
    training.train(3)
    fields = training.handed_on(training.save("a.pt"), world_size=4)
    assert fields is not None and fields["why"] == "there were 2 ranks, and now there are 4" and not fields["ranks"]
    assert fields["acts"] is True
    training.exact = False
    told = training.handed_on(training.folder / "a.pt", training.supervisor())
    assert told is not None and told["acts"] is False


def test_what_is_kept_is_bounded_and_may_be_broken(training: Training) -> None:
    for _ in range(sample_ledgers.MAX_SAVES + 3):
        training.train(1)
        path = training.save("a.pt")
    assert len(training.ledgers._saves) == sample_ledgers.MAX_SAVES
    assert training.batches(path, training.supervisor()) == [training.step] * 2
    (training.folder / sample_ledgers.FILE).write_text('[{"attempt": "x"}]')
    assert training.handed_on(path, training.supervisor()) is None
