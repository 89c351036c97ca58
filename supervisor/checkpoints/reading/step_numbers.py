"""The training step in a checkpoint's name."""

from __future__ import annotations

import os
import re
from functools import lru_cache

_CLIMB = 3
_EXTENSION = re.compile(r"\.(?:pt|pth|ckpt|bin|safetensors|tar|pkl|pickle|model)+$", re.I)
_NOISE = re.compile(r"[_.-]?(?<![a-z])(?:rank|r)[_-]?\d+(?=[_.-]|$)|-v\d+$|[_-]?\d+-of-\d+|[_-]?mp_rank_\d+", re.I)
_SAID = re.compile(
    r"(?:^|[^a-z])(?:global_?steps?|steps?|iter(?:ation)?s?|it|ba|updates?)[_=.-]?(\d{1,10})(?!\d)", re.I
)
_EPOCH = re.compile(r"epoch|(?:^|[^a-z])ep?[_=-]?\d", re.I)
_NAMED = re.compile(r"(?:checkpoint|ckpt|chkpt|model|state|snapshot|weights)[_=.-]?(\d{1,10})(?![\da-z.])", re.I)
_TRAILING = re.compile(r"(?:^|[_=-])(\d{1,10})$")

NAME_LIKE = re.compile(
    r"ckpt|chkpt|checkpoint|model|state|step|snapshot|iter|epoch|weights|last|latest|best|resume|trainer|save", re.I
)
"""What people call a checkpoint."""
STEP_FOLDER = re.compile(
    r"(?:^|[._-])(?:global_?step|steps?|iter|epoch|ep|ba|ckpt|checkpoint|chkpt)[_=-]?\d+|^\d+$|\.ckpt$", re.I
)
"""A folder that is a checkpoint rather than one that holds several."""
TEMPORARY = re.compile(r"(?:^|[._-])(?:tmp|temp|partial|incomplete|writing)\d*(?=[._-]|$)|\.part$|~$", re.I)


def parse_step(name: str) -> int | None:
    """Read the step out of a file's or folder's name; an epoch is none.

    `step=40`, `step_40`, `iter_0000040`, `checkpoint-40`, `ckpt_40.pt`, `model_000040.pt`, `net_40.pt`.
    """
    stem = _NOISE.sub("", _EXTENSION.sub("", name))
    if match := _SAID.search(stem):
        return int(match.group(1))
    if _EPOCH.search(stem):
        return None
    if match := _NAMED.search(stem) or _TRAILING.search(stem):
        return int(match.group(1))
    return None


@lru_cache(maxsize=1024)  # all ranks say the same of a checkpoint that they save together
def step_family(path: str) -> tuple[str, int]:
    """What a saved path's checkpoint has in common with others of its kind, and its step; ("", 0): no name says one.

    By the last names alone, whatever links lead there: `out/checkpoint-#` of `…/out/checkpoint-40/optimizer.pt`.
    """
    folder, name = os.path.split(path)
    for _ in range(_CLIMB):
        step = parse_step(name)
        if step is not None:
            return os.path.join(os.path.basename(folder), family_of(name)), step
        folder, name = os.path.split(folder)
        if not STEP_FOLDER.search(name):
            break
    return "", 0


def family_of(name: str) -> str:
    """The name with its numbers taken out: what checkpoints of one kind have in common."""
    return re.sub(r"\d+", "#", name)
