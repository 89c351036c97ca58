"""Model weights as Hugging Face lays them out: one file, or an index and its shards."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from guardrun.supervisor.checkpoints.formats.format import Candidate, check_some
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole, within

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
