"""Models, optimizers, data loaders and what else a rank trains with, as data: bounded, and without asking a device."""

from __future__ import annotations

import json
import os
import sys
import threading
from itertools import islice

from guardrun.hooks.rank.computed_with import PREFIXES, attempt, read_flags, read_runtime, read_seed
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.examinations import MAX_ANSWER_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from guardrun.hooks.examine.found_objects import Found, Model

MAX_BYTES = MAX_ANSWER_BYTES - 4096
LEAST = ("environment", "threads", "largest", "loaders", "groups", "scalers", "optimizers", "models", "at_step")
"""In this order they are left out."""
MOST = 8
"""Optimizers, models, data loaders, …"""
MAX_GROUPS = 16
MAX_LARGEST = 12
MAX_THREADS = 32
MAX_VARIABLES = 120
MAX_CHARS = 200
MAX_PARAMETERS = 50_000
DDP_SETTINGS = (
    "find_unused_parameters", "static_graph", "broadcast_buffers", "gradient_as_bucket_view",
    "require_backward_grad_sync",
)  # fmt: skip
MATTERS = (
    *PREFIXES, "CUBLAS", "CUDA", "CUDNN", "DEEPSPEED_", "GROUP_", "LD_PRELOAD", "LOCAL_", "MALLOC_", "MASTER_",
    "OPENBLAS", "PYTHON", "RANK", "ROCR_", "ROLE_", "SLURM_JOB", "SLURM_NODEID", "SLURM_PROCID", "TF32", "TMPDIR",
    "TOKENIZERS_", "TORCH", "WANDB_MODE", "WORLD_SIZE",
)  # fmt: skip
"""How names of variables begin that change how a rank trains. The supervisor leaves out what looks like a secret."""


def describe(rank: Rank, found: Found | None, names: dict[int, str], told: dict[str, Any], why: str) -> dict[str, Any]:
    """Everything. told: what the thread that trains has found out; why it has not, or empty."""
    about: dict[str, Any] = {"at_step": told, "at_step_trouble": why, "step": rank.step_now(), "troubles": {}}
    torch = sys.modules.get("torch")
    parts: dict[str, Callable[[], Any]] = {"threads": _threads, "environment": _environment}
    if torch is not None and found is not None:
        about["looked_s"] = round(found.took_ns / 1e9, 3)
        if found.trouble:
            about["troubles"]["objects"] = found.trouble
        parts |= {
            "optimizers": lambda: [_optimizer(one) for one in found.optimizers[:MOST]],
            "models": lambda: [_model(one) for one in found.models[:MOST]],
            "loaders": lambda: [_loader(one) for one in found.loaders[:MOST]],
            "scalers": lambda: [_scaler(one) for one in found.scalers[:MOST]],
            "largest": lambda: _largest(found, names, torch),
            "groups": _groups,
            "settings": lambda: _settings(torch),
            "compiled": lambda: _compiled(found),
        }
    for name, part in parts.items():
        try:
            about[name] = part()
        except Exception as error:  # what a script's own classes raise, or change meanwhile
            about["troubles"][name] = f"{type(error).__name__}: {error}"[:MAX_CHARS]
    shorten(about)
    return about


def shorten(about: dict[str, Any]) -> None:
    """Leave parts out, until the rest fits in an answer."""
    for name in LEAST:
        if len(json.dumps(about)) <= MAX_BYTES:
            return
        if about.pop(name, None):
            about["troubles"][name] = "left out: there is more than fits in an answer"


def name_parameters(found: Found) -> dict[int, str]:
    """By the id() of each parameter of a model: what it is called there."""
    names: dict[int, str] = {}
    for model in found.models:
        for name, parameter in model.parameters[:MAX_PARAMETERS]:
            names.setdefault(id(parameter), name)
    return names


def _optimizer(optimizer: Any) -> dict[str, Any]:
    groups = list(optimizer.param_groups)
    return {
        "type": type(optimizer).__name__,
        "groups": [_group(group) for group in groups[:MAX_GROUPS]],
        "group_count": len(groups),
    }


def _group(group: dict[str, Any]) -> dict[str, Any]:
    parameters = list(group["params"])
    settings = {str(name): plain(value) for name, value in list(group.items()) if name != "params"}
    numbers = sum(each.numel() for each in parameters)
    return {"parameters": len(parameters), "numbers": numbers, **{k: v for k, v in settings.items() if v is not None}}


def plain(value: Any) -> Any:
    """A setting's value: a number, a word, or a few of them; None of what is none of these, or lies on a device."""
    if isinstance(value, bool | int | float):
        return value if not isinstance(value, float) or abs(value) < float("inf") else repr(value)
    if isinstance(value, str):
        return value[:MAX_CHARS]
    if isinstance(value, tuple | list) and len(value) <= 8:
        return [plain(each) for each in value]
    device = getattr(value, "device", None)
    if device is not None and getattr(value, "numel", lambda: 0)() == 1:
        return float(value) if device.type == "cpu" else f"(on {device})"
    return None


def _model(model: Model) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    devices: dict[str, int] = {}
    count = numbers = trained = size = 0
    for _, parameter in model.parameters[:MAX_PARAMETERS]:
        local = getattr(parameter, "_local_tensor", parameter)
        count, numbers = count + 1, numbers + parameter.numel()
        trained += parameter.numel() if parameter.requires_grad else 0
        size += local.numel() * local.element_size()
        _add(kinds, str(parameter.dtype).removeprefix("torch."), parameter.numel())
        _add(devices, str(parameter.device), parameter.numel())
    modules = model.modules
    wraps: dict[str, int] = {}
    for module in modules:
        for kind in type(module).__mro__:
            if kind.__name__ in ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel"):
                _add(wraps, kind.__name__, 1)
                break
    return {
        "type": type(model.module).__name__,
        "parameters": count,
        "numbers": numbers,
        "trained": trained,
        "bytes_here": size,
        "dtypes": kinds,
        "devices": devices,
        "modules": len(modules),
        "in_training": sum(1 for module in modules if module.training),
        "wrapped": wraps,
        "ddp": _ddp(model.module),
    }


