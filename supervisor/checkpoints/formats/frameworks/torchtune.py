"""torchtune's recipes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    WEIGHTS,
    Candidate,
    check_all,
    check_some,
    check_weights,
    find_folders,
    relative_names,
)
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import Place, read_stat
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole, within

_PATTERN = re.compile(r"(?:epoch|step)_\d+")
_RECIPE = ("recipe_state/recipe_state.pt", "recipe_state.pt")


class Torchtune:
    """`epoch_N/` or `step_N/` with the weights; the recipe's state there or one folder up."""

    name = "torchtune"
    resume = "resume_from_checkpoint=True"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The numbered folders, where a recipe's state is beside or in them."""
        is_beside = "recipe_state" in place.folders or "recipe_state.pt" in place.files

        def marks(names: set[str]) -> bool:
            has_weights = any(WEIGHTS.fullmatch(name) for name in names)
            return bool({"recipe_state.pt", "recipe_state"} & names) or (is_beside and has_weights)

        return find_folders(place, self.name, _PATTERN, None if is_named else marks)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: the weights with every shard, and the recipe's state (optimizer, seed, epochs)."""
        names = relative_names(candidate)
        if not names:
            return Torn("the folder is empty")
        if METADATA in names:  # An asynchronous save: everything, the recipe's state too, in one DCP folder.
            return inspector.check_dcp(candidate.path, candidate.files)
        verdict = check_weights(candidate, inspector)
        if not isinstance(verdict, Whole):
            return verdict
        inside = [name for name in _RECIPE if name in names]
        if inside:
            verdict = check_some(candidate, inspector, inside)
            return check_all(candidate, inspector) if isinstance(verdict, Whole) else verdict
        for name in _RECIPE:
            path = os.path.join(os.path.dirname(candidate.path), name)
            if (stat := read_stat(path)) is not None:
                verdict = inspector.check_torch(path, stat)
                return verdict if isinstance(verdict, Whole) else within(f"../{name}", verdict)
        return Torn("lacks recipe_state.pt")

    def takes(self, place: Place) -> str | None:
        """The recipe is told what to load."""
        return None
