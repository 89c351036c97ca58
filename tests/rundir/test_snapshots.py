"""A snapshot is a pickle: it is moved, and never opened; the oldest go where there are too many."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest

from guardrun.supervisor.rundir import snapshots as module
from guardrun.supervisor.rundir.run_directory import check_run_dir
from guardrun.supervisor.rundir.snapshots import keep_snapshot

ROOT = Path(__file__).parents[2]


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (self.path,)


def test_it_is_moved_and_not_opened(tmp_path: Path) -> None:
    trap, snapshot = tmp_path / "sprung", tmp_path / "snapshot-0-3.pickle"
    snapshot.write_bytes(pickle.dumps(Trap(str(trap))))
    data, run_dir = snapshot.read_bytes(), tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    told = keep_snapshot(run_dir, snapshot, 3)
    assert told == {"file": str(run_dir / "snapshots/001-rank-3.pickle"), "file_bytes": len(data), "file_trouble": ""}
    kept = Path(told["file"])
    assert kept.read_bytes() == data and kept.stat().st_mode & 0o777 == 0o600
    assert not snapshot.exists() and not trap.exists()
    check_run_dir(run_dir)
    assert keep_snapshot(run_dir, snapshot, 3)["file_trouble"] == "No such file or directory"


def test_nothing_of_ours_that_runs_outside_of_ranks_can_open_a_pickle() -> None:
    imports = re.compile(r"^\s*(?:import|from) (?:_?pickle|cPickle|dill|cloudpickle|torch)\b", re.MULTILINE)
    sources = [path for folder in ("supervisor", "slurm") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 200
    found = [str(path.relative_to(ROOT)) for path in sources if imports.search(path.read_text())]
    assert found == []


def test_what_is_too_long_or_no_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    snapshot = tmp_path / "s.pickle"
    snapshot.write_bytes(bytes(101))
    assert "longer than" in keep_snapshot(tmp_path, snapshot, 0)["file_trouble"]
    snapshot.symlink_to("/etc/passwd")
    assert keep_snapshot(tmp_path, snapshot, 0)["file_trouble"]
    assert list((tmp_path / "snapshots").iterdir()) == [] and not snapshot.is_symlink()


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP", 2)
    for rank in range(4):
        (tmp_path / "s.pickle").write_bytes(b"x" * 10)
        keep_snapshot(tmp_path, tmp_path / "s.pickle", rank)
    names = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert names == ["003-rank-2.pickle", "004-rank-3.pickle"]
