"""torch.distributed: calls that communicate, and the making of groups.

A wrapper shows on the board which call the training thread is in, and since when; the outermost call counts. DDP's
and FSDP's own collectives don't pass here: torch's sequence numbers, which the hooks' thread reads, count those too.

torch.compile: dynamo replaces some collectives by traceable ones, looked up by the function object. Those tables are
made from this module's names after we have wrapped them, so the wrapper is the key (hooks/patches/torch_import.py).
What dynamo inlines instead it must inline without us: `_torchdynamo_inline` leads it to the original.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from inspect import isfunction, unwrap
from time import monotonic_ns
from typing import Any

from guardrun.hooks.calls.collective_calls import CallsPage, Signature
from guardrun.hooks.patches import flight_recorder, timeouts
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import Function, replace
from guardrun.hooks.wire.board import OPS, Field, Milestone

_SINCE, _OP, _COUNT = int(Field.COLLECTIVE_SINCE_NS), int(Field.COLLECTIVE_OP), int(Field.COLLECTIVES)
_PROGRESS_NS, _TOTAL = int(Field.PROGRESS_NS), int(Field.COLLECTIVE_TOTAL_NS)

NOT_FUNCTIONS = ("none", "wait")
RETURN_AT_ONCE = ("isend", "irecv", "batch_isend_irecv")
GROUP_MAKERS = ("new_group", "split_group")


def install(module: Any, rank: Rank) -> None:
    """Wrap distributed_c10d's functions, before the package imports them from there."""
    if rank.settings.get("device_timing"):
        from guardrun.hooks.patches.device_timing import DeviceTimer

        rank.device_timer = DeviceTimer(rank)
    package = (sys.modules.get("torch.distributed"),)
    try:
        rank.calls = CallsPage(rank, module)
    except OSError as error:
        rank.fail("calls", error)
    for op, name in enumerate(OPS):
        if name not in NOT_FUNCTIONS:
            replace(module, name, functools.partial(wrap_collective, rank=rank, op=op), package)
    replace(module, "init_process_group", functools.partial(_wrap_init, rank=rank), package)
    for name in GROUP_MAKERS:
        replace(module, name, functools.partial(_wrap_group_maker, rank=rank), package)
    replace(module, "destroy_process_group", functools.partial(_wrap_destroyer, rank=rank), package)
    replace(module, "_get_default_timeout", functools.partial(timeouts.wrap_default, rank=rank))
    work = getattr(module, "Work", None)
    if work is not None:
        work.wait = _wrap_wait(work.wait, rank)


def wrap_collective(original: Function, rank: Rank, op: int) -> Function:
    """Wrap a call that communicates; about three microseconds, most of them for its record on the calls page."""
    signature = read_signature(original)
    # On the device it is timed in any thread: backward passes have one of their own.
    run = original if rank.device_timer is None or OPS[op] in RETURN_AT_ONCE else rank.device_timer.wrap(original)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        words = rank.words
        is_owner = get_ident() == rank.owner_ident
        if not is_owner or rank.aside:
            if rank.saving_ident == get_ident():
                _refuse_alone(rank, OPS[op], _group_of(signature, args, kwargs))
            _note_user(rank, signature, args, kwargs, is_owner)
        if words[_SINCE] or not is_owner:
            return run(*args, **kwargs)
        words[_OP] = op
        words[_SINCE] = began_ns = monotonic_ns()
        calls = rank.calls
        at = -1 if calls is None else calls.enter(op, signature, args, kwargs, began_ns)
        result, has_raised = None, True
        try:
            result = run(*args, **kwargs)
            has_raised = False
        finally:
            now_ns = monotonic_ns()
            try:
                if at >= 0 and calls is not None:
                    calls.leave(at, result, has_raised, now_ns)
            finally:
                words[_SINCE] = 0
                words[_TOTAL] += now_ns - began_ns
        words[_COUNT] += 1
        words[_PROGRESS_NS] = now_ns
        if rank.frozen is not None:
            rank.frozen.stay()
        return result

    if isfunction(original):
        # Dynamo's own convention, and what it calls a function that it is given in a P2POp.
        collective._torchdynamo_inline = original  # type: ignore[attr-defined]
        collective.__code__ = collective.__code__.replace(co_name=original.__name__)  # type: ignore[attr-defined]
    return collective


