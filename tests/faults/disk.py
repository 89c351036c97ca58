"""Faults of the run directory, its files, and the file systems that a run stands on."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.faults.bed import SAVE_EVERY, Bed, send
from tests.faults.row import Row, nothing
from tests.faults.stories import Continued, Unrecorded
from tests.support.slowmount import slow_mount
from tests.support.waiting import wait_until


def on_tmpfs(bed: Bed, options: str) -> Path:
    """Where the run keeps its record."""
    folder = bed.folder / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", str(folder)], check=True, timeout=60)
    bed.stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True, timeout=60)
    bed.env["GUARDRUN_DIR"] = str(folder)
    return folder


def small(bed: Bed) -> None:
    on_tmpfs(bed, "size=400k")


def full_from_the_beginning(bed: Bed) -> None:
    on_tmpfs(bed, "size=8k")


def read_only(bed: Bed) -> None:
    on_tmpfs(bed, "size=400k,ro")


def a_file_in_its_place(bed: Bed) -> None:
    (bed.folder / "guardrun-runs").write_text("a file")


def fill(bed: Bed) -> str:
    with suppress(OSError), (bed.run.guard_dir / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(512))
    return ""


def fill_and_empty(bed: Bed) -> str:
    """Full for a while, in which much happens."""
    fill(bed)
    bed.trains(10 * SAVE_EVERY)
    (bed.run.guard_dir / "filler").unlink()
    return ""


def forbid_writing(bed: Bed) -> str:
    """No byte to any file, as beyond a quota; the launcher's limit would be that of ranks, too."""
    pid = bed.supervisor().pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))
    return ""


def remove(bed: Bed) -> str:
    """Again where a file has come meanwhile: each that is written needs the folder, and none makes it anew."""

    def is_gone() -> bool:
        shutil.rmtree(bed.run_dir, ignore_errors=True)
        return not bed.run_dir.exists()

    wait_until(is_gone, 20, "the folder's end")
    return ""


def rename(bed: Bed) -> str:
    bed.run_dir.rename(bed.run_dir.with_name("elsewhere"))
    return ""


def remove_latest(bed: Bed) -> str:
    (bed.run.guard_dir / "latest").unlink()
    return ""


# Files of the run ---------------------------------------------------------------------------------------------------

Loss = Callable[[Path], None]
JOURNAL, MEMORY = ("events.jsonl",), ("checkpoints.json",)


def gone(path: Path) -> None:
    path.unlink(missing_ok=True)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    """At any byte."""
    os.truncate(path, random.randrange(1, path.stat().st_size))


def beheaded(path: Path) -> None:
    """Zeros where its first block was, as after a loss of power."""
    data = path.read_bytes()
    path.write_bytes(b"\0" * min(512, len(data)) + data[512:])


def noisy(path: Path) -> None:
    """Some bytes in it are others, in place."""
    with path.open("r+b") as file:
        for _ in range(20):
            file.seek(random.randrange(path.stat().st_size))
            file.write(os.urandom(8))


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(1000))


@dataclass(frozen=True)
class Spoilt:
    """Everything is killed, and these files of the run are lost."""

    names: tuple[str, ...]
    lose: Loss

    def __call__(self, bed: Bed) -> str:
        for name in self.names:
            bed.wait_for((bed.run_dir / name).exists, name)
        bed.run.close()
        for name in self.names:
            self.lose(bed.run_dir / name)
        return ""


@dataclass(frozen=True)
class SpoiltBeneath:
    """The supervisor is killed, and these files are lost before the next one reads them."""

    names: tuple[str, ...]
    lose: Loss

    def __call__(self, bed: Bed) -> str:
        old = bed.supervisor()
        for name in self.names:
            bed.wait_for((bed.run_dir / name).exists, name)
        send(old, signal.SIGSTOP)
        for name in self.names:
            self.lose(bed.run_dir / name)
        send(old, signal.SIGKILL)
        bed.another(old)
        return ""


