"""Files of which every rank writes its own: `ckpt_40_rank0.pt`, `ckpt_40_rank1.pt`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import Candidate, check_all, missing_numbers, say_ranks
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import TORCH_ENDINGS, Inspector
from guardrun.supervisor.checkpoints.reading.step_numbers import TEMPORARY, family_of, parse_step
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_RANK = re.compile(r"(?<![a-z])rank[_-]?(\d+)(?!\d)", re.I)
_ENDINGS = (*TORCH_ENDINGS, ".safetensors")


def split_rank(name: str) -> tuple[str, int] | None:
    """(`ckpt_40_rank{}.pt`, 1) of `ckpt_40_rank1.pt`; None where no rank is named."""
    match = _RANK.search(name)
    return (f"{name[: match.start(1)]}{{}}{name[match.end(1) :]}", int(match.group(1))) if match else None


def _is_every_ranks(family: list[dict[int, str]], world_size: int) -> bool:
    """Say whether every rank writes files of this family.

    Where only rank 0's are seen: a single checkpoint may be one that was cut short, two will not both be.
    """
    return any(rank for group in family for rank in group) or (world_size > 1 and len(family) == 1)


class Sharded:
    """Whole when every rank's file is; the script is given rank 0's."""

    name = "sharded"
    resume = "the script's own way; {path} is rank 0's file"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """One for each name that differs in the rank only."""
        groups: dict[str, dict[int, str]] = {}
        for name in place.files:
            split = split_rank(name)
            if split and (name.lower().endswith(_ENDINGS) or name in place.saved) and not TEMPORARY.search(name):
                groups.setdefault(split[0], {})[split[1]] = name
        families: dict[str, list[dict[int, str]]] = {}
        for pattern, group in groups.items():
            families.setdefault(family_of(pattern), []).append(group)
        for pattern, group in groups.items():
            if not is_named and not _is_every_ranks(families[family_of(pattern)], world_size):
                continue
            first = group.get(0, pattern.format(0))
            files = {os.path.join(place.path, name): place.files[name] for name in group.values()}
            path = os.path.join(place.path, first)
            yield Candidate(
                path=path, format=self.name, files=files, step=parse_step(first), names=tuple(group.values())
            )

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: a file for every rank, each whole."""
        splits = [split_rank(os.path.basename(path)) for path in candidate.files]
        if missing := missing_numbers((split[1] for split in splits if split), world_size):
            return Torn(f"lacks the file of {say_ranks(missing)}")
        verdict = check_all(candidate, inspector)
        if not isinstance(verdict, Whole):
            return verdict
        contents = inspector.describe(candidate.path, candidate.files[candidate.path])
        return Whole(contents.step if contents and candidate.step is None else None)

    def takes(self, place: Place) -> str | None:
        """Nothing that could be known."""
        return None