def _ddp(model: Any) -> dict[str, Any]:
    if type(model).__name__ != "DistributedDataParallel":
        return {}
    return {name: plain(getattr(model, name)) for name in DDP_SETTINGS if hasattr(model, name)}


def _loader(loader: Any) -> dict[str, Any]:
    names = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "drop_last", "timeout")
    about = {name: plain(getattr(loader, name, None)) for name in names}
    sampler = getattr(loader, "sampler", None)
    kept = ("num_replicas", "rank", "epoch", "seed", "shuffle")
    about["sampler"] = {
        "type": type(sampler).__name__,
        **{name: plain(vars(sampler)[name]) for name in kept if name in getattr(sampler, "__dict__", {})},
    }
    return {"dataset": type(getattr(loader, "dataset", None)).__name__, **about}


def _scaler(scaler: Any) -> dict[str, Any]:
    names = ("_enabled", "_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval")
    about = {name.strip("_"): plain(vars(scaler).get(name)) for name in names}
    return {"type": type(scaler).__name__, **about}


def _largest(found: Found, names: dict[int, str], torch: Any) -> list[dict[str, Any]]:
    """Parameters, their gradients, buffers and what optimizers keep, as far as they lie here."""
    sizes: list[tuple[int, str, str, str]] = []
    seen: set[int] = set()

    def add(owner: str, tensor: Any) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if isinstance(local, torch.Tensor) and id(local) not in seen:
            seen.add(id(local))
            shape = "x".join(map(str, local.shape)) or "1"
            kind = f"{str(local.dtype).removeprefix('torch.')}[{shape}]"
            sizes.append((local.numel() * local.element_size(), owner[:MAX_CHARS], kind, str(local.device)))

    for model in found.models:
        for name, parameter in model.parameters[:MAX_PARAMETERS]:
            add(f"parameter {name}", parameter)
            if parameter.is_leaf and parameter.grad is not None:
                add(f"gradient of {name}", parameter.grad)
        for name, buffer in model.buffers[:MAX_PARAMETERS]:
            add(f"buffer {name}", buffer)
    for optimizer in found.optimizers:
        for parameter, state in islice(list(optimizer.state.items()), MAX_PARAMETERS):
            if isinstance(state, dict):
                for key, value in list(state.items()):
                    add(f"{type(optimizer).__name__}'s {key} of {names.get(id(parameter), '?')}", value)
    sizes.sort(key=lambda one: (-one[0], one[1]))
    keys = ("bytes", "owner", "kind", "device")
    return [dict(zip(keys, one, strict=True)) for one in sizes[:MAX_LARGEST]]


def _groups() -> list[dict[str, Any]]:
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world: Any = getattr(c10d, "_world", None)
    about = []
    for group, (backend, _) in list(getattr(world, "pg_map", {}).items())[:MAX_GROUPS]:
        members = sorted(world.pg_group_ranks.get(group, ()))
        about.append(
            {"name": str(group.group_name)[:40], "backend": str(backend), "ranks": len(members), "of": members[:MOST]}
        )
    return about


def _settings(torch: Any) -> dict[str, Any]:
    told: dict[str, Any] = read_runtime(torch) | read_flags(torch) | {"initial_seed": read_seed(torch)}
    told |= {
        "num_interop_threads": attempt(torch.get_num_interop_threads),
        "anomaly": attempt(torch.is_anomaly_enabled),
    }
    words = {"True": True, "False": False}
    return {name: words.get(value, value) for name, value in told.items() if value is not None}


def _compiled(found: Found) -> dict[str, Any]:
    modules = [module for model in found.models[:MOST] for module in model.modules]
    marks = ("OptimizedModule", "_compiled_call_impl")
    whole = [type(one).__name__ == marks[0] or vars(one).get(marks[1]) is not None for one in modules]
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return {
        "modules": sum(whole),
        "graphs": int(counters["stats"]["unique_graphs"]) if "stats" in counters else 0,
        "breaks": sum(dict(counters["graph_break"]).values()) if "graph_break" in counters else 0,
    }


def _threads() -> dict[str, Any]:
    threads = list(threading._active.values())  # type: ignore[attr-defined]  # enumerate() takes a lock
    places = _places()
    shown = [
        {"name": str(one.name)[:100], "daemon": bool(one.daemon), "where": places.get(one.ident, "")}
        for one in threads[:MAX_THREADS]
    ]
    return {"python": len(threads), "all": _count_tasks(), "of": shown}


def _places() -> dict[int, str]:
    """Where each thread of Python is. No frame is held on to: they hold what a step computes."""
    frames = sys._current_frames()
    places = {}
    while frames:
        ident, frame = frames.popitem()
        code = frame.f_code
        places[ident] = f"{code.co_name} ({code.co_filename}:{frame.f_lineno})"[-MAX_CHARS:]
        del frame
    return places


def _count_tasks() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return -1


def _environment() -> dict[str, str]:
    names: Iterable[str] = sorted(name for name in list(os.environ) if name.startswith(MATTERS))
    return {name: os.environ.get(name, "")[:MAX_CHARS] for name in islice(names, MAX_VARIABLES)}


def _add(sums: dict[str, int], key: str, more: int) -> None:
    sums[key] = sums.get(key, 0) + more
