"""What a format is asked, and what formats share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from guardrun.supervisor.checkpoints.reading.folder_contents import FileStat, Place, family_of, parse_step
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole, within

MAX_MISSING = 1000
MAX_FOLDERS = 5000
"""Of one folder, looked into."""


@dataclass(frozen=True)
class Candidate:
    """What may be a checkpoint: a file, a folder, or several files that belong together."""

    path: str
    """What the script would be given."""
    format: str
    files: Mapping[str, FileStat]
    """All of its files, per absolute path."""
    step: int | None
    """From the name."""
    names: tuple[str, ...]
    """The entries of the searched folder that it takes up."""
    lacks: tuple[str, ...] = ()
    """Files that belong to it by the names of its siblings, and aren't there."""
    folder_mtime_ns: int = 0
    trouble: str = ""
    """Why it cannot be read at all."""
    written_ns: int = field(init=False)
    """When the last of its files was written."""
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        stats = self.files.values()
        object.__setattr__(self, "written_ns", max((stat.mtime_ns for stat in stats), default=self.folder_mtime_ns))
        object.__setattr__(self, "size_bytes", sum(stat.size for stat in stats))

    @property
    def is_one_file(self) -> bool:
        """Say whether a file, with perhaps companions, rather than a folder."""
        return self.path in self.files


class Format(Protocol):
    """A codebase's way of laying out checkpoints."""

    @property
    def name(self) -> str:
        """As `[checkpoint] format` names it."""

    @property
    def resume(self) -> str:
        """How a script of this kind is told to resume: for documentation and messages."""

    @property
    def resumes_itself(self) -> bool:
        """Say whether such scripts look for their newest checkpoint by themselves."""

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """List what may be checkpoints directly in place; is_named: the user said that they are of this format."""

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Say whether one is whole."""

    def takes(self, place: Place) -> str | None:
        """Name (in place) what a script that resumes by itself would take; None where it would take nothing."""


def folder_candidate(place: Place, name: str, format_name: str, step: int | None) -> Candidate:
    """Make a candidate of a whole folder."""
    child = place.child(name)
    return Candidate(
        path=child.path,
        format=format_name,
        files=child.tree(),
        step=step,
        names=(name,),
        folder_mtime_ns=child.mtime_ns,
        trouble=child.trouble,
    )


def file_candidate(place: Place, name: str, format_name: str, step: int | None) -> Candidate:
    """Make a candidate of a single file."""
    path = os.path.join(place.path, name)
    return Candidate(path=path, format=format_name, files={path: place.files[name]}, step=step, names=(name,))


def find_folders(
    place: Place,
    format_name: str,
    pattern: re.Pattern[str],
    marks: Callable[[set[str]], bool] | None,
    *,
    only: re.Pattern[str] | None = None,
) -> Iterator[Candidate]:
    """List the folders whose whole name matches pattern (group 1, where there is one: the step).

    marks is asked with the names in the folder and in its siblings of the same family, so that an empty or torn folder
    is taken for what its siblings are; None: any. only is searched for in the name.
    """
    families: dict[str, list[tuple[str, re.Match[str]]]] = {}
    for name in place.folders[:MAX_FOLDERS]:
        if name in place.taken or (only is not None and not only.search(name)):
            continue
        if match := pattern.fullmatch(name):
            families.setdefault(family_of(name), []).append((name, match))
    for members in families.values():
        names = set().union(*(place.child(name).names for name, _ in members))
        if marks is not None and not marks(names):
            continue
        for name, match in members:
            step = int(match.group(1)) if pattern.groups and match.group(1) else parse_step(name)
            yield folder_candidate(place, name, format_name, step)


def check_all(candidate: Candidate, inspector: Inspector) -> Verdict:
    """Check every file of a candidate by what it holds; the first that is torn is named, else one not to be judged."""
    worst: Verdict = Whole()
    for path in sorted(candidate.files):
        verdict = inspector.check(path, candidate.files[path])
        if isinstance(verdict, Whole):
            continue
        named = verdict if path == candidate.path else within(os.path.relpath(path, _base(candidate)), verdict)
        if isinstance(named, Torn):
            return named
        worst = named if isinstance(worst, Whole) else worst
    return worst


def _base(candidate: Candidate) -> str:
    return os.path.dirname(candidate.path) if candidate.is_one_file else candidate.path


def check_some(candidate: Candidate, inspector: Inspector, names: Iterable[str]) -> Verdict:
    """Check that files (relative to a candidate that is a folder) are there and whole."""
    worst: Verdict = Whole()
    for name in names:
        path = os.path.join(candidate.path, name)
        stat = candidate.files.get(path)
        if stat is None:
            return Torn(f"lacks {name}")
        verdict = inspector.check(path, stat)
        if isinstance(verdict, Torn):
            return within(name, verdict)
        if not isinstance(verdict, Whole) and isinstance(worst, Whole):
            worst = within(name, verdict)
    return worst


def relative_names(candidate: Candidate) -> list[str]:
    """Names of all files of a candidate that is a folder, relative to it."""
    start = len(candidate.path) + 1
    return sorted(path[start:] for path in candidate.files)


def missing_numbers(found: Iterable[int], expected: int) -> list[int]:
    """Which of 0 … expected-1 (or of 0 … the highest found, where that is more) are missing; the first MAX_MISSING.

    A single file's name can claim 10^200 ranks.
    """
    numbers = set(found)
    wanted = range(max(expected, max(numbers, default=-1) + 1))
    return list(islice((number for number in wanted if number not in numbers), MAX_MISSING))


def say_ranks(ranks: list[int]) -> str:
    """`rank 1`, `ranks 1, 2`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{', …' if len(ranks) > 8 else ''}"


