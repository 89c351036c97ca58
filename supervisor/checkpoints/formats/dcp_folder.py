"""Any folder that torch.distributed.checkpoint wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import Candidate, check_all, find_folders
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.step_numbers import STEP_FOLDER, TEMPORARY
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_PATTERN = re.compile(r"[^.].*")


class DcpFolder:
    """`.metadata` and `__R_S.distcp`, under any name, with whatever else the script put beside them."""

    name = "dcp"
    resume = "torch.distributed.checkpoint.load(…, checkpoint_id=PATH)"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """Folders with such files, or named like siblings that have them."""
        for candidate in find_folders(place, self.name, _PATTERN, _is_dcp):
            name = candidate.names[0]
            if not TEMPORARY.search(name) and (_is_dcp(place.child(name).names) or STEP_FOLDER.search(name)):
                yield candidate

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: everything that `.metadata` names, and every other file that torch or JSON wrote."""
        if not candidate.files:
            return Torn("the folder is empty")
        verdict = inspector.check_dcp(candidate.path, candidate.files)
        return check_all(candidate, inspector) if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """Nothing: no script of its own."""
        return None


def _is_dcp(names: set[str]) -> bool:
    return METADATA in names or any(name.endswith(".distcp") for name in names)
