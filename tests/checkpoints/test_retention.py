"""A checkpoint that is kept survives what the next attempt does; and keeping it never costs what trains its room."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from guardrun.supervisor.checkpoints import retention
from guardrun.supervisor.checkpoints.retention import Keeper, Kept, NotKept
from guardrun.supervisor.engine.model.events import Checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """out/checkpoint-40 with two files, one of them in a folder; run/ to keep it in."""
    (tmp_path / "run").mkdir()
    whole = tmp_path / "out" / "checkpoint-40"
    (whole / "shards").mkdir(parents=True)
    (whole / "model.bin").write_bytes(b"weights")
    (whole / "shards" / "0").write_bytes(b"shard")
    return whole


def checkpoint_of(path: Path, step: int = 40) -> Checkpoint:
    return Checkpoint(path=str(path), step=step, format="folder", written_wall_s=path.stat().st_mtime)


def keep(folder: Path, step: int = 40, *, is_link_enough: bool = False) -> Kept:
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    return Keeper(folder.parents[1] / "run").keep(checkpoint_of(folder, step), files, is_link_enough=is_link_enough)


def content(path: str) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in Path(path).rglob("*") if one.is_file()}


def test_a_copy_is_whole_has_the_times_and_survives_everything(folder: Path) -> None:
    before = content(str(folder))
    kept = keep(folder)
    assert kept.is_own and kept.how in ("copy", "reflink")
    times = {path.name: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert {path.name: path.stat().st_mtime_ns for path in Path(kept.path).rglob("*") if path.is_file()} == times
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.write_bytes(b"")
    assert content(kept.path) == before
    assert stat.S_IMODE(Path(kept.path).parent.stat().st_mode) == 0o700


def test_a_link_survives_what_is_removed_or_renamed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_clone", no_clones)
    before = content(str(folder))
    kept = keep(folder, is_link_enough=True)
    assert (kept.how, kept.is_own) == ("link", False)
    (folder / "model.bin").unlink()
    (folder / "new").write_bytes(b"other")
    (folder / "new").rename(folder / "shards" / "0")
    assert content(kept.path) == before


def no_clones(source: str, target: str) -> None:
    raise OSError(retention.errno.EOPNOTSUPP, "no")


def test_a_single_file_with_its_companion(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("ckpt_40.pt", "optim_40.pt"):
        (tmp_path / name).write_bytes(name.encode())
    files = [str(tmp_path / "ckpt_40.pt"), str(tmp_path / "optim_40.pt")]
    kept = Keeper(tmp_path / "run").keep(checkpoint_of(tmp_path / "ckpt_40.pt"), files, is_link_enough=False)
    assert kept.path == str(tmp_path / "run" / "kept" / "ckpt_40.pt")
    assert Path(kept.path).read_bytes() == b"ckpt_40.pt"
    assert (tmp_path / "run" / "kept" / "optim_40.pt").read_bytes() == b"optim_40.pt"


@pytest.mark.parametrize("why", ["too much", "too little room", "too long"])
def test_what_would_cost_too_much_is_not_kept_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(retention, "_clone", no_clones)
    if why == "too much":
        monkeypatch.setattr(retention, "MAX_COPIED_BYTES", 5)
    elif why == "too little room":
        monkeypatch.setattr(retention, "ROOM", 1 << 60)
    else:
        monkeypatch.setattr(retention, "COPY_S", -1.0)
    with pytest.raises(NotKept, match=why.removeprefix("too ").replace("long", "longer")):
        keep(folder)
    assert not list((folder.parents[1] / "run").iterdir()), "nothing is left of it"


def test_what_took_too_long_is_not_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_clone", no_clones)
    keeper, files = Keeper(folder.parents[1] / "run"), [str(folder / "model.bin")]
    with monkeypatch.context() as slow:
        slow.setattr(retention, "COPY_S", -1.0)
        with pytest.raises(NotKept, match="longer"):
            keeper.keep(checkpoint_of(folder), files, is_link_enough=False)
    with pytest.raises(NotKept, match="longer"):
        keeper.keep(checkpoint_of(folder), files, is_link_enough=False)
    (folder / "model.bin").write_bytes(b"less")
    assert keeper.keep(checkpoint_of(folder), files, is_link_enough=False).how == "copy"


def test_a_disk_that_is_full_in_between_is_said(folder: Path) -> None:
    (folder.parents[1] / "run").rmdir()
    with pytest.raises(NotKept):
        keep(folder)


@pytest.mark.parametrize("what", ["fifo", "link", "gone"])
def test_what_is_put_in_a_file_s_place_is_not_followed(folder: Path, what: str) -> None:
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    (folder / "model.bin").unlink()
    if what == "fifo":
        os.mkfifo(folder / "model.bin")
    elif what == "link":
        (folder / "model.bin").symlink_to("/etc/hostname")
    with pytest.raises(NotKept):
        Keeper(folder.parents[1] / "run").keep(checkpoint_of(folder), files, is_link_enough=False)


def test_the_next_one_takes_its_place_and_the_same_is_not_made_twice(folder: Path) -> None:
    first = keep(folder)
    made_ns = Path(first.path).stat().st_ctime_ns
    assert keep(folder) == first and Path(first.path).stat().st_ctime_ns == made_ns
    newer = folder.with_name("checkpoint-50")
    folder.rename(newer)
    os.utime(newer, (2e9, 2e9))
    second = keep(newer, 50)
    assert [path.name for path in Path(second.path).parent.iterdir()] == ["checkpoint-50"]


def test_it_is_let_go_once_the_run_is_further_and_not_before(folder: Path) -> None:
    keeper, kept = Keeper(folder.parents[1] / "run"), keep(folder)
    made_of = kept.checkpoint

    def newest(step: int, later_s: float, path: str = "/out/checkpoint-50") -> Checkpoint:
        return Checkpoint(path=path, step=step, written_wall_s=made_of.written_wall_s + later_s)

    for other in (None, made_of, newest(50, -5), newest(10, 5), newest(40, 5, kept.path)):
        keeper.let_go_if_passed(other)
        assert keeper.kept() == kept, other
    keeper.let_go_if_passed(newest(50, 5))
    assert keeper.kept() is None
    assert not list((folder.parents[1] / "run").iterdir())


@pytest.mark.parametrize("about", [b"", b"{", b'{"path": 3}', b"\xff"])
def test_a_broken_note_keeps_nothing(tmp_path: Path, about: bytes) -> None:
    (tmp_path / "kept.json").write_bytes(about)
    assert Keeper(tmp_path).kept() is None
