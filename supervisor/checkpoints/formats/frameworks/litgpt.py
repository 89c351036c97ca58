"""litgpt's pretraining and fine-tuning."""

from __future__ import annotations

import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    check_some,
    find_folders,
    highest,
    relative_names,
)
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole, within

_PATTERN = re.compile(r"step-(\d+)")


class Litgpt:
    """`step-NNNNNN/lit_model.pth`, a file or a folder, with `model_config.yaml`."""

    name = "litgpt"
    resume = "--resume auto, or --resume PATH/lit_model.pth"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The folders `step-N` with litgpt's files."""

        def marks(names: set[str]) -> bool:
            return any(name.startswith("lit_model.") for name in names)

        return find_folders(place, self.name, _PATTERN, None if is_named else marks)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: the model's file (or sharded folder) and its configuration, which is written after it."""
        names = relative_names(candidate)
        if not names:
            return Torn("the folder is empty")
        sharded = f"{candidate.path}/lit_model.pth"
        wanted = ["model_config.yaml"]
        if any(name.startswith("lit_model.pth/") for name in names):
            verdict = inspector.check_dcp(sharded, candidate.files)
            if not isinstance(verdict, Whole):
                return within("lit_model.pth", verdict)
        else:
            wanted.insert(0, "lit_model.pth")
        verdict = check_some(candidate, inspector, wanted)
        return check_all(candidate, inspector) if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """`--resume auto` takes the highest step that has a model."""
        return highest(place, _PATTERN, (name for name in place.folders if "lit_model.pth" in place.child(name).names))
