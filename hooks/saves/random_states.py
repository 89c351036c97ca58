"""The random states of all ranks after a step, for the one that saves in place of all (hooks/wire/random_page.py)."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

from guardrun.hooks.calls.shared_file import SharedPage
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.random_page import (
    HEAD_WORDS,
    MAGIC,
    MAX_TORCH_BYTES,
    REST,
    SIZE_BYTES,
    SLOT_BYTES,
    SLOTS,
    TWISTER,
    random_name,
    read_page,
)

_NUMPY = "MT19937"
_PYTHON = 3
"""Version of random.getstate()."""


class RandomStates:
    """Written by the thread that trains after each step; read by the thread that saves, of any rank of the node."""

    def __init__(self, rank: Rank) -> None:
        """Raises OSError."""
        self._rank = rank
        self._page = SharedPage(self._path(rank.global_rank), SIZE_BYTES, MAGIC, rank.pid)

    def _path(self, global_rank: int) -> str:
        return os.path.join(self._rank.sockets, random_name(self._rank.attempt, global_rank))

    def write(self, step: int) -> None:
        """Keep this rank's, as it is now, as that after this step (1 or more)."""
        at = 8 * HEAD_WORDS + SLOT_BYTES * (step % SLOTS)
        body = at + REST.size
        bytes_ = self._page.bytes
        bytes_[at : at + 8] = bytes(8)  # whoever reads now finds no number
        state = sys.modules["torch"].get_rng_state().numpy()
        size = min(len(state), MAX_TORCH_BYTES)
        bytes_[body : body + size] = memoryview(state)[:size]
        version, words, left = random.getstate()
        has_numpy = has_left = 0
        numpy_left = 0.0
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            name, key, position, has_left, numpy_left = numpy.random.get_state()
            has_numpy = name == _NUMPY
            if has_numpy:
                place = body + MAX_TORCH_BYTES + TWISTER.size
                bytes_[place : place + TWISTER.size - 4] = memoryview(key).cast("B")
                bytes_[place + TWISTER.size - 4 : place + TWISTER.size] = int(position).to_bytes(4, sys.byteorder)
        TWISTER.pack_into(bytes_, body + MAX_TORCH_BYTES, *words)
        rest = (size, has_numpy, left is not None, left or 0.0, has_left, numpy_left)
        REST.pack_into(bytes_, at, 0, *rest)
        if size == len(state) and version == _PYTHON:
            bytes_[at : at + 8] = step.to_bytes(8, sys.byteorder)  # last: who is killed before has left none

    def read(self, global_rank: int, step: int) -> dict[str, Any] | None:
        """That rank's after this step, as transformers' Trainer keeps it; None where it isn't known."""
        at = 8 * HEAD_WORDS + SLOT_BYTES * (step % SLOTS)
        body = at + REST.size
        content = read_page(self._path(global_rank), at, SLOT_BYTES)
        if not content or int.from_bytes(content[:8], sys.byteorder) != MAGIC:
            return None
        said, size, has_numpy, is_left, left, has_left, numpy_left = REST.unpack_from(content, at)
        if said != step or not 0 < size <= MAX_TORCH_BYTES:
            return None
        torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
        if not has_numpy or numpy is None:
            return None
        words = TWISTER.unpack_from(content, body + MAX_TORCH_BYTES)
        second = TWISTER.unpack_from(content, body + MAX_TORCH_BYTES + TWISTER.size)
        return {
            "python": (_PYTHON, words, left if is_left else None),
            "numpy": (_NUMPY, numpy.array(second[:-1], dtype=numpy.uint32), second[-1], has_left, numpy_left),
            "cpu": torch.frombuffer(bytearray(content[body : body + size]), dtype=torch.uint8),
        }
