"""Reads are seen, whoever reads; what is no read is not."""

from __future__ import annotations

import mmap
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.launcher.attempt import checkpoint_reads
from guardrun.launcher.attempt.checkpoint_reads import OpenWatch


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "checkpoint-40" / "shards").mkdir(parents=True)
    (folder / "ckpt.pt").write_bytes(bytes(100))
    (folder / "checkpoint-40" / "shards" / "0.distcp").write_bytes(bytes(100))
    (folder / "log.txt").write_bytes(bytes(100))
    return folder


@pytest.fixture
def watch(out: Path) -> Iterator[OpenWatch]:
    one = OpenWatch([str(out / "ckpt.pt"), str(out / "checkpoint-40")])
    yield one
    one.close()


def map_it(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        pass


READS: dict[str, Callable[[Path], object]] = {
    "read": lambda out: (out / "ckpt.pt").read_bytes(),
    "one byte": lambda out: os.close(os.open(out / "ckpt.pt", os.O_RDONLY)),
    "mapped": lambda out: map_it(out / "ckpt.pt"),
    "another program": lambda out: subprocess.run(["head", "-c1", out / "ckpt.pt"], check=True, capture_output=True),
    "deep in a folder": lambda out: (out / "checkpoint-40" / "shards" / "0.distcp").read_bytes(),
    "by a link": lambda out: ((out / "l").symlink_to("ckpt.pt"), (out / "l").read_bytes()),
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "listed": lambda out: [*out.rglob("*")],
    "looked at": lambda out: (out / "ckpt.pt").stat(),
    "written": lambda out: (out / "ckpt.pt").write_bytes(bytes(200)),
    "written beside it": lambda out: (out / "checkpoint-40" / "new").write_bytes(b"x"),
    "another file read": lambda out: (out / "log.txt").read_bytes(),
    "renamed": lambda out: (out / "ckpt.pt").rename(out / "ckpt_old.pt"),
    "removed": lambda out: (out / "ckpt.pt").unlink(),
}


@pytest.mark.parametrize("how", READS)
def test_a_read_is_seen_once(out: Path, watch: OpenWatch, how: str) -> None:
    assert watch.read() == ""
    READS[how](out)
    assert watch.read() == str(out / ("checkpoint-40" if "folder" in how else "ckpt.pt"))
    assert watch.read() == ""


@pytest.mark.parametrize("how", OTHERS)
def test_what_is_no_read_is_not(out: Path, watch: OpenWatch, how: str) -> None:
    OTHERS[how](out)
    assert watch.read() == ""


def test_what_is_gone_is_not_watched(tmp_path: Path) -> None:
    OpenWatch([str(tmp_path / "gone")]).close()


def test_too_many_folders_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_reads, "MAX_WATCHES", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
    with pytest.raises(OSError, match="more than 2 folders"):
        OpenWatch([str(tmp_path)])


def test_a_file_system_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(checkpoint_reads, "_places", lambda path: iter([path] if answers.wait(60) else []))
    with pytest.raises(OSError, match="do not answer"):
        checkpoint_reads.watch([str(tmp_path)], limit_s=0.1)
    [late] = [thread for thread in threading.enumerate() if thread.name == "guardrun-opens"]
    answers.set()
    late.join(60)
