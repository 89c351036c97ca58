"""A save over a checkpoint that nobody has opened is kept waiting, for a moment; every other save is not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from guardrun.hooks.saves import overwrite_guard
from guardrun.hooks.wire.board import Field
from tests.hooks.bed import DEADLINE_S, Bed

SAVE = """
import sys, time, torch
began = time.monotonic()
torch.save({"a": torch.ones(2)}, sys.argv[1])
print(time.monotonic() - began)
"""
LOAD_AND_SAVE = (
    """
import os, sys, torch
os.environ["GUARDRUN_RESUME_FROM"] = sys.argv[1]
torch.load(sys.argv[1])
"""
    + SAVE
)


@pytest.fixture
def there(bed: Bed, tmp_path: Path) -> Path:
    """A checkpoint, which is held."""
    import torch

    path = tmp_path / "ckpt.pt"
    torch.save({"a": torch.zeros(2)}, path)
    bed.held = [str(path)]
    return path


def test_it_waits_until_somebody_has_opened_one(bed: Bed, there: Path) -> None:
    before = there.read_bytes()
    process = bed.start(["-c", SAVE, str(there)])
    bed.wait_until(Field.SAVE_HELD)
    assert there.read_bytes() == before
    bed.board().words[Field.MAY_SAVE] = 1
    assert process.wait(DEADLINE_S) == 0
    assert bed.board()[Field.SAVE_HELD] == 0
    assert there.read_bytes() != before


def test_it_does_not_wait_for_ever(bed: Bed, there: Path) -> None:
    """Nobody is there who would decide."""
    before, code = (
        there.read_bytes(),
        f"from guardrun.hooks.saves import overwrite_guard as holding; holding.HOLD_S = 0.3\n{SAVE}",
    )
    done = bed.run(code, str(there))
    assert (done.returncode, there.read_bytes() != before) == (0, True)
    assert 0.3 <= float(done.stdout) < overwrite_guard.HOLD_S


@pytest.mark.parametrize("target", ["other.pt", "ckpt.pt.tmp", "../ckpt.pt"])
def test_other_files_are_written_at_once(bed: Bed, there: Path, target: str) -> None:
    done = bed.run(SAVE, str(there.parent / target))
    assert done.returncode == 0 and float(done.stdout) < overwrite_guard.HOLD_S / 3, done


def test_whoever_has_loaded_it_saves_at_once(bed: Bed, there: Path) -> None:
    done = bed.run(LOAD_AND_SAVE, str(there))
    assert done.returncode == 0 and float(done.stdout) < overwrite_guard.HOLD_S / 3, done


def test_a_file_in_a_folder_that_is_held_and_by_another_way_there(bed: Bed, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-40"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    bed.held = [str(folder)]
    process = bed.start(["-c", SAVE, str(tmp_path / "link" / "optimizer.pt")])
    bed.wait_until(Field.SAVE_HELD)
    assert not list(folder.iterdir())
    bed.board().words[Field.MAY_SAVE] = 1
    assert process.wait(DEADLINE_S) == 0


def test_a_signal_handler_that_saves_waits_as_well(bed: Bed, there: Path) -> None:
    """Between the ends of such an attempt's processes, and SIGKILL, nothing is written."""
    before = there.read_bytes()
    waits = "signal.signal(15, lambda *_: exec(save, globals()))\nprint(flush=True)\nwhile True: time.sleep(0.05)"
    code = f"import signal, sys, time\nsave = {SAVE!r}\n{waits}"
    process = bed.start(["-c", code, str(there)])
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    bed.wait_until(Field.SAVE_HELD)
    time.sleep(0.2)
    process.kill()
    process.wait(DEADLINE_S)
    assert there.read_bytes() == before


def test_a_forked_child_is_not_kept_waiting_for_a_word_that_cannot_reach_it(bed: Bed, there: Path) -> None:
    """As one that writes a checkpoint beside training does."""
    code = f"import os, sys\npid = os.fork()\nif pid: os.waitpid(pid, 0); sys.exit()\n{SAVE}"
    done = bed.run(code, str(there))
    assert done.returncode == 0 and float(done.stdout) < overwrite_guard.HOLD_S / 3, done
