"""Which tensors of a rank others are to have as well: those of a DDP model, and of a replicated mesh dimension.

DistributedDataParallel sends rank 0's parameters to all, and gives all the same gradients: after the optimizer's step
they are equal, bit by bit, and so are the optimizer's moments. Buffers are left out: forward passes change them, each
rank by its own data. Of distributed tensors only the mesh dimensions count on which all of an optimizer's parameters
are replicated (hybrid sharding): where some are sharded, as in tensor parallelism, others need not be equal in the last
bit.

Nothing here keeps a model, an optimizer or a tensor alive.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from guardrun.hooks.checksums.tensor_sums import is_readable

MAX_OPTIMIZERS = 8
"""Of one set. More are one a parameter, which step while others' gradients are still on their way."""
MAX_CHARS = 200

Named = list[tuple[str, "weakref.ref[Any]"]]


def local(tensor: Any) -> Any:
    """This rank's part of a distributed tensor; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def make_ident(*parts: object) -> int:
    """62 bits, the same on all ranks."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 2


class ReplicaSet:
    """Parameters that several ranks hold alike, and the optimizers that train them."""

    def __init__(self, label: str, members: list[int], ordinal: int, global_rank: int) -> None:
        """members: global ranks. ordinal: of sets with these members, in the order in which they were made."""
        self.label = label
        self.replicas = len(members)
        self.says_names = global_rank == min(members)
        self.ident = make_ident(label, sorted(members), ordinal)
        self.optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}
        """By id(), with a number of its own for each: ids are used again, and not by all ranks at the same time."""
        self._adopted = 0
        self._named: Named = []
        self._first = self._last = self._closer = 0
        """The optimizer that steps first, the one that has stepped last, and the one that ends a step; 0: unknown."""
        self._since: set[int] = set()
        """Those that have stepped since the first one last did, and that one."""
        self.count = 1
        """Steps so far: the first one shows whose ends it. Made of steps alone, so that all ranks count alike."""

    def find(self) -> Iterable[tuple[str, Any]] | None:
        """Its parameters, named; None where it is gone for good."""
        raise NotImplementedError

    def is_left_alone(self) -> bool:
        """Whether its replicas need not take the same steps."""
        return len(self.optimizers) > MAX_OPTIMIZERS

    def parameters(self) -> list[tuple[str, Any]] | None:
        """As long as all are alive they are looked for only once."""
        held = [(name, reference()) for name, reference in self._named]
        if held and all(parameter is not None for _, parameter in held):
            return held
        found = self.find()
        if found is None:
            return None
        held = list(found)
        self._named = [(name, weakref.ref(parameter)) for name, parameter in held]
        return held

    def adopt(self, optimizer: Any, parameters: set[int]) -> bool:
        """Take an optimizer in, if one of its parameters (by id()) is of this set."""
        mine = self.parameters() or ()
        if not any(id(parameter) in parameters for _, parameter in mine):
            return False
        key = id(optimizer)
        known = self.optimizers.get(key)
        if known is None or known[0]() is not optimizer:
            self._adopted += 1
            self.optimizers[key] = weakref.ref(optimizer, lambda _: self.optimizers.pop(key, None)), self._adopted
        return True

    def is_alone(self, key: int) -> bool:
        """Whether each step of an optimizer, by its id(), ends one of this set, as far as is known."""
        return len(self.optimizers) == 1 and self.optimizers[key][1] == self._closer

    def ends_step(self, key: int) -> bool:
        """An optimizer of it has stepped, by its id(); whether all of them have now.

        Where one steps within another, the outer one ends the step: it may change parameters after the inner one
        (ZeroRedundancyOptimizer, averaging).
        """
        number = self.optimizers[key][1]
        if number not in self._since:
            self._since.add(number)
            self._first = self._first or number
        else:
            # One that steps again before the first one does has taken its place.
            self._closer = self._last if number == self._first else 0
            self._first, self._since = number, {number}
        self._last = number
        if number != self._closer:
            return False
        self.count += 1
        return True

    def moments(self, parameters: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """What the optimizers keep of each parameter, in its shape."""
        seen = set()
        optimizers = [one for reference, _ in self.optimizers.values() if (one := reference()) is not None]
        for name, parameter in parameters:
            shape = local(parameter).shape
            for optimizer in optimizers:
                state = optimizer.state.get(parameter)
                for key in sorted(state, key=str) if isinstance(state, dict) else ():
                    tensor = local(state[key])
                    if getattr(tensor, "shape", None) == shape and id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield f"{name} {key}", tensor


class DdpReplicas(ReplicaSet):
    """Of a DistributedDataParallel model."""

    def __init__(self, model: Any, ordinal: int, global_rank: int) -> None:
        """Raises what torch raises where the group is gone."""
        group = model.process_group
        members = sys.modules["torch"].distributed.get_process_group_ranks(group)
        super().__init__("a DistributedDataParallel model", members, ordinal, global_rank)
        self._model = weakref.ref(model)
        self._has_joined = False

    def find(self) -> Iterable[tuple[str, Any]] | None:
        """Those of the module, but for those that it has DDP ignore."""
        model = self._model()
        if model is None:
            return None
        ignored = model.parameters_to_ignore
        return [(name, one) for name, one in model.module.named_parameters() if name not in ignored]

    def is_left_alone(self) -> bool:
        """Ranks that have run out of inputs, inside join(), take no step."""
        model = self._model()
        self._has_joined = self._has_joined or bool(getattr(getattr(model, "_join_config", None), "enable", False))
        return self._has_joined or super().is_left_alone()


class MeshReplicas(ReplicaSet):
    """Of a mesh dimension on which all of an optimizer's distributed parameters are replicated."""

    def __init__(self, optimizer: Any, mesh: Any, dimension: int, ordinal: int, global_rank: int) -> None:
        members = sys.modules["torch"].distributed.get_process_group_ranks(mesh.get_group(dimension))
        super().__init__("a replicated mesh dimension", members, ordinal, global_rank)
        self._optimizer = weakref.ref(optimizer)
        self._mesh = mesh

    def find(self) -> Iterable[tuple[str, Any]] | None:
        """The optimizer's, on this mesh."""
        optimizer = self._optimizer()
        return None if optimizer is None else list(named_on(optimizer, self._mesh))


def named_on(optimizer: Any, mesh: Any) -> Iterator[tuple[str, Any]]:
    """An optimizer's parameters on a mesh. Their names are its own, where it was given any."""
    number = 0
    for group in optimizer.param_groups:
        names = group.get("param_names")
        for index, parameter in enumerate(group["params"]):
            if getattr(parameter, "device_mesh", None) == mesh:
                yield names[index] if names else f"parameter {number} {list(parameter.shape)}", parameter
            number += 1


def replicated_dimension(optimizer: Any) -> tuple[Any, int] | None:
    """A mesh and a dimension of it on which all of an optimizer's distributed parameters are replicated."""
    mesh: Any = None
    dimensions: set[int] = set()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own = getattr(parameter, "device_mesh", None)
            if own is None:
                continue
            if mesh is None:
                mesh, dimensions = own, set(range(own.ndim))
            elif own != mesh:
                return None
            dimensions = {one for one in dimensions if parameter.placements[one].is_replicate()}
    wide = [one for one in sorted(dimensions) if mesh.size(one) > 1]
    return (mesh, wide[0]) if wide else None


def readable(torch: Any, named: Iterable[tuple[str, Any]]) -> tuple[list[tuple[str, Any]], int]:
    """Those that can be summed, and a checksum of which they are and how they lie. Each once, where they are tied."""
    plain = (torch.Tensor, torch.nn.Parameter)
    found, seen = [], set()
    for name, tensor in named:
        own = local(tensor)
        # Subclasses (quantized weights, fake tensors) may do anything when they are asked.
        if type(own) in plain and id(own) not in seen and is_readable(torch, own):
            seen.add(id(own))
            found.append((name[:MAX_CHARS], own))
    # How elements are joined to words follows from where they lie.
    text = "\n".join(f"{name} {own.dtype} {own.shape} {own.stride()} {own.storage_offset() % 8}" for name, own in found)
    layout = zlib.crc32(text.encode(errors="replace"))
    return found, layout
