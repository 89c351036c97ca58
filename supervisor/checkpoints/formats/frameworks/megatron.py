"""Megatron-LM and what is built on it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    check_some,
    find_folders,
    missing_numbers,
    relative_names,
    say_ranks,
)
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import Place, read_start
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_PATTERN = re.compile(r"iter_(\d{7,})")
_MODEL_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_\d+)?/[^/]+\.pt")
TRACKER = "latest_checkpointed_iteration.txt"


class Megatron:
    """`iter_NNNNNNN/`, distributed (`metadata.json`) or a folder for each model-parallel rank."""

    name = "megatron"
    resume = "--load DIR [--ckpt-step N]"
    resumes_itself = True

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The folders `iter_NNNNNNN`."""
        return find_folders(place, self.name, _PATTERN, None)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: what `.metadata` names and `metadata.json`, or every model-parallel rank's files."""
        names = relative_names(candidate)
        if not names:
            return Torn("the folder is empty")
        ranks = [match for name in names if (match := _MODEL_RANK.match(name))]
        if ranks:
            return self._check_ranks(candidate, inspector, ranks)
        verdict = check_some(candidate, inspector, ["metadata.json"])
        if isinstance(verdict, Whole) and (METADATA in names or any(name.endswith(".distcp") for name in names)):
            verdict = inspector.check_dcp(candidate.path, candidate.files)
            if isinstance(verdict, Whole):
                verdict = check_some(candidate, inspector, ["common.pt"])
        return check_all(candidate, inspector) if isinstance(verdict, Whole) else verdict

    def _check_ranks(self, candidate: Candidate, inspector: Inspector, ranks: list[re.Match[str]]) -> Verdict:
        verdict = check_all(candidate, inspector)
        if not isinstance(verdict, Whole):
            return verdict
        tensor, pipeline = inspector.parallel_sizes(os.path.join(candidate.path, ranks[0].group(0))) or (0, 0)
        missing = missing_numbers((int(match.group(1)) for match in ranks), tensor)
        if missing:
            return Torn(f"lacks tensor-parallel {say_ranks(missing)}")
        stages = [int(match.group(2)) for match in ranks if match.group(2)]
        if (missing := missing_numbers(stages, pipeline if pipeline > 1 else 0)) and (stages or pipeline > 1):
            return Torn(f"lacks pipeline-parallel {say_ranks(missing)}")
        kinds: dict[str, set[str]] = {}
        for match in ranks:
            folder, _, name = match.group(0).partition("/")
            kinds.setdefault(name, set()).add(folder)
        everywhere = set().union(*kinds.values())
        for name, folders in sorted(kinds.items()):
            if everywhere - folders:
                return Torn(f"lacks {min(everywhere - folders)}/{name}")
        return Whole(candidate.step)

    def takes(self, place: Place) -> str | None:
        """What the tracker file says; the script ends where that is not there."""
        if TRACKER not in place.files:
            return None
        text = read_start(os.path.join(place.path, TRACKER))
        return f"iter_{int(text):07d}" if text and text.isdecimal() else None
