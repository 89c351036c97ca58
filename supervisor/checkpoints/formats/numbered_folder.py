"""A numbered folder of files of torch's: accelerate's `save_state`, and what people write themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    find_folders,
    missing_numbers,
    relative_names,
    say_ranks,
)
from guardrun.supervisor.checkpoints.formats.sharded_files import split_rank
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import TORCH_ENDINGS, Inspector
from guardrun.supervisor.checkpoints.reading.step_numbers import STEP_FOLDER, TEMPORARY, family_of
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_PATTERN = re.compile(r"[^.].*")
_ENDINGS = (*TORCH_ENDINGS, ".safetensors", ".distcp")
_RANDOM = re.compile(r"(.*random_states?_|.*rng_states?_)(\d+)(\.\w+)")


def _kinds(candidate: Candidate) -> set[str]:
    return {family_of(name) for name in relative_names(candidate) if name.lower().endswith(_ENDINGS)}


class Folder:
    """Whole when every file in it is, no rank's is missing, and it has the same kinds of files as its predecessor."""

    name = "folder"
    resume = "the script's own way; accelerate: load_state(PATH)"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """Folders named like a step or an epoch that hold torch's files, or nothing at all."""
        families: dict[str, list[Candidate]] = {}
        for candidate in find_folders(place, self.name, _PATTERN, None, only=STEP_FOLDER):
            name = candidate.names[0]
            if not TEMPORARY.search(name):
                families.setdefault(family_of(name), []).append(candidate)
        for family in families.values():
            if not any(_kinds(candidate) for candidate in family):
                # Empty ones only: a save that was cut short at its start, where no sibling tells otherwise.
                yield from (candidate for candidate in family if not candidate.files)
                continue
            family.sort(key=lambda candidate: candidate.written_ns)
            before: set[str] = set()
            for candidate in family:
                kinds = _kinds(candidate)
                yield replace(candidate, lacks=tuple(sorted(before - kinds)))
                before = kinds or before

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: as the class says."""
        names = relative_names(candidate)
        if candidate.trouble or not names:
            return Torn(candidate.trouble or "the folder is empty")
        if candidate.lacks:
            return Torn(f"lacks {candidate.lacks[0]}, which the checkpoint before it has")
        groups: dict[str, list[int]] = {}
        for name in names:
            split = split_rank(name)
            if match := _RANDOM.fullmatch(name):
                groups.setdefault(f"{match.group(1)}{{}}{match.group(3)}", []).append(int(match.group(2)))
            elif split and name.lower().endswith(_ENDINGS):
                groups.setdefault(split[0], []).append(split[1])
        for pattern, ranks in sorted(groups.items()):
            is_per_rank = len(ranks) > 1 or ranks != [0]
            if missing := missing_numbers(ranks, world_size if is_per_rank else 1):
                return Torn(f"lacks {pattern.format('{rank}')} of {say_ranks(missing)}")
        verdict = check_all(candidate, inspector)
        return Whole() if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """Nothing that could be known."""
        return None
