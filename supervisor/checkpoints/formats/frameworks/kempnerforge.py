"""KempnerForge: torch.distributed.checkpoint with the training state beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import Candidate, check_all, check_some, find_folders
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_PATTERN = re.compile(r"step_(\d+)")


class KempnerForge:
    """`step_N/`; while the link `latest` exists, nothing else is taken, whatever `load_path` says."""

    name = "kempnerforge"
    resume = "by itself, from the link `latest`"
    resumes_itself = True

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The folders `step_N` with a `train_state.pt`."""

        def marks(names: set[str]) -> bool:
            return "train_state.pt" in names

        return find_folders(place, self.name, _PATTERN, None if is_named else marks)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: what `.metadata` names, `train_state.pt` and `metadata.json`."""
        if not candidate.files:
            return Torn("the folder is empty")
        verdict = inspector.check_dcp(candidate.path, candidate.files)
        if isinstance(verdict, Whole):
            verdict = check_some(candidate, inspector, ["train_state.pt", "metadata.json"])
        return check_all(candidate, inspector) if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """What `latest` points to."""
        return place.links.get("latest")
