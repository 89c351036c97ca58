"""Timeouts of process groups: NCCL_TIMEOUT made true, and torch's own left standing where guardrun may be blind.

Neither torch nor NCCL reads NCCL_TIMEOUT. The user's is the default of every backend. guardrun's own, later than its
hard limit, is so for the backends of hosts. On a device, where only the flight recorder says what goes on, torch's
default (ten minutes) stands until a look has read the recorders of all ranks: then the board says so. A group's timeout
counts for the calls that are issued after it was set (ProcessGroupNCCL.hpp, setTimeout).
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

from guardrun.hooks.calls.call_places import Place
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import Function
from guardrun.hooks.wire.board import Field

TIMEOUT = "NCCL_TIMEOUT"
OURS = "nccl_timeout"
"""In the hooks' settings: what guardrun has set NCCL_TIMEOUT to; absent where the user had."""
USUAL_TIMEOUT, USUAL_NCCL_TIMEOUT = timedelta(minutes=30), timedelta(minutes=10)
"""default_pg_timeout and default_pg_nccl_timeout of torch (distributed/constants.py)."""
_HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
_UNDEFINED = frozenset({"", "undefined"})
"""Each device's own, where the script names none."""
_MOST_NS = 1 << 62


def wrap_default(original: Function, rank: Rank) -> Callable[..., Any]:
    """Make NCCL_TIMEOUT (seconds) the default of every backend, with the exception that this module's page tells."""

    @functools.wraps(original)
    def default_timeout(*args: Any, **kwargs: Any) -> Any:
        try:
            timeout_s = read_timeout_s()
        except ValueError as error:
            rank.fail(TIMEOUT, error)
            timeout_s = None
        if timeout_s is None:
            return original(*args, **kwargs)
        ours = timedelta(seconds=timeout_s)
        backend = args[0] if args else kwargs.get("backend", "")
        if not is_guardruns(rank) or not runs_on_device(str(backend)):
            return ours
        torchs = original(*args, **kwargs)
        return max(torchs, ours) if rank.words[Field.TIMEOUT_RAISED] else torchs

    # A compiled monitored_barrier asks for it: one graph more would end there.
    default_timeout._torchdynamo_inline = original  # type: ignore[attr-defined]
    return default_timeout


def read_timeout_s() -> float | None:
    """Read NCCL_TIMEOUT; None where it is unset. Raises ValueError unless it is a positive number."""
    text = os.environ.get(TIMEOUT, "")
    if not text:
        return None
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < 10**9:
        raise ValueError(f'{TIMEOUT}="{text}" is not a positive number of seconds')
    return timeout_s


def is_guardruns(rank: Rank) -> bool:
    """Whether NCCL_TIMEOUT is what guardrun has set it to: a script may have said otherwise since."""
    return os.environ.get(TIMEOUT) == rank.settings.get(OURS)


def runs_on_device(backend: str) -> bool:
    """Whether a backend, or one of several (`cpu:gloo,cuda:nccl`), carries out its calls on a device."""
    parts = {part.rpartition(":")[2].strip() for part in backend.lower().split(",")}
    if parts <= _UNDEFINED:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        return any(getattr(c10d, name, False) for name in ("_NCCL_AVAILABLE", "_XCCL_AVAILABLE"))
    return not parts <= _HOST_BACKENDS


def own_timeout_ns(timeout: object, caller: FrameType, rank: Rank) -> int:
    """A timeout that somebody has thought about; 0: none.

    torch's defaults, which frameworks pass on, count in the user's own line only. Without any the user's NCCL_TIMEOUT.
    """
    try:
        if timeout is None and not is_guardruns(rank) and (said_s := read_timeout_s()):
            timeout = timedelta(seconds=said_s)
    except ValueError:  # Told when it is used.
        return 0
    if not isinstance(timeout, timedelta):
        return 0
    if timeout in (USUAL_TIMEOUT, USUAL_NCCL_TIMEOUT) and not Place(caller.f_code).is_users:
        return 0
    return min(int(timeout.total_seconds() * 1e9), _MOST_NS)


def raise_timeouts(rank: Rank) -> None:
    """Give groups on a device guardrun's timeout, where theirs is torch's default. The hooks' thread calls it.

    Never raises; what cannot be told stays as it is.
    """
    try:
        timeout_s = read_timeout_s()
        if timeout_s is None or not is_guardruns(rank) or rank.calls is None:
            return
        world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
        for group in list(getattr(world, "pg_map", ())):
            if rank.calls.own_timeout_ns(str(group.group_name)) == 0:
                _raise_timeout(group, timedelta(seconds=timeout_s))
    except Exception as error:
        rank.fail(TIMEOUT, error)


def _raise_timeout(group: Any, timeout: timedelta) -> None:
    for device in list(group._device_types):
        backend = group._get_backend(device)
        usual = getattr(getattr(backend, "options", None), "_timeout", None)
        is_usual = usual in (USUAL_TIMEOUT, USUAL_NCCL_TIMEOUT) and usual < timeout
        if is_usual and runs_on_device(backend.name()) and hasattr(backend, "_set_default_timeout"):
            backend._set_default_timeout(timeout)