def kept_is_lost(bed: Bed) -> str:
    """What is kept from harm, after a restart that has kept something."""
    bed.hurt()
    bed.mended()
    bed.trains()
    bed.run.close()
    for path in (bed.run_dir / "kept", bed.run_dir / "kept.json"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return ""


def newest_is_torn(bed: Bed) -> str:
    """The newest checkpoint is cut short, as by the loss of power that ended the run: it was never whole."""
    bed.run.close()
    newest = bed.folder / "out" / f"ckpt_{bed.saved}.safetensors"
    shutil.copy(newest, bed.folder / "out" / f"ckpt_{bed.saved + SAVE_EVERY}.safetensors")
    os.truncate(bed.folder / "out" / f"ckpt_{bed.saved + SAVE_EVERY}.safetensors", 600)
    return ""


@dataclass(frozen=True)
class LostInSecondAttempt:
    """The journal is lost after a restart: the attempt that lives is not the first."""

    holds = "the attempt that lives is gone on with; a rank that is killed afterwards is restarted; exit 0"

    def __call__(self, bed: Bed) -> str:
        bed.is_recorded = False
        bed.start()
        bed.trains()
        bed.hurt()
        bed.mended()
        SpoiltBeneath(JOURNAL, gone)(bed)
        bed.trains()
        send(bed.ranks()[0], signal.SIGKILL)
        bed.wait_for(lambda: len(bed.begun) == 3, "the third attempt")
        bed.trains()
        bed.ends(attempts=3)
        return ""


# Slow and dead mounts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BehindMount:
    """A folder of the run lies on a mount whose answers are late, and which stops for a while or not."""

    folder: str
    """guardrun-runs, out"""
    late_s: float = 0.0
    stops_s: float = 0.0
    holds = Unrecorded.holds

    def __call__(self, bed: Bed) -> str:
        behind, at = bed.folder / "behind", bed.folder / self.folder
        for path in (behind, at):
            path.mkdir()
        server = bed.stack.enter_context(slow_mount(behind, at, self.late_s))
        bed.stack.callback(bed.close)  # first: who has a file open there cannot end otherwise

        def fault(bed: Bed) -> str:
            if self.stops_s:
                server.send_signal(signal.SIGSTOP)
                time.sleep(self.stops_s)
                server.send_signal(signal.SIGCONT)
            return ""

        return Unrecorded(fault)(bed)


def continued(names: tuple[str, ...], lose: Loss) -> Continued:
    return Continued(Spoilt(names, lose), is_replayed=False)


KILLED = "everything killed in training; the same command again"
ALIVE = "in training, and the supervisor killed"
START = "from the beginning"

ROWS = (
    Row("disk", "the run directory's file system is full", "in training", Unrecorded(fill, small), ("mount",)),
    Row(
        "disk",
        "the run directory's file system is full, and has room again",
        "in training",
        Unrecorded(fill_and_empty, small),
        ("mount",),
    ),
    Row("disk", "room for 8 kB", START, Unrecorded(nothing, full_from_the_beginning), ("mount",)),
    Row("disk", "read-only", START, Unrecorded(nothing, read_only), ("mount",)),
    Row("disk", "a file in place of the folder of runs", START, Unrecorded(nothing, a_file_in_its_place)),
    Row("disk", "no byte may be written by the supervisor (RLIMIT_FSIZE 0)", "in training", Unrecorded(forbid_writing)),
    Row("disk", "the run directory is removed", "in training", Unrecorded(remove), is_sample=True),
    Row("disk", "the run directory is renamed", "in training", Unrecorded(rename)),
    Row("disk", "the link latest is removed", "in training", Unrecorded(remove_latest)),
    Row("disk", "the journal is cut at some byte", ALIVE, Unrecorded(SpoiltBeneath(JOURNAL, cut))),
    Row("disk", "the journal is emptied", ALIVE, Unrecorded(SpoiltBeneath(JOURNAL, emptied))),
    Row("disk", "the journal is removed", ALIVE, Unrecorded(SpoiltBeneath(JOURNAL, gone))),
    Row("disk", "the journal is removed", f"after a restart, {ALIVE}", LostInSecondAttempt()),
    Row("disk", "noise in the journal", ALIVE, Unrecorded(SpoiltBeneath(JOURNAL, noisy))),
    Row("disk", "run.json is cut", ALIVE, Unrecorded(SpoiltBeneath(("run.json",), cut))),
    Row("disk", "the journal is cut at some byte", KILLED, continued(JOURNAL, cut), is_sample=True),
    Row("disk", "the journal is emptied", KILLED, continued(JOURNAL, emptied)),
    Row("disk", "the journal is removed", KILLED, continued(JOURNAL, gone)),
    Row("disk", "zeros in the journal's first block", KILLED, continued(JOURNAL, beheaded)),
    Row("disk", "noise in the journal", KILLED, continued(JOURNAL, noisy)),
    Row("disk", "checkpoints.json is cut", KILLED, continued(MEMORY, cut)),
    Row("disk", "checkpoints.json is garbage", KILLED, continued(MEMORY, garbage)),
    Row("disk", "journal and checkpoints.json are removed", KILLED, continued(JOURNAL + MEMORY, gone)),
    Row("disk", "run.json is cut", KILLED, continued(("run.json",), cut)),
    Row("disk", "what was kept from harm is removed", KILLED, Continued(kept_is_lost, is_replayed=False)),
    Row("disk", "a newest checkpoint that is torn", KILLED, Continued(newest_is_torn)),
    Row("disk", "each answer for the run directory takes 50 ms", START, BehindMount("guardrun-runs", 0.05), ("sshfs",)),
    Row(
        "disk",
        "the run directory's file system does not answer for 12 s",
        "in training",
        BehindMount("guardrun-runs", stops_s=12.0),
        ("sshfs",),
    ),
    Row(
        "disk",
        "the checkpoints' file system does not answer for 12 s",
        "in training",
        BehindMount("out", stops_s=12.0),
        ("sshfs",),
    ),
)
