"""fairseq2."""

from __future__ import annotations

import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    find_folders,
    highest,
    missing_numbers,
    relative_names,
    say_ranks,
)
from guardrun.supervisor.checkpoints.reading.folder_contents import Place
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict

_PATTERN = re.compile(r"step_(\d+)")
_PARTS = ("trainer", "model", "optimizer", "data_reader")
_TRAINER = re.compile(r"trainer/rank_(\d+)\.pt")
_READER = re.compile(r"data_reader/dp_(\d+)\.pt")
_SHARD = re.compile(r"(?:model|optimizer)/(.*/)?sdp_(\d+)\.pt")


class Fairseq2:
    """`step_N/`, renamed from `step_N.tmp/` when it is complete."""

    name = "fairseq2"
    resume = "the same output folder: by itself"
    resumes_itself = True

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """The folders `step_N` with a trainer's and a data reader's part."""

        def marks(names: set[str]) -> bool:
            return "trainer" in names and bool({"data_reader", "optimizer", "model"} & names)

        return find_folders(place, self.name, _PATTERN, None if is_named else marks)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: all four parts, with the trainer's for every rank and no gap in the shards."""
        names = relative_names(candidate)
        if not names:
            return Torn("the folder is empty")
        found = {name.partition("/")[0].removesuffix(".pt") for name in names}
        for part in _PARTS:
            if part not in found:
                return Torn(f"lacks {part}")
        ranks = [int(match.group(1)) for name in names if (match := _TRAINER.fullmatch(name))]
        if ranks and (missing := missing_numbers(ranks, world_size)):
            return Torn(f"lacks the trainer's state of {say_ranks(missing)}")
        readers = [int(match.group(1)) for name in names if (match := _READER.fullmatch(name))]
        if missing := missing_numbers(readers, 0):
            return Torn(f"lacks the data reader's state of data-parallel {say_ranks(missing)}")
        shards: dict[str, list[int]] = {}
        for name in names:
            if match := _SHARD.fullmatch(name):
                shards.setdefault(name[: match.start(2)], []).append(int(match.group(2)))
        for prefix, numbers in sorted(shards.items()):
            if missing := missing_numbers(numbers, max(max(every) + 1 for every in shards.values())):
                return Torn(f"lacks {prefix}{missing[0]:02d}.pt")
        return check_all(candidate, inspector)

    def takes(self, place: Place) -> str | None:
        """The highest step."""
        return highest(place, _PATTERN, place.folders)
