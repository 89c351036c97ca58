"""MosaicML Composer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    file_candidate,
    find_folders,
    missing_numbers,
    say_ranks,
)
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_FILE = re.compile(r"ep\d+-ba(\d+)-rank(\d+)\.pt")
_FOLDER = re.compile(r"ep\d+-ba(\d+)")
_LATEST = re.compile(r"latest-rank\d+(?:\.pt)?")


class Composer:
    """`epE-baN-rankR.pt`, or a folder `epE-baN` of torch.distributed.checkpoint's."""

    name = "composer"
    resume = "Trainer(autoresume=True), or load_path=PATH"
    resumes_itself = True

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """One for each batch number; ranks' files belong together."""
        groups: dict[str, list[str]] = {}
        for name in place.files:
            if match := _FILE.fullmatch(name):
                groups.setdefault(name[: match.start(2)], []).append(name)
        for prefix, names in groups.items():
            first = f"{prefix}0.pt"
            match = _FILE.fullmatch(first)
            step = int(match.group(1)) if match else None
            if names == [first]:
                yield file_candidate(place, first, self.name, step)
                continue
            files = {os.path.join(place.path, name): place.files[name] for name in names}
            path = os.path.join(place.path, first)
            yield Candidate(path=path, format=self.name, files=files, step=step, names=tuple(names))
        yield from find_folders(place, self.name, _FOLDER, None)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: the archive of rank 0, and of all the others where any of them wrote one."""
        if not candidate.files:
            return Torn("the folder is empty")
        matches = [_FILE.fullmatch(os.path.basename(path)) for path in candidate.files]
        ranks = [int(match.group(2)) for match in matches if match]
        if not ranks:
            return inspector.check_dcp(candidate.path, candidate.files)
        if missing := missing_numbers(ranks, world_size if len(ranks) > 1 else 1):
            return Torn(f"lacks the file of {say_ranks(missing)}")
        verdict = check_all(candidate, inspector)
        return Whole(candidate.step) if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """What the link `latest-rank0.pt` points to."""
        for name, target in sorted(place.links.items()):
            if _LATEST.fullmatch(name):
                return target
        return None
