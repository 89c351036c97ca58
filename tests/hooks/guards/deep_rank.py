"""A rank in this process whose modules are looked into (`[guards] detect = "deep"`)."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from guardrun.hooks.guards.nonfinite_origin import Origin
from guardrun.hooks.wire.board import Field


class DeepRank:
    """What it says, and which of its parts have failed. Its steps are counted on from 1000."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.sent: list[dict[str, Any]] = []
        self.failed: list[object] = []
        self.rank: Any = SimpleNamespace(
            words=[0] * 2 * len(Field),
            settings={"detect": "deep"},
            owner_ident=get_ident(),
            send=lambda kind, **fields: self.sent.append({"kind": kind, **fields}),
            fail=lambda hook, error: self.failed.append((hook, error)),
        )
        self.rank.step_now = lambda: self.rank.words[Field.STEP] + 1000
        self.rank.origin = Origin(self.rank, torch)

    def steps(self, count: int) -> Iterator[int]:
        """The numbers of the steps that are to be taken; each counts once the next one is asked for."""
        for _ in range(count):
            step = self.rank.words[Field.STEP] + 1
            yield step
            self.rank.words[Field.STEP] = step
        assert self.failed == []


@contextmanager
def looked_into(one: DeepRank, seed: int) -> Iterator[None]:
    """Have it hear of every module's calls; one thread and a seed, so that nets train alike each time."""
    torch = one.torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    hook = torch.nn.modules.module.register_module_forward_hook(one.rank.origin.on_call)
    try:
        yield
    finally:
        hook.remove()
        torch.set_num_threads(threads)
