"""Which part of what is trained a rank holds, where FSDP2 (torch.distributed.fsdp.fully_shard) shards it.

The mesh of each parameter says which ranks hold the same: those whose coordinates are equal along all of its dimensions
on which any parameter is sharded. Every rank finds the same parts in the same order: by their lowest ranks.

Within a backward pass some modules hold parameters that are gathered: plain tensors, perhaps of another type, that no
optimizer knows. `state_dict()` of a module that holds some itself puts the shards back, which frees what was gathered,
whether the backward pass needs it or not; what else a script calls does not. So they are put back before (put_back()).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

KIND = "DTensor"
MAX_LAYOUTS = 16


class ShardedModules:
    """The modules of this rank that fully_shard() was called with, as far as they are still there."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[Any]] = []

    def add(self, modules: object) -> None:
        """One, or several at once."""
        several = modules if isinstance(modules, list | tuple) else (modules,)
        known = [one for one in self._modules if one() is not None]
        self._modules = known + [weakref.ref(module) for module in several]

    def all(self) -> list[Any]:
        """In the order of the calls."""
        return [module for reference in list(self._modules) if (module := reference()) is not None]

    def parameters(self) -> list[Any]:
        """What they hold at this moment, each once."""
        return list({id(one): one for module in self.all() for one in module.parameters()}.values())

    def put_back(self) -> None:
        """Have all modules hold their shards."""
        for module in self.all():
            if (reshard := getattr(module, "reshard", None)) is not None:
                reshard()


def version_of(parameter: Any) -> int:
    """How often it has been written to; of a DTensor: this rank's part, too."""
    local = getattr(parameter, "_local_tensor", None)
    return int(parameter._version) + (int(local._version) if local is not None else 0)


def find_part(parameters: Sequence[Any], global_rank: int, world_size: int) -> tuple[int, int] | str:
    """Which part of how many a rank holds (from 0); or why that can't be told. parameters: DTensors."""
    meshes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    layouts: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], None] = {}
    for parameter in parameters:
        if any(one.is_partial() for one in parameter.placements):
            return "its parameters are sums that have not been made"
        mesh = parameter.device_mesh
        if id(mesh) not in meshes:  # each module may have one of its own, and all may be alike
            meshes[id(mesh)] = tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist())
        sharded = tuple(one for one, placement in enumerate(parameter.placements) if not placement.is_replicate())
        layouts[(*meshes[id(mesh)], sharded)] = None
    if not layouts or len(layouts) > MAX_LAYOUTS:
        return "its parameters lie in too many ways"
    held: list[list[int]] = [[] for _ in range(world_size)]
    for shape, numbers, sharded in layouts:
        if sorted(numbers) != list(range(world_size)):
            return "its parameters lie on some of the ranks only"
        for position, number in enumerate(numbers):
            held[number] += [_coordinate(position, shape, one) for one in sharded]
    parts: dict[tuple[int, ...], int] = {}
    for coordinates in held:
        parts.setdefault(tuple(coordinates), len(parts))
    return parts[tuple(held[global_rank])], len(parts)


def _coordinate(position: int, shape: tuple[int, ...], dimension: int) -> int:
    """Along one dimension, of what stands there in the flattened mesh."""
    for size in reversed(shape[dimension + 1 :]):
        position //= size
    return position % shape[dimension]
