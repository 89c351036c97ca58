"""Where checkpoints may lie, and which candidates are there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from guardrun.supervisor.checkpoints.format_table import find_candidates
from guardrun.supervisor.checkpoints.formats.format import Candidate, Format
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import Place, read_place
from guardrun.supervisor.checkpoints.reading.step_numbers import STEP_FOLDER, parse_step

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
            if name in taken or name in _IGNORED or name.startswith("."):
                continue
            if len(self._visited) >= MAX_PLACES:
                return
            self._walk(place.child(name), root, depth - 1)
