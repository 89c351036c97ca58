"""The emulated device for scripts: `use()` first, then `torch.device("emu")` and the backend "nccl" are there.

The rest is what no torch of a real device has: kernels that take as long as told, and faults.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from types import ModuleType
from typing import Any

from tests.emu.build import load

ILLEGAL_ACCESS = (
    "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in"
    " https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
)
"""As torch tells it (c10/cuda/CUDAException.cpp); the rest of its text is the same for every error."""
FOREVER_S = 10.0**8

_library: Any = None


def use() -> None:
    """Make it torch's accelerator and the backend "nccl", where this torch has neither. Before init_process_group."""
    global _library
    if _library is not None:
        return
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    torch.utils.rename_privateuse1_backend("emu")
    _library = load()
    torch._register_device_module("emu", _device_module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
    _library.set_make_wire(_make_wire)
    # As in a torch that was built with NCCL: the same code makes its groups, and hooks find the same name.
    group = _library.ProcessGroupNCCL
    for module in (c10d, dist, torch._C._distributed_c10d):
        module.ProcessGroupNCCL = group
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    if scale := float(os.environ.get("EMU_TIMEOUT_SCALE", "0")):
        c10d.default_pg_nccl_timeout *= scale
        c10d.default_pg_timeout *= scale
    c10d.Backend.backend_capability["nccl"] = ["emu"]
    c10d.Backend.default_device_backend_map["emu"] = "nccl"
    torch._C._distributed_c10d._dump_nccl_trace = _library.dump_pickle
    torch._C._distributed_c10d._dump_nccl_trace_json = _library.dump_json
    _obey_environment()


def _make_wire(store: Any, rank: int, size: int) -> Any:
    """gloo's group behind a communicator. The watchdog alone counts time."""
    import torch.distributed as dist

    return dist.ProcessGroupGloo(store, rank, size, timeout=timedelta(days=1))


def _device_module() -> ModuleType:
    """What torch asks of `torch.emu`."""
    import torch

    module = ModuleType("torch.emu")
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
        "get_amp_supported_dtype": list,
        "synchronize": lambda device=None: synchronize(),
        "Stream": torch.Stream,
        "Event": torch.Event,
        "current_stream": lambda device=None: torch.accelerator.current_stream(),
        "stream": lambda stream: stream,
        "device": lambda device: nullcontext(),
        "memory_stats": torch.accelerator.memory_stats,
        "memory_stats_as_nested_dict": lambda device=0: torch._C._accelerator_getDeviceStats(device),
        "mem_get_info": torch.accelerator.get_memory_info,
        "empty_cache": torch.accelerator.empty_cache,
        "reset_peak_memory_stats": torch.accelerator.reset_peak_memory_stats,
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    sys.modules["torch.emu"] = module
    return module


def kernel(seconds: float, error: str = "") -> None:
    """Launch a kernel that takes so long, and then breaks the device with this error."""
    _library.kernel(seconds, error)


def hold() -> None:
    """Launch a kernel that runs until `release`: what is launched after it waits in the queue."""
    _library.hold()


def release() -> None:
    """Let the device go on after `hold`."""
    _library.release()


class Capture:
    """A CUDA graph: what is launched within `with` is not carried out then, but by each `replay`, as one launch."""

    def __enter__(self) -> Capture:
        _library.begin_capture()
        return self

    def __exit__(self, *_: object) -> None:
        self._graph = _library.end_capture()

    def replay(self) -> None:
        """Launch all of it in the current stream. Neither the recorder nor the watchdog hears of it."""
        _library.replay(self._graph)


def set_communicator_s(seconds: float) -> None:
    """Have the host wait so long for each communicator that is made from now on, when all members have come."""
    _library.set_comm_s(seconds)


def synchronize(holds_gil: bool = False) -> None:
    """Wait for all streams, at 100 % of a core; with the GIL, as some libraries do."""
    _library.synchronize(holds_gil)


def is_idle() -> bool:
    """Whether the current stream has carried out all that was launched."""
    return bool(_library.is_idle())


def set_others(size: int) -> None:
    """As if other processes held so many bytes of the device."""
    _library.set_others(size)


def count_waits() -> int:
    """How often the host of this process waited for a stream or an event, synchronisations of the device included."""
    return int(_library.count_waits())


def count_queries() -> int:
    """How often anybody has asked for an event's state: cudaEventQuery's calls."""
    return int(_library.count_queries())


def dump() -> str:
    """The recorder's JSON, as torch's worker server gives it."""
    return str(_library.dump_json())


# Faults ------------------------------------------------------------------------------------------------------------


def _stick() -> None:
    kernel(FOREVER_S)


def _fill_queue() -> None:
    """The device is stuck, and more is launched than its queue takes: the next launch blocks."""
    _stick()
    while True:
        kernel(0)


def _fill_queue_with_gil() -> None:
    _library.set_launch_holds_gil(True)
    _fill_queue()


def _break_later() -> None:
    """A kernel that ends with an error while the host is steps ahead: told by whatever asks next."""
    kernel(float(os.environ.get("EMU_ERROR_AFTER_S", "0.5")), ILLEGAL_ACCESS)


def _wait_with_gil() -> None:
    _stick()
    synchronize(holds_gil=True)


FAULTS: dict[str, Callable[[], object]] = {
    "stuck_kernel": _stick,
    "dead_link": lambda: _library.set_link_is_dead(True),
    "sticky_error": lambda: _library.break_device(ILLEGAL_ACCESS),
    "late_error": _break_later,
    "queue_full": _fill_queue,
    "queue_full_with_gil": _fill_queue_with_gil,
    "query_hangs": lambda: _library.set_query_hangs(True),
    "gil_in_sync": _wait_with_gil,
}
"""What befalls the device of the process that calls it."""


def inject(fault: str) -> None:
    """Have the fault, one of FAULTS. Those of a full queue, and of a wait with the GIL, do not return."""
    FAULTS[fault]()


def _obey_environment() -> None:
    """EMU_FAULT="dead_link:1:20": for scripts that know of none, rank 1 has it 20 seconds after `use()`."""
    text = os.environ.get("EMU_FAULT", "")
    if not text:
        return
    fault, rank, after_s = text.split(":")
    if fault not in FAULTS:
        raise ValueError(f"EMU_FAULT={text}: there is no fault {fault}, but {', '.join(FAULTS)}")
    if os.environ.get("RANK", "0") == rank:
        timer = threading.Timer(float(after_s), inject, [fault])
        timer.daemon = True
        timer.start()
