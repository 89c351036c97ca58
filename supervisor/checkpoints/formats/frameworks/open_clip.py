"""open_clip."""

from __future__ import annotations

import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import Candidate, file_candidate, highest
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Verdict

_PATTERN = re.compile(r"epoch_(\d+)\.pt")
_LATEST = "epoch_latest.pt"


class OpenClip:
    """`epoch_N.pt` and `epoch_latest.pt`; an epoch is no step."""

    name = "open_clip"
    resume = "--resume latest, or --resume PATH"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The epochs' files."""
        for name in place.files:
            if _PATTERN.fullmatch(name) or name == _LATEST:
                yield file_candidate(place, name, self.name, None)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: the archive."""
        return inspector.check_torch(candidate.path, candidate.files[candidate.path])

    def takes(self, place: Place) -> str | None:
        """`--resume latest` takes `epoch_latest.pt`, else the highest epoch."""
        return _LATEST if _LATEST in place.files else highest(place, _PATTERN, place.files)
