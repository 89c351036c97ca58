"""A checkpoint of torch.distributed.checkpoint that ranks write without a collective (hooks.dcp_save).

    parent/_guardrun-TOKEN.part/     made by whoever comes first, for this user alone
        __PART_N.distcp              what each rank holds, written by it
        plan-PART                    what it has written where; renamed to this name when all of that is there
        .metadata                    of all plans, by the rank that saves part 0
    parent/NAME                      to which the folder is renamed then

The token is the supervisor's, one for each request, so what an earlier one has left is never taken for a part of this.
A save that fails has its files removed by who has written them. A rank that is killed meanwhile leaves them: guardrun
looks not into such a folder, and no trainer or upload takes it for a checkpoint.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from guardrun.hooks.rank.parts import SaveGate
from guardrun.hooks.saves.in_time_files import NotSaved, check_free
from guardrun.hooks.wire.examinations import SAVE_PREFIX

POLL_S = 0.05
PLAN = "plan-{}"
DEFAULT_UMASK = 0o022


def write(state_dict: Mapping[str, object], path: str, gate: SaveGate) -> None:
    """Write what this rank is to save; return once the whole is at path.

    state_dict: as torch.distributed.checkpoint.save takes it. Raises NotSaved, OSError, and what torch's writer raises.
    """
    if not gate.asked_token:
        raise NotSaved("no token was given")
    number, count = gate.asked_part or (0, 1)
    parent, name = os.path.split(os.path.abspath(path))
    folder = os.path.join(parent, f"{SAVE_PREFIX}{gate.asked_token}.part")
    path = os.path.join(parent, name)

    def is_over() -> bool:
        return gate.is_answered or time.monotonic_ns() >= gate.until_ns

    os.makedirs(parent, exist_ok=True)
    check_free(path)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    is_done = False
    try:
        writer, planner, plan, results = _write_own(state_dict, folder, number)
        if number == 0:
            plans = [(plan, results), *_gather(folder, count, is_over)]
            _join(writer, planner, plans, folder)
            if is_over():
                raise NotSaved("its time was over")
            _rename(folder, path)
        else:
            _leave(folder, number, (plan, results))
            if _wait_for(parent, [name], is_over):
                raise NotSaved("the parts were not joined in time")
        is_done = True
    finally:
        if not is_done:
            _remove(folder, number, is_over)


def _write_own(state_dict: Mapping[str, object], folder: str, number: int) -> tuple[Any, Any, Any, Any]:
    """What this rank holds."""
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.planner import SavePlan
    from torch.distributed.checkpoint.stateful import Stateful

    state = {key: one.state_dict() if isinstance(one, Stateful) else one for key, one in state_dict.items()}
    writer, planner = FileSystemWriter(folder), DefaultSavePlanner()
    # Each part is written as the first rank does: values that are no tensors, too, so any part has them.
    planner.set_up_planner(state, writer.storage_meta(), True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    # Files are named by a plan's place among those of all ranks.
    plan = writer.prepare_global_plan([*([SavePlan([])] * number), plan])[number]
    plan = planner.finish_plan(plan)
    results = writer.write_data(plan, planner)
    results.wait()
    return writer, planner, plan, results.value()


def _leave(folder: str, number: int, written: tuple[Any, Any]) -> None:
    """Tell the rank that joins them."""
    name = os.path.join(folder, PLAN.format(number))
    with open(f"{name}.new", "wb") as file:
        pickle.dump(written, file)
    os.rename(f"{name}.new", name)


def _gather(folder: str, count: int, is_over: Callable[[], bool]) -> list[tuple[Any, Any]]:
    """What the others have written, in the order of parts."""
    names = [PLAN.format(number) for number in range(1, count)]
    if missing := _wait_for(folder, names, is_over):
        raise NotSaved(f"part {1 + names.index(missing[0])} of {count} was not there in time")
    found = []
    for name in names:
        # Nobody but this user can write into the folder.
        with open(os.path.join(folder, name), "rb") as file:
            found.append(pickle.load(file))
    return found


def _join(writer: Any, planner: Any, plans: list[tuple[Any, Any]], folder: str) -> None:
    """Write what says where all lies. Raises ValueError where a tensor is not there as a whole."""
    from torch.distributed.checkpoint.planner import SavePlan

    # An empty one: torch looks whether all of a tensor is there only where there are several.
    _, metadata = planner.create_global_plan([*(plan for plan, _ in plans), SavePlan([], planner_data={})])
    writer.finish(metadata, [results for _, results in plans])
    for number in range(1, len(plans)):
        os.unlink(os.path.join(folder, PLAN.format(number)))


def _rename(folder: str, path: str) -> None:
    """Readable by whom this user's files are."""
    os.chmod(folder, 0o777 & ~_umask())
    os.rename(folder, path)
    with suppress(OSError):  # a file system that can't: it is in place all the same
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    """This process's, which can be asked for only by setting it: for all threads."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        if found := re.search(r"^Umask:\s*([0-7]+)$", file.read(), re.MULTILINE):
            return int(found[1], 8)
    return DEFAULT_UMASK


def _wait_for(folder: str, names: list[str], is_over: Callable[[], bool]) -> list[str]:
    """Wait until all of these are in the folder; those that are not when nobody waits any more."""
    while True:
        # Listed: a network file system has to look then whether there is something new in a folder.
        there = {*os.listdir(folder)}
        missing = [name for name in names if name not in there]
        if not missing or is_over():
            return missing
        time.sleep(POLL_S)


def _remove(folder: str, number: int, is_over: Callable[[], bool]) -> None:
    """What this rank has written; all of it, where it is the one that joins, which the folder itself is left to."""
    if number == 0:
        shutil.rmtree(folder, ignore_errors=True)
        return
    own = re.compile(rf"__{number}_.*|plan-{number}(\.new)?")
    with suppress(OSError):
        for name in os.listdir(folder):
            if own.fullmatch(name):
                os.unlink(os.path.join(folder, name))
        if is_over():  # that one may be gone by now
            os.rmdir(folder)
