"""The models, optimizers, data loaders and scalers that a script has made, found among the collector's objects.

All objects that the collector knows are gone through twice, 0.1 s a million of them, with the GIL held: in functions of
C, so that none of them lives longer for it. Where there are very many, that is left out. What the collector was told to
leave alone (gc.freeze) it does not show.
"""

from __future__ import annotations

import gc
import sys
from time import monotonic_ns

from guardrun.hooks.examine.collector_objects import objects_by_type
from guardrun.hooks.examine.module_trees import held_by, name_tensors, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guardrun.hooks.rank.rank import Rank

MAX_BLOCKS = 6_000_000
"""Of Python's allocator: an object that the collector knows takes some three; so it is over in a quarter second."""
MAX_FOUND = 50_000


class Found:
    """What there is, in no order but that of its size."""

    def __init__(self, rank: Rank, torch: Any) -> None:
        """Look; the hooks' thread does. torch: the module."""
        began_ns = monotonic_ns()
        self.trouble = ""
        kinds = {
            "module": torch.nn.Module,
            "optimizer": torch.optim.Optimizer,
            "loader": getattr(sys.modules.get("torch.utils.data.dataloader"), "DataLoader", None),
            "scaler": getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None),
        }
        found: dict[str, list[Any]] = {name: [] for name in kinds}
        if sys.getallocatedblocks() > MAX_BLOCKS:
            self.trouble = "there are too many objects to look for models and data loaders among them"
        else:
            for one in find_instances(tuple(kind for kind in kinds.values() if kind is not None)):
                name = next(name for name, kind in kinds.items() if kind is not None and issubclass(type(one), kind))
                found[name].append(one)
        self.optimizers = found["optimizer"]
        if rank.steps is not None:
            known = set(map(id, self.optimizers))
            self.optimizers += [one for one in rank.steps.optimizers() if id(one) not in known]
        self.loaders, self.scalers = found["loader"], found["scaler"]
        known = set(map(id, found["module"]))
        replicas = rank.spent.models() if rank.spent is not None else []
        found["module"] += [one for one in replicas if id(one) not in known]
        parts = {id(part) for module in found["module"] for _, part in held_by(module, "_modules")}
        trees = [walk(module) for module in found["module"] if id(module) not in parts]
        models = [Model(tree) for tree in trees]
        self.models = sorted((one for one in models if one.parameters), key=lambda one: -len(one.parameters))
        """Those that are no part of another one."""
        if not self.models and not self.trouble and gc.get_freeze_count():
            self.trouble = "what was there when the collector was told to leave it alone (gc.freeze) is not found"
        self.took_ns = monotonic_ns() - began_ns


class Model:
    """A module that is no part of another one."""

    def __init__(self, tree: list[tuple[str, Any]]) -> None:
        """tree: of walk()."""
        self.module = tree[0][1]
        self.modules = [module for _, module in tree]
        self.parameters = name_tensors(tree, "_parameters")
        self.buffers = name_tensors(tree, "_buffers")


def find_instances(kinds: tuple[type, ...]) -> list[Any]:
    """All objects of these types that the collector knows, MAX_FOUND at most."""
    types = {kind for kind in set(map(type, gc.get_objects())) if issubclass(kind, kinds)}
    return list(objects_by_type(types.__contains__))[:MAX_FOUND]
