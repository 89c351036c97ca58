"""Is there room for one more checkpoint? By the size of the newest one."""

from __future__ import annotations

import os

from guardrun.supervisor.base.bounded_calls import run_bounded
from guardrun.supervisor.preflight.base.remark import Remark, ok, size_text, warn

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