def highest(place: Place, pattern: re.Pattern[str], names: Iterable[str]) -> str | None:
    """The name with the highest number in group 1."""
    found = [(int(match.group(1)), name) for name in names if (match := pattern.fullmatch(name))]
    return max(found)[1] if found else None


# Model weights ------------------------------------------------------------------------------------------------------
# Model weights as Hugging Face lays them out: one file, or an index and its shards.


SINGLE = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "pytorch_model_fsdp.bin",
)
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(\.(?:safetensors|bin|pt))")
WEIGHTS = re.compile(
    r"(?:(?:ft-|hf_)?(?:model|pytorch_model|adapter_model|adapter|meta_model)(?:[-_]\d+)*(?:-of-\d+)?"
    r"\.(?:safetensors|bin|pt))"
)


def check_weights(candidate: Candidate, inspector: Inspector) -> Verdict:
    """Say whether the weights in a folder are all there."""
    names = {os.path.basename(path): path for path in candidate.files if os.path.dirname(path) == candidate.path}
    for name in INDEXES:
        if name in names:
            return _check_index(candidate, inspector, name)
    single = [name for name in SINGLE if name in names]
    if single:
        return check_some(candidate, inspector, single)
    return check_shards(candidate, inspector, names)


def _check_index(candidate: Candidate, inspector: Inspector, name: str) -> Verdict:
    shards, verdict = inspector.shards(os.path.join(candidate.path, name))
    if not isinstance(verdict, Whole):
        return within(name, verdict)
    return check_some(candidate, inspector, shards) if shards is not None else Torn(f"{name}: names no shards")


def check_shards(candidate: Candidate, inspector: Inspector, names: Mapping[str, str]) -> Verdict:
    """Check `…-00001-of-00003…` files by the number that they say, and any other file of weights."""
    wanted: set[str] = set()
    for name in names:
        if match := _SHARD.fullmatch(name):
            stem, number, count, ending = match.groups()
            first = 0 if f"{stem}-{'0' * len(number)}-of-{count}{ending}" in names else 1
            last = int(count) + first
            wanted |= {f"{stem}-{at:0{len(number)}d}-of-{count}{ending}" for at in range(first, min(last, 10_000))}
        elif WEIGHTS.fullmatch(name):
            wanted.add(name)
    if not wanted:
        return Torn("lacks the model's weights")
    return check_some(candidate, inspector, sorted(wanted))