def _note_user(rank: Rank, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], is_owner: bool) -> None:
    """Note who uses a process group of its own: the thread that trains, or only others, as for a check of health."""
    name = getattr(_group_of(signature, args, kwargs), "group_name", None)
    if name is None:
        return
    if is_owner:
        rank.aside.discard(name)
        rank.shared.add(name)
    elif name not in rank.shared:
        rank.aside.add(name)


def _group_of(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The process group of a call; None: all ranks."""
    group = kwargs.get("group")
    return args[signature.group_at] if group is None and len(args) > signature.group_at else group


def _refuse_alone(rank: Rank, name: str, group: Any) -> None:
    """Raise where a function that only this rank calls would wait for others, or meet what they train with."""
    if (rank.world_size if group is None else group.size()) > 1:
        raise RuntimeError(
            f"{name}() in a function given to save_with(): other ranks don't call it, and would take it for "
            "a collective of their training"
        )


def read_signature(original: Function) -> Signature:
    """Read where a function takes its tensors and its group, through torch's own wrappers around it."""
    return Signature(getattr(original, "__name__", ""), _parameters(original))


def _parameters(function: Function) -> list[str]:
    code = getattr(unwrap(function), "__code__", None)
    return list(code.co_varnames[: code.co_argcount]) if code is not None else []


def _wrap_wait(original: Function, rank: Rank) -> Function:
    """Work.wait: no call of its own, but a rank may stand in it. It is C++: dynamo can inline neither it nor us."""
    op = OPS.index("wait")
    run = original if rank.device_timer is None else rank.device_timer.wrap(original)

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        words = rank.words
        if words[_SINCE] or get_ident() != rank.owner_ident:
            return run(*args, **kwargs)
        words[_OP] = op
        words[_SINCE] = began_ns = monotonic_ns()
        calls = rank.calls if args else None
        has_raised = True
        try:
            if calls is not None:
                calls.wait_begins(args[0])
            result = run(*args, **kwargs)
            has_raised = False
        finally:
            now_ns = monotonic_ns()
            if calls is not None:
                calls.wait_ends(args[0], has_raised, now_ns)
            words[_SINCE] = 0
            words[_TOTAL] += now_ns - began_ns
        words[_PROGRESS_NS] = now_ns
        if rank.frozen is not None:
            rank.frozen.stay()
        return result

    return wait


def _wrap_group_maker(original: Function, rank: Rank) -> Function:
    at = _position(original, "timeout")

    @functools.wraps(original)
    def make_group(*args: Any, **kwargs: Any) -> Any:
        timeout_ns = timeouts.own_timeout_ns(_argument(args, kwargs, at), sys._getframe(1), rank)
        return _timed_init(functools.partial(original, *args, **kwargs), rank, timeout_ns)

    return make_group


def _wrap_init(original: Function, rank: Rank) -> Function:
    at = _position(original, "timeout")

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank.owner_ident = get_ident()  # Whoever makes the process group trains, main thread or not.
        rank.mark(Milestone.INIT_ENTERED)
        timeout_ns = timeouts.own_timeout_ns(_argument(args, kwargs, at), sys._getframe(1), rank)
        result = _timed_init(functools.partial(original, *args, **kwargs), rank, timeout_ns)
        rank.mark(Milestone.INIT_DONE)
        return result

    return init_process_group


def _timed_init(make: Callable[[], Any], rank: Rank, timeout_ns: int) -> Any:
    words = rank.words
    if words[Field.INIT_SINCE_NS]:
        return make()
    if rank.calls is not None:
        flight_recorder.prepare(rank, rank.calls, sys.modules.get("torch.distributed.distributed_c10d"))
    words[Field.INIT_SINCE_NS] = since_ns = monotonic_ns()
    try:
        result = make()
    finally:
        words[Field.INIT_SINCE_NS] = 0
    words[Field.GROUPS] += 1
    words[Field.PROGRESS_NS] = monotonic_ns()
    if rank.calls is not None:
        rank.calls.note_groups(since_ns, timeout_ns)
    return result


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int) -> object:
    """The timeout that a call was given, by its name or by its place; None: none."""
    return kwargs.get("timeout", args[at] if 0 <= at < len(args) else None)


def _position(function: Function, name: str) -> int:
    """Which argument it is; -1 where there is none of that name."""
    parameters = _parameters(function)
    return parameters.index(name) if name in parameters else -1


def _wrap_destroyer(original: Function, rank: Rank) -> Function:
    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if rank.calls is not None:
            rank.calls.note_groups()
        return result

    return destroy_process_group
