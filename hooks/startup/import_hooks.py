"""Hooks that wait for a module: each is installed right after its module was executed, before anybody has its names.

So `from torch import save` gets the wrapper, and a script that never imports torch pays nothing. The finder only
finds the module as everybody else would and borrows its loader's `exec_module` once: loaders, specs and what
`inspect` sees of them stay the originals.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from guardrun.hooks.rank.rank import Rank
    from guardrun.hooks.startup.spawned_functions import Waiting

# Module → where its hook is: a module of ours, and its function unless that is `install(module, rank)`.
# Hooks for a module that a version of torch lacks just never run.
HOOKS = {
    "torch": "guardrun.hooks.patches.torch_import",
    "torch.cuda": "guardrun.hooks.patches.devices",
    "torch.optim.optimizer": "guardrun.hooks.patches.optimizer_steps",
    "torch.nn.utils.clip_grad": "guardrun.hooks.patches.metrics:install_clip",
    "torch.amp.grad_scaler": "guardrun.hooks.patches.metrics:install_scaler",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "guardrun.hooks.patches.metrics:install_fsdp",
    "torch.distributed.fsdp.sharded_grad_scaler": "guardrun.hooks.patches.metrics:install_sharded_scaler",
    "torch.utils.data.dataloader": "guardrun.hooks.patches.dataloaders",
    "torch.utils.data.distributed": "guardrun.hooks.data.data_replay:install_sampler",
    "torch.serialization": "guardrun.hooks.saves.torch_files",
    "torch.distributed.checkpoint.state_dict": "guardrun.hooks.patches.optimizer_steps:install_initial_state",
    "torch.distributed.checkpoint.state_dict_saver": "guardrun.hooks.saves.dcp:install_save",
    "torch.distributed.checkpoint.state_dict_loader": "guardrun.hooks.saves.dcp:install_load",
    "torch.distributed.distributed_c10d": "guardrun.hooks.patches.collectives",
    "torch.distributed._functional_collectives": "guardrun.hooks.patches.torch_import:install_remaps",
    "torch.cuda.graphs": "guardrun.hooks.patches.graph_capture",
    "torch.distributed.fsdp._runtime_utils": "guardrun.hooks.patches.device_timing:install_fsdp1",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": "guardrun.hooks.patches.device_timing:install_fsdp2",
    "torch.distributed.fsdp._fully_shard._fsdp_state": "guardrun.hooks.patches.device_timing:install_fsdp2",
    "torch.nn.modules.module": "guardrun.hooks.guards.nonfinite_origin",
    "torch.nn.parallel.distributed": "guardrun.hooks.patches.steps:install_ddp",
    "torch._dynamo.trace_rules": "guardrun.hooks.patches.torch_import:install_trace_rules",
    "safetensors.torch": "guardrun.hooks.saves.torch_files:install_safetensors",
    "lightning.fabric.utilities.cloud_io": "guardrun.hooks.saves.trainers:install_lightning_files",
    "lightning_fabric.utilities.cloud_io": "guardrun.hooks.saves.trainers:install_lightning_files",
    "lightning.pytorch.trainer.connectors.callback_connector": "guardrun.hooks.saves.trainers:install_lightning",
    "pytorch_lightning.trainer.connectors.callback_connector": "guardrun.hooks.saves.trainers:install_lightning",
    "transformers.trainer": "guardrun.hooks.saves.trainers:install_transformers",
    "torchtitan.components.checkpoint": "guardrun.hooks.saves.trainers:install_torchtitan",
    "torchtitan.components.checkpointer.dcp": "guardrun.hooks.saves.trainers:install_torchtitan",
}


def start(rank: Rank) -> None:
    """Wait for the modules; those that are there already are hooked at once."""
    Finder(rank, dict(HOOKS)).start()


class Finder:
    """A meta path finder that finds nothing of its own."""

    def __init__(self, rank: Rank | Waiting, waiting: dict[str, str]) -> None:
        self._rank = rank
        self._waiting = waiting

    def start(self) -> None:
        """Wait for the modules; those that are there (a sitecustomize, a function's rank) are hooked at once."""
        sys.meta_path.insert(0, self)
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self.install(name, module)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the others find a module that a hook waits for, and see to it that the hook hears of it."""
        if name not in self._waiting:
            return None
        spec = None
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        if spec is not None and spec.loader is not None:
            try:
                self._borrow(name, spec.loader)
            except Exception as error:
                self._rank.fail(self._waiting.get(name, name), error)
        return spec

    def _borrow(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            self.install(name, module)

        loader.exec_module = exec_module

    def install(self, name: str, module: ModuleType) -> None:
        """Install the hook for a module that is complete; the last one takes the finder with it."""
        where = self._waiting.pop(name, None)
        if where is None:
            return
        try:
            hook, _, function = where.partition(":")
            getattr(import_module(hook), function or "install")(module, self._rank)
        except Exception as error:
            self._rank.fail(where, error)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
