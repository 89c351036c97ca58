"""Checkpoints of no framework that is known: a file, a file of each rank, a numbered folder, a folder of DCP's."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_all,
    file_candidate,
    find_folders,
    missing_numbers,
    relative_names,
    say_ranks,
)
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import STEP_FOLDER, TEMPORARY, Place, family_of, parse_step
from guardrun.supervisor.checkpoints.reading.inspector import TORCH_ENDINGS, Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

# Single file --------------------------------------------------------------------------------------------------------
# Any file that torch.save or safetensors wrote.


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


# Sharded files ------------------------------------------------------------------------------------------------------
# Files of which every rank writes its own: `ckpt_40_rank0.pt`, `ckpt_40_rank1.pt`.


_COUNT = r"[_-]?of[_-]?(\d+)(?!\d)"
_RANK = re.compile(rf"(?<![a-z])(?:rank[_-]?(\d+)(?!\d)(?:{_COUNT})?|shard[_-]?(\d+){_COUNT})", re.I)
_MAX_DIGITS = 9


def split_rank(name: str) -> tuple[str, int] | None:
    """(`ckpt_40_rank{}.pt`, 1) of `ckpt_40_rank1.pt`; None where no rank is named.

    `ckpt_40_rank1_of_2.pt` and `ckpt_40_shard1_of_2.pt` as well: their patterns have the count in them.
    """
    match = _RANK.search(name)
    if match is None:
        return None
    at = 1 if match.group(1) is not None else 3
    return f"{name[: match.start(at)]}{{}}{name[match.end(at) :]}", int(match.group(at))


def said_count(name: str) -> int:
    """2 of `ckpt_40_shard1_of_2.pt`: how many files there are by its name; 0: it says nothing of that."""
    match = _RANK.search(name)
    said = (match.group(2) or match.group(4) or "") if match else ""
    return int(said) if len(said) <= _MAX_DIGITS and said else 0


def why_no_set(paths: Mapping[int, str], world_size: int) -> str:
    """Why files are not by their names all the parts of one checkpoint; empty: they are. paths: by who wrote them.

    Their names are to differ in their numbers alone, and these are to be 0, 1, … without a gap. If they are fewer than
    there are ranks, it has to be sure that no more belong to them, as where every rank writes a file of its own number:
    the names say how many there are, or some number is not the rank of who has written it.
    """
    splits = {rank: split_rank(os.path.basename(path)) for rank, path in paths.items()}
    numbers = sorted(split[1] for split in splits.values() if split is not None)
    places = {(os.path.dirname(paths[rank]), split[0]) for rank, split in splits.items() if split is not None}
    if len(numbers) < len(paths) or len(places) != 1:
        return "their names are to differ in the part's number alone: step_12_shard0_of_2.pt, step_12_shard1_of_2.pt"
    if numbers != list(range(len(paths))):
        found = ", ".join(map(str, numbers[:8]))
        return f"their names are to number the parts from 0 to {len(paths) - 1}, and have {found}"
    said = said_count(os.path.basename(next(iter(paths.values()))))
    if said and said != len(paths):
        return f"by their names there are {said} of them"
    if not said and len(paths) < world_size and all(split and split[1] == rank for rank, split in splits.items()):
        return f"numbered as their ranks are, they may be lacking others: their names are to say …_of_{len(paths)}"
    return ""


def _is_every_ranks(family: list[dict[int, str]], world_size: int) -> bool:
    """Say whether every rank writes files of this family.

    Where only rank 0's are seen: a single checkpoint may be one that was cut short, two will not both be.
    """
    return any(rank for group in family for rank in group) or (world_size > 1 and len(family) == 1)


class Sharded:
    """Whole when every rank's file is, or as many as their names say; the script is given rank 0's."""

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
            is_known = is_named or said_count(pattern.format(0))
            if not is_known and not _is_every_ranks(families[family_of(pattern)], world_size):
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
        count = said_count(os.path.basename(candidate.path)) or world_size
        if missing := missing_numbers((split[1] for split in splits if split), count):
            return Torn(f"lacks the file of {say_ranks(missing)}")
        verdict = check_all(candidate, inspector)
        if not isinstance(verdict, Whole) or candidate.step is not None:
            return verdict
        # Where each save is written over the one before, it may have been cut short after some of them.
        described = [inspector.describe(path, stat) for path, stat in candidate.files.items()]
        steps = sorted({contents.step for contents in described if contents and contents.step is not None})
        if len(steps) > 1:
            return Torn(f"its files are of different steps ({steps[0]} and {steps[-1]})")
        return Whole(steps[0] if steps else None)

    def takes(self, place: Place) -> str | None:
        """Nothing that could be known."""
        return None


# Numbered folder ----------------------------------------------------------------------------------------------------
# A numbered folder of files of torch's: accelerate's `save_state`, and what people write themselves.


_PATTERN = re.compile(r"[^.].*")
_FOLDER_ENDINGS = (*TORCH_ENDINGS, ".safetensors", ".distcp")
_RANDOM = re.compile(r"(.*random_states?_|.*rng_states?_)(\d+)(\.\w+)")


def _kinds(candidate: Candidate) -> set[str]:
    return {family_of(name) for name in relative_names(candidate) if name.lower().endswith(_FOLDER_ENDINGS)}


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
            elif split and name.lower().endswith(_FOLDER_ENDINGS):
                groups.setdefault(split[0], []).append(split[1])
        for pattern, ranks in sorted(groups.items()):
            is_per_rank = len(ranks) > 1 or ranks != [0]
            count = said_count(pattern.format(0)) or (world_size if is_per_rank else 1)
            if missing := missing_numbers(ranks, count):
                return Torn(f"lacks {pattern.format('{rank}')} of {say_ranks(missing)}")
        verdict = check_all(candidate, inspector)
        return Whole() if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """Nothing that could be known."""
        return None


# DCP folder ---------------------------------------------------------------------------------------------------------
# Any folder that torch.distributed.checkpoint wrote.


class DcpFolder:
    """`.metadata` and `__R_S.distcp`, under any name, with whatever else the script put beside them."""

    name = "dcp"
    resume = "torch.distributed.checkpoint.load(…, checkpoint_id=PATH)"
    resumes_itself = False

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """Folders with such files, or named like siblings that have them."""
        for candidate in find_folders(place, self.name, _PATTERN, _is_dcp):
            name = candidate.names[0]
            if not TEMPORARY.search(name) and (_is_dcp(place.child(name).names) or STEP_FOLDER.search(name)):
                yield candidate

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: everything that `.metadata` names, and every other file that torch or JSON wrote."""
        if not candidate.files:
            return Torn("the folder is empty")
        verdict = inspector.check_dcp(candidate.path, candidate.files)
        return check_all(candidate, inspector) if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """Nothing: no script of its own."""
        return None


def _is_dcp(names: set[str]) -> bool:
    return METADATA in names or any(name.endswith(".distcp") for name in names)
