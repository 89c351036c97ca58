"""torchtitan: `step-N/`, written by torch.distributed.checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import Candidate, find_folders, highest
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict

_PATTERN = re.compile(r"step-(\d+)")


class Torchtitan:
    """`.metadata` comes last; a script takes the highest step that has one."""

    name = "torchtitan"
    resume = "by itself; --checkpoint.load_step=N for another"
    resumes_itself = True

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The folders `step-N` of torch.distributed.checkpoint."""

        def marks(names: set[str]) -> bool:
            return METADATA in names or any(name.endswith(".distcp") for name in names)

        return find_folders(place, self.name, _PATTERN, None if is_named else marks)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: everything that `.metadata` names."""
        if not candidate.files:
            return Torn("the folder is empty")
        return inspector.check_dcp(candidate.path, candidate.files)

    def takes(self, place: Place) -> str | None:
        """The highest step with `.metadata` (components/checkpoint.py, _find_load_step)."""
        return highest(place, _PATTERN, (name for name in place.folders if METADATA in place.child(name).files))
