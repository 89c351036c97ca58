"""Among single files: which are checkpoints, and which are metrics, caches and weights."""

from __future__ import annotations

import enum
import os

from guardrun.supervisor.checkpoints.formats.format import Candidate
from guardrun.supervisor.checkpoints.reading.folder_contents import read_stat
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.step_numbers import NAME_LIKE, family_of, parse_step
from guardrun.supervisor.checkpoints.reading.verdicts import Unjudged, Whole

JUDGED_FORMATS = frozenset(("file", "nanogpt", "open_clip", "sharded"))
"""Those whose names alone do not tell a checkpoint from any other file."""


class Tier(enum.IntEnum):
    """How surely a family of files is this run's checkpoints; only the surest tier is chosen from."""

    TRAINING = 1
    """A codebase's own layout, or an optimizer's state: to be resumed from."""
    MODEL = 2
    """A model's weights without an optimizer; of several such families the largest counts."""
    NAMED = 3
    """Called like a checkpoint, with no tensor in it; likewise."""
    OTHER = 4
    """Metrics, caches, datasets: never chosen, unless the user named the format."""


def family_key(candidate: Candidate) -> str:
    """What the members of a family of files have in common."""
    folder, name = os.path.split(candidate.path)
    return os.path.join(folder, family_of(name))


def is_judged(candidate: Candidate) -> bool:
    """Say whether the contents must tell."""
    return candidate.format in JUDGED_FORMATS


def _is_named_like_one(candidate: Candidate) -> bool:
    name = os.path.basename(candidate.path)
    return bool(NAME_LIKE.search(name)) or parse_step(name) is not None


def judge_file(candidate: Candidate, inspector: Inspector) -> tuple[Tier | None, bool]:
    """Tell a family's tier by one of its members, and whether that is sure.

    None: that one is torn. What could not be looked into is no sure sign: another member may tell.
    """
    stat = candidate.files.get(candidate.path)
    verdict = inspector.check_torch(candidate.path, stat) if stat is not None else None
    if stat is None or not isinstance(verdict, Whole):
        return None, not isinstance(verdict, Unjudged)
    is_named = _is_named_like_one(candidate)
    contents = inspector.describe(candidate.path, stat)
    if contents is None and read_stat(candidate.path) != stat:
        return None, True  # gone, or written anew, since it was found whole: it tells nothing of its family
    for path, beside in candidate.files.items():
        described = inspector.describe(path, beside) if path != candidate.path else None
        if described is not None and described.has_optimizer:
            return Tier.TRAINING, True
    if contents is None:
        is_safetensors = candidate.path.endswith(".safetensors")
        return Tier.MODEL if is_named or is_safetensors else Tier.NAMED, is_safetensors
    if contents.has_optimizer:
        return Tier.TRAINING, True
    if contents.tensors and (is_named or contents.has_model):
        return Tier.MODEL, True
    return Tier.NAMED if is_named else Tier.OTHER, True


def judge_torn(candidate: Candidate) -> Tier:
    """Tell the tier of a family of which no member is whole: by its name alone."""
    return Tier.TRAINING if _is_named_like_one(candidate) else Tier.OTHER
