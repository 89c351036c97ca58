"""DeepSpeed's `save_checkpoint(dir, tag)`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from guardrun.supervisor.checkpoints.formats.format import (
    Candidate,
    check_some,
    find_folders,
    missing_numbers,
    relative_names,
    say_ranks,
)
from guardrun.supervisor.checkpoints.reading.folder_contents import Place, read_start
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole

_PATTERN = re.compile(r"[^.].*")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_MODEL_SHARD = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")


def _is_state(name: str) -> bool:
    return name.endswith(("_model_states.pt", "_optim_states.pt"))


def check_states(candidate: Candidate, folder: str, inspector: Inspector, world_size: int) -> Verdict:
    """Check a folder of model states and optimizer shards (folder: relative to the candidate, `` for itself).

    A ZeRO run writes an optimizer shard a rank: data-parallel times model-parallel ranks make the world. Stage 3 does
    the same with the model.
    """
    prefix = f"{folder}/" if folder else ""
    names = [name[len(prefix) :] for name in relative_names(candidate) if name.startswith(prefix)]
    states = [name for name in names if "/" not in name and _is_state(name)]
    if not any(name.endswith("_model_states.pt") for name in states):
        return Torn(f"lacks {prefix}*_model_states.pt" if names else f"{folder or 'the folder'} is empty")
    for pattern, what in ((_OPTIMIZER, "optimizer"), (_MODEL_SHARD, "model")):
        shards = [match for name in states if (match := pattern.fullmatch(name))]
        by_model: dict[int, list[int]] = {}
        for match in shards:
            by_model.setdefault(int(match.group(2)), []).append(int(match.group(1)))
        for rank, found in by_model.items():
            missing = missing_numbers(found, -(-world_size // len(by_model)))
            if missing:
                of = f" of model-parallel rank {rank}" if len(by_model) > 1 else ""
                return Torn(f"lacks the {what} shard{'s' * (len(missing) > 1)} of {say_ranks(missing)}{of}")
    missing = missing_numbers((int(match.group(1)) for name in states if (match := _MODEL.fullmatch(name))), 0)
    if missing:
        return Torn(f"lacks the model states of model-parallel {say_ranks(missing)}")
    return check_some(candidate, inspector, [prefix + name for name in states])


class DeepSpeed:
    """`global_stepN/` (or any other tag), and the text file `latest`."""

    name = "deepspeed"
    resume = "engine.load_checkpoint(DIR, tag=TAG)"
    resumes_itself = True

    def find(self, place: Place, world_size: int, *, is_named: bool) -> Iterable[Candidate]:
        """Folders with DeepSpeed's states, or whose siblings have them."""

        def marks(names: set[str]) -> bool:
            return any(_is_state(name) for name in names)

        return find_folders(place, self.name, _PATTERN, marks)

    def check(self, candidate: Candidate, inspector: Inspector, world_size: int) -> Verdict:
        """Whole: every model state, every rank's optimizer shard."""
        verdict = check_states(candidate, "", inspector, world_size)
        return Whole() if isinstance(verdict, Whole) else verdict

    def takes(self, place: Place) -> str | None:
        """`load_checkpoint` without a tag takes what `latest` says."""
        if "latest" not in place.files:
            return None
        return read_start(os.path.join(place.path, "latest")) or None
