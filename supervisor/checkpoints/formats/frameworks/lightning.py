"""Lightning's ModelCheckpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    file_candidate,
    folder_candidate,
)
from guardrun.supervisor.checkpoints.reading.folder_contents import Place, parse_step
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_PATTERN = re.compile(r"[^.].*\.ckpt")


class Lightning:
    """`…step=N.ckpt`, `last.ckpt`, `hpc_ckpt_N.ckpt`: a file, or a folder where a sharded strategy saved."""

    name = "lightning"
    resume = "trainer.fit(…, ckpt_path=PATH)"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """Everything that ends in `.ckpt`."""
        for name in place.files:
            if _PATTERN.fullmatch(name):
                yield file_candidate(place, name, self.name, parse_step(name))
        for name in place.folders:
            if _PATTERN.fullmatch(name):
                yield folder_candidate(place, name, self.name, parse_step(name))

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: the archive; the step is the `global_step` in it."""
        if not candidate.files:
            return Torn("the folder is empty")
        if candidate.is_one_file:
            verdict = inspector.check_torch(candidate.path, candidate.files[candidate.path])
            if not isinstance(verdict, Whole):
                return verdict
            contents = inspector.describe(candidate.path, candidate.files[candidate.path])
            return Whole(contents.step if contents else None)
        verdict = check_all(candidate, inspector)
        if not isinstance(verdict, Whole):
            return verdict
        if any(path.endswith((".distcp", "/.metadata")) for path in candidate.files):
            return inspector.check_dcp(candidate.path, candidate.files)
        return Whole()

    def takes(self, place: Place) -> str | None:
        """`ckpt_path="last"` takes `last.ckpt`."""
        return "last.ckpt" if "last.ckpt" in place.names else None
