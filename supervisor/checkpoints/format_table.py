"""The formats, in the order in which they are tried: the first that knows an entry has it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from guardrun.supervisor.checkpoints.formats.format import Candidate, Format
from guardrun.supervisor.checkpoints.formats.frameworks.composer import Composer
from guardrun.supervisor.checkpoints.formats.frameworks.deepspeed import DeepSpeed
from guardrun.supervisor.checkpoints.formats.frameworks.fairseq2 import Fairseq2
from guardrun.supervisor.checkpoints.formats.frameworks.hugging_face import HuggingFace
from guardrun.supervisor.checkpoints.formats.frameworks.kempnerforge import KempnerForge
from guardrun.supervisor.checkpoints.formats.frameworks.lightning import Lightning
from guardrun.supervisor.checkpoints.formats.frameworks.litgpt import Litgpt
from guardrun.supervisor.checkpoints.formats.frameworks.megatron import Megatron
from guardrun.supervisor.checkpoints.formats.frameworks.nanochat import Nanochat
from guardrun.supervisor.checkpoints.formats.frameworks.nanogpt import NanoGpt
from guardrun.supervisor.checkpoints.formats.frameworks.open_clip import OpenClip
from guardrun.supervisor.checkpoints.formats.frameworks.torchtitan import Torchtitan
from guardrun.supervisor.checkpoints.formats.frameworks.torchtune import Torchtune
from guardrun.supervisor.checkpoints.formats.plain import DcpFolder, Folder, Sharded, SingleFile
from guardrun.supervisor.checkpoints.reading.folder_contents import Place

AUTO = "auto"
FORMATS: tuple[Format, ...] = (
    HuggingFace(),
    Megatron(),
    DeepSpeed(),
    KempnerForge(),
    Fairseq2(),
    Torchtune(),
    Litgpt(),
    Torchtitan(),
    Composer(),
    Nanochat(),
    Lightning(),
    OpenClip(),
    DcpFolder(),
    Sharded(),
    Folder(),
    NanoGpt(),
    SingleFile(),
)
FORMAT_NAMES = (AUTO, *(known.name for known in FORMATS))


class UnknownFormat(ValueError):
    """`[checkpoint] format` names none that there is."""


def get_formats(name: str) -> tuple[Format, ...]:
    """The formats to try for a name; `auto` (or nothing): all. Raises UnknownFormat, which names the nearest."""
    if name in ("", AUTO):
        return FORMATS
    chosen = tuple(known for known in FORMATS if known.name == name)
    if not chosen:
        nearest = difflib.get_close_matches(name, FORMAT_NAMES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
        raise UnknownFormat(f"unknown checkpoint format {name!r}: {hint}known are {', '.join(FORMAT_NAMES)}")
    return chosen


def find_candidates(place: Place, formats: tuple[Format, ...], world_size: int) -> Iterator[tuple[Candidate, Format]]:
    """List what may be checkpoints directly in place, each entry for the first format that knows it."""
    is_named = len(formats) == 1
    taken = place.taken
    for known in formats:
        for candidate in known.find(place, world_size, is_named=is_named):
            if not taken.intersection(candidate.names):
                taken.update(candidate.names)
                yield candidate, known
