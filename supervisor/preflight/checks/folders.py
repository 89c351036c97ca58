"""Can a run be recorded, and a checkpoint be saved, where they are to be; is there room for one more?"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection

from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.collect.host.file_systems import Answers, ask, read_mounts
from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, note, ok, size_text, warn

# Checkpoint room ----------------------------------------------------------------------------------------------------
# Is there room for one more checkpoint? By the size of the newest one.


NAME = "folders"
SEARCH_S = 0.7
"""A folder with very many files takes longer: then the size is not known, and nothing is said of it."""
ROOM_FOR_ANOTHER = 1.05
"""Most scripts write the new one before they remove the old."""


def last_checkpoint(folder: str, format_name: str, ranks: int, timeout_s: float = SEARCH_S) -> tuple[int, str]:
    """Size and path of the newest checkpoint in a folder; (0, "") where there is none, or it takes too long to say."""
    answer = run_bounded([lambda: _find(folder, format_name, ranks)], workers=1, timeout_s=timeout_s)[0]
    return answer if isinstance(answer, tuple) else (0, "")


def _find(folder: str, format_name: str, ranks: int) -> tuple[int, str]:
    # All formats: some ten milliseconds that a run without [checkpoint] dir is spared.
    from guardrun.supervisor.checkpoints.format_table import get_formats
    from guardrun.supervisor.checkpoints.search import Search

    search = Search(get_formats(format_name), ranks, ())
    search.below(os.path.realpath(folder))
    newest = max((one.candidate for one in search.found), key=lambda one: one.written_ns, default=None)
    return (newest.size_bytes, newest.path) if newest else (0, "")


def judge_room_for(folder: str, free_bytes: int | None, needed_bytes: int, last: str) -> Remark:
    """free_bytes: None where the file system did not say."""
    data = {"folder": folder, "free_bytes": free_bytes, "last_checkpoint_bytes": needed_bytes}
    if free_bytes is not None and needed_bytes and free_bytes < needed_bytes * ROOM_FOR_ANOTHER:
        return warn(
            NAME,
            f"{folder} has {size_text(free_bytes)} left, and a checkpoint takes {size_text(needed_bytes)} ({last}).",
            "Remove checkpoints that nobody needs, or save elsewhere ([checkpoint] dir, the script's own option).",
            **data,
        )
    room = "" if free_bytes is None else f", with {size_text(free_bytes)} left"
    of = f" (the last one took {size_text(needed_bytes)})" if needed_bytes else ""
    return ok(NAME, f"Checkpoints can be written to {folder}{room}{of}.", **data)


# Folders ------------------------------------------------------------------------------------------------------------


ANSWER_S = 1.2
"""For file systems, of the two seconds that all quick checks have."""
FULL_BYTES = 1 << 30
FULL_SHARE = 0.02
IMAGES = frozenset({"squashfs", "erofs", "iso9660", "cramfs"})
"""File systems that nobody writes to, as containers' images are: never any room."""


def existing(folder: str) -> str:
    """The folder, or the nearest above it that is there."""
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def why_not_writable(folder: str) -> str:
    """Why nothing can be written there, or made below; empty where it can.

    Tried, not asked: access lists, quotas and full disks have their say.
    """
    at = existing(folder)
    if not os.path.isdir(at):
        return f"{at} is no folder"
    try:
        with tempfile.NamedTemporaryFile(prefix=".guardrun-", dir=at) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _unwritable(folder: str, why: str, what: str, advice: str) -> Remark:
    return warn(NAME, f"{what} cannot be written to {folder}: {why}.", advice, folder=folder)


def judge_room(path: str, point: str, free_bytes: int, total_bytes: int) -> Remark | None:
    """A file system that is full, or nearly."""
    if not total_bytes or free_bytes >= min(FULL_BYTES, FULL_SHARE * total_bytes):
        return None
    return warn(
        "disks",
        f"{point} has {size_text(free_bytes)} left of {size_text(total_bytes)} ({path} lies there).",
        "Make room: a full disk ends a run at its next write.",
        mount=point,
        free_bytes=free_bytes,
    )


def of_disks(answers: Answers, images: Collection[str] = ()) -> list[Remark]:
    """images: mount points of file systems that are full by their nature."""
    remarks = [
        warn(
            "disks",
            f"The file system at {point} does not answer: whatever touches it hangs.",
            "Tell the admin of the file server; umount -f -l frees what hangs.",
            mount=point,
        )
        for point in answers.dead
    ]
    found = {
        room.point: judge_room(room.path, room.point, room.free_bytes, room.total_bytes)
        for room in answers.rooms
        if room.point not in images
    }
    remarks += [one for one in found.values() if one is not None]
    if remarks:
        return remarks
    points = ", ".join(found)
    return [ok("disks", f"There is room on {points}.") if points else note("disks", "No file system said its room.")]


def run(subject: Subject) -> list[Remark]:
    """Looks at cwd, TMPDIR, HOME and the folders of runs and checkpoints, writing to none that does not answer."""
    temporary = subject.environ.get("TMPDIR") or "/tmp"
    wanted = [subject.cwd, temporary, subject.run_folder, subject.checkpoint_dir, subject.environ.get("HOME", "")]
    mounts = read_mounts()
    answers = ask([path for path in dict.fromkeys(wanted) if path.startswith("/")], ANSWER_S, mounts)
    rooms = {room.path: room.free_bytes for room in answers.rooms}
    remarks = of_disks(answers, {mount.point for mount in mounts if mount.kind in IMAGES})
    # What did not answer is not touched: whoever does may never return.
    if subject.run_folder in rooms:
        why = why_not_writable(subject.run_folder)
        if why:
            advice = "The run is kept elsewhere, and that is said; --guard-dir names another folder."
            remarks.append(_unwritable(subject.run_folder, why, "The run's record", advice))
        else:
            remarks.append(ok(NAME, f"The run can be recorded in {subject.run_folder}."))
    if subject.checkpoint_dir in rooms:
        remarks.append(_of_checkpoints(subject, rooms[subject.checkpoint_dir]))
    return remarks


def _of_checkpoints(subject: Subject, free_bytes: int) -> Remark:
    folder = subject.checkpoint_dir
    why = why_not_writable(folder)
    if why:
        return _unwritable(folder, why, "Checkpoints", "Make it writable, or correct [checkpoint] dir.")
    size_bytes, last = last_checkpoint(folder, subject.checkpoint_format, subject.ranks)
    return judge_room_for(folder, free_bytes, size_bytes, last)


CHECK = Check("folders", run, needs_run=True)
