"""nanoGPT and its many children: one file, written over in place."""

from __future__ import annotations

from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import Candidate, file_candidate
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Verdict, Whole

_NAME = "ckpt.pt"


class NanoGpt:
    """`ckpt.pt`: when it is torn, there is none."""

    name = "nanogpt"
    resume = "--init_from=resume"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The one file."""
        if _NAME in place.files:
            yield file_candidate(place, _NAME, self.name, None)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: the archive; the step is its `iter_num`."""
        verdict = inspector.check_torch(candidate.path, candidate.files[candidate.path])
        if not isinstance(verdict, Whole):
            return verdict
        contents = inspector.describe(candidate.path, candidate.files[candidate.path])
        return Whole(contents.step if contents else None)

    def takes(self, place: Place) -> str | None:
        """`--init_from=resume` takes it."""
        return _NAME if _NAME in place.files else None
