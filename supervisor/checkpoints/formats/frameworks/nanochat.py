"""nanochat: a model, its description and every rank's optimizer as files of one folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    highest,
    missing_numbers,
    say_ranks,
)
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_MODEL = re.compile(r"model_(\d{6,})\.pt")
_META = re.compile(r"meta_(\d{6,})\.json")
_OPTIMIZER = re.compile(r"optim_(\d{6,})_rank(\d+)\.pt")


class Nanochat:
    """`model_NNNNNN.pt`, `meta_NNNNNN.json`, `optim_NNNNNN_rankR.pt`."""

    name = "nanochat"
    resume = "--resume-from-step=N"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """One for each number, where any of the folder's files tells nanochat from others."""
        if not is_named and not any(_META.fullmatch(name) or _OPTIMIZER.fullmatch(name) for name in place.files):
            return
        by_number: dict[str, list[str]] = {}
        for name in place.files:
            if match := _MODEL.fullmatch(name) or _META.fullmatch(name) or _OPTIMIZER.fullmatch(name):
                by_number.setdefault(match.group(1), []).append(name)
        for number, names in by_number.items():
            files = {os.path.join(place.path, name): place.files[name] for name in names}
            path = os.path.join(place.path, f"model_{number}.pt")
            yield Candidate(path=path, format=self.name, files=files, step=int(number), names=tuple(names))

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: all three kinds of files, the optimizer's for every rank."""
        names = [os.path.basename(path) for path in candidate.files]
        if candidate.path not in candidate.files:
            return Torn(f"lacks {os.path.basename(candidate.path)}")
        if not any(_META.fullmatch(name) for name in names):
            return Torn(f"lacks meta_{candidate.step:06d}.json")
        ranks = [int(match.group(2)) for name in names if (match := _OPTIMIZER.fullmatch(name))]
        if missing := missing_numbers(ranks, world_size):
            return Torn(f"lacks the optimizer of {say_ranks(missing)}")
        verdict = check_all(candidate, inspector)
        return Whole(candidate.step) if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """Inference takes the highest number; training is told."""
        return highest(place, _MODEL, place.files)
