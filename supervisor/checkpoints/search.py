"""Where checkpoints may lie, which candidates are there, and which single files are checkpoints at all."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from guardrun.hooks.wire.examinations import SAVE_PREFIX
from guardrun.supervisor.checkpoints.format_table import find_candidates
from guardrun.supervisor.checkpoints.formats.format import Candidate, Format
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import (
    NAME_LIKE,
    STEP_FOLDER,
    Place,
    family_of,
    parse_step,
    read_place,
    read_stat,
)
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Unjudged, Whole

WALK_DEPTH = 5
MAX_PLACES = 2000
_IGNORED = frozenset(
    ("__pycache__", "node_modules", "wandb", "mlruns", "guardrun-runs", "site-packages", "recipe_state")
)
_CLIMB = 4
_PART = re.compile(
    r"recipe_state|mp_rank_\w+|pytorch_model\w*|optimizer(_\d+)?|optim|model|weights|dcp|distcp|trainer|data_reader"
    r"|tp_\d+\w*|rank_?\d+",
    re.I,
)
"""Folders inside a checkpoint's own, as the formats make them."""


@dataclass(frozen=True)
class Found:
    """A candidate, and where it was found."""

    candidate: Candidate
    format: Format
    root: str


def root_of(path: str, step: int | None = None, cwd: str = "") -> str:
    """The folder to search for the checkpoint that a saved or loaded path belongs to.

    `out/checkpoint-40/optimizer.pt` belongs to a checkpoint in `out`, `out/ckpt.pt` to one in `out` too. A run's own
    folder may be named like a step (`/scratch/12345/out`, a job's id; `finetune-step-2`): only a folder right above
    what was saved is a checkpoint's, or one above the parts that formats are known to make; a mere number only if it is
    `step`, at which the path was saved; none if the file's own name says that step; and never cwd or what is above it.
    """
    root = folder = os.path.dirname(path)
    own = parse_step(os.path.basename(path))
    for _ in range(_CLIMB):
        parent, name = os.path.split(folder)
        if not name or (cwd and os.path.join(cwd, "").startswith(os.path.join(folder, ""))):
            break
        if STEP_FOLDER.search(name) and _is_checkpoints(name, own, step):
            root = parent
        if not (STEP_FOLDER.search(name) or _PART.fullmatch(name)):
            break
        if name == "recipe_state":
            root = parent
        folder = parent
    return root


def _is_checkpoints(name: str, own: int | None, step: int | None) -> bool:
    number = int(re.findall(r"\d+", name)[-1]) if re.search(r"\d", name) else None
    if step is None:
        return own is None
    if number == step:
        return True
    return not name.isdigit() and own != step


def _alone(folder: str) -> Place:
    """A place with nothing in it but one folder."""
    place = Place(os.path.dirname(folder))
    place.folders = [os.path.basename(folder)]
    return place


class Search:
    """One look at the disk. All paths are absolute and have no links."""

    def __init__(self, formats: tuple[Format, ...], world_size: int, saved: Iterable[str]) -> None:
        """saved: paths that ranks were seen to save; they count whatever their ending."""
        self.found: list[Found] = []
        self.places: list[Place] = []
        self._formats = formats
        self._world_size = world_size
        self._visited: set[str] = set()
        self._saved: dict[str, set[str]] = {}
        for path in saved:
            folder, name = os.path.split(path)
            self._saved.setdefault(folder, set()).add(name)

    def below(self, directory: str) -> None:
        """Look through a folder and what lies below it; it may itself be a checkpoint that is written over."""
        place = read_place(directory)
        if METADATA in place.files or any(name.endswith(".distcp") for name in place.files):
            self._look(_alone(directory), directory)
        else:
            self._walk(place, directory, WALK_DEPTH)

    def within(self, root: str) -> None:
        """Look through one folder, unless that was done."""
        if root not in self._visited:
            self._walk(read_place(root), root, 0)

    def _look(self, place: Place, root: str) -> set[str]:
        place.saved = self._saved.get(place.path, set())
        self.places.append(place)
        taken: set[str] = set()
        for candidate, known in find_candidates(place, self._formats, self._world_size):
            taken.update(candidate.names)
            self.found.append(Found(candidate, known, root))
        return taken

    def _walk(self, place: Place, root: str, depth: int) -> None:
        self._visited.add(place.path)
        taken = self._look(place, root)
        for name in place.folders if depth > 0 else ():
            if name in taken or name in _IGNORED or name.startswith((".", SAVE_PREFIX)):
                continue
            if len(self._visited) >= MAX_PLACES:
                return
            self._walk(place.child(name), root, depth - 1)


# Ranking ------------------------------------------------------------------------------------------------------------
# Among single files: which are checkpoints, and which are metrics, caches and weights.


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
