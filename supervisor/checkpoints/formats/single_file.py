"""Any file that torch.save or safetensors wrote."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import Candidate, check_all, file_candidate
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import TORCH_ENDINGS, Inspector
from guardrun.supervisor.checkpoints.reading.step_numbers import TEMPORARY, family_of, parse_step
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_ENDINGS = (*TORCH_ENDINGS, ".safetensors")
_COMPANION = re.compile(r"optim|(?<![a-z])opt(?![a-z])|sched|scaler|(?<![a-z])rng(?![a-z])", re.I)
"""What is saved beside a model and never alone handed to a script."""


def _numbers(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", name))


class SingleFile:
    """`ckpt_40.pt`, `model.safetensors`, with a `…optim…` file of the same number as part of it."""

    name = "file"
    resume = "the script's own way"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """Every such file; the chooser tells checkpoints from others by what they hold."""
        names = [
            name
            for name in place.files
            if (name.lower().endswith(_ENDINGS) or name in place.saved)
            and name not in place.taken
            and not name.startswith((".", "recipe_state."))
            and (not TEMPORARY.search(name) or name in place.saved)
        ]
        mains = [name for name in names if not _COMPANION.search(name)]
        counts = Counter(_numbers(name) for name in mains)
        companions = [name for name in names if _COMPANION.search(name) and _numbers(name) in counts]
        kinds = {family_of(name) for name in companions}
        for name in names:
            if name in companions:
                continue
            beside = [other for other in companions if _numbers(other) == _numbers(name)]
            if _COMPANION.search(name) or counts[_numbers(name)] != 1 or not kinds:
                yield file_candidate(place, name, self.name, parse_step(name))
                continue
            taken = [name, *beside]
            lacks = sorted(kinds - {family_of(other) for other in beside}) if _numbers(name) else []
            files = {os.path.join(place.path, other): place.files[other] for other in taken}
            yield Candidate(
                path=os.path.join(place.path, name),
                format=self.name,
                files=files,
                step=parse_step(name),
                names=tuple(taken),
                lacks=tuple(lacks),
            )

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: the file, and those beside it that belong to it."""
        if candidate.lacks:
            return Torn(f"lacks the {candidate.lacks[0]} that others have beside them")
        stat = candidate.files[candidate.path]
        verdict = inspector.check_torch(candidate.path, stat)
        if isinstance(verdict, Whole) and len(candidate.files) > 1:
            verdict = check_all(candidate, inspector)
        if not isinstance(verdict, Whole):
            return verdict
        contents = inspector.describe(candidate.path, stat)
        return Whole(contents.step if contents else None)

    def takes(self, place: Place) -> str | None:
        """Nothing that could be known."""
        return None
