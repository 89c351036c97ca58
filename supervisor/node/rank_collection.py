"""Looks and exits of one node's ranks, read by a station's worker threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from guardrun.supervisor.collect.ranks.exits import read_exits
from guardrun.supervisor.collect.ranks.look import LookResult, take_look
from guardrun.supervisor.collect.ranks.shared_log import SharedLog
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import RankLook

if TYPE_CHECKING:
    from guardrun.supervisor.node.node_supervisor import NodeSupervisor


def look_name(attempt: int, look: int) -> str:
    """The folder of a look's raw stacks, relative to the run directory."""
    return f"looks/{attempt}-{look:04d}"


def begin_look(
    station: NodeSupervisor,
    action: ac.TakeLook,
    folder: Path,
    write: Callable[[Callable[[], object]], object],
    done: Callable[[], object] = lambda: None,
) -> None:
    """Take a look, and feed the event. folder, write: as take_look has them. done: on the worker, before the event."""
    ranks = list(station.desk.ranks.values())
    take = _look_by(station, action.attempt, ranks)
    folders, batches = station.folders(), dict(station.desk.batches)

    def work() -> ev.Event:
        result = take(folder=folder, folders=folders, write=write, may_pause=True)
        done()
        return ev.LookTaken(
            look=action.look,
            attempt=action.attempt,
            ranks=[_with_batch(look, batches.get(look.global_rank, {})) for look in result.ranks],
            missing=result.missing,
            took_s=round(result.took_s, 3),
            folder=look_name(action.attempt, action.look),
            readings=list(result.readings),
        )

    def instead(error: str) -> ev.Event:
        missing = {rank.global_rank: error for rank in ranks}
        return ev.LookTaken(look=action.look, attempt=action.attempt, ranks=[], missing=missing)

    station.in_background(work, instead)


def look_now(station: NodeSupervisor, ranks: list[ev.Rank], samples: int) -> Callable[[], LookResult]:
    """For a person: a look at these of the station's ranks, to be taken by a worker thread; nothing is kept of it."""
    return partial(_look_by(station, station.desk.attempt, ranks), folder=None, samples=samples)


def _look_by(station: NodeSupervisor, attempt: int, ranks: list[ev.Rank]) -> partial[LookResult]:
    """take_look, with what the station knows now; a worker thread says the rest, and calls it."""
    boards = dict(station.sampler.boards)
    return partial(take_look, attempt, ranks, boards=boards, clock=station.clock, sockets_dir=station.sockets)


def begin_exits(
    station: NodeSupervisor, action: ac.ReadExits, name_of: Callable[[str], str] = lambda path: path
) -> None:
    """Read what fallen ranks left, and feed the event. name_of: a file's path → the checkpoint it belongs to."""
    folders = [*station.folders(), *station.desk.failed_saves]
    failed_loads = dict(station.desk.failed_loads)
    ranks = list(station.desk.ranks.values())
    log = SharedLog(station.run_file.launcher_pid, station.stderr_from) if station.stderr_from >= 0 else None

    def work() -> ev.Event:
        return read_exits(
            action.attempt,
            ranks,
            sockets_dir=station.sockets,
            clock=station.clock,
            error_files=station.error_files,
            stderr_files=station.stderr_files,
            log=log,
            oom=station.oom,
            folders=folders,
            failed_loads={rank: name_of(path) for rank, path in failed_loads.items()},
        )

    station.in_background(work, lambda error: ev.ExitsRead(attempt=action.attempt, traces=[]))


def _with_batch(look: RankLook, told: Mapping[str, Any]) -> RankLook:
    """The look, with the batch that its rank told, if that is still the one it is at."""
    is_current = told.get("batch", 0) == look.batches + (1 if told.get("is_awaited") else 0)
    return msgspec.structs.replace(look, batch=dict(told)) if told and is_current else look
