"""Looks and exits of one node's ranks, read by the supervisor's worker threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.collect.collectives.recorder_reader import RecorderReaders
from guardrun.supervisor.collect.host.oom_kills import OomWatch
from guardrun.supervisor.collect.ranks.exits import SharedLog, read_exits
from guardrun.supervisor.collect.ranks.look import LookResult, take_look
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import RankLook, Reading
from guardrun.supervisor.engine.observation.device_counts import reads_all
from guardrun.supervisor.node.rank_message_ingest import RankMessageIngest
from guardrun.supervisor.node.run_context import LoopContext


class RankContext(LoopContext, Protocol):
    """What looks and exits use of the supervisor of their ranks' node."""

    @property
    def ingest(self) -> RankMessageIngest:
        """What the ranks of the current attempt have told."""

    @property
    def sampler(self) -> Sampler:
        """Has their boards."""

    @property
    def recorders(self) -> RecorderReaders:
        """What looks know of their flight recorders."""

    @property
    def sockets(self) -> Path:
        """The folder of their sockets and boards."""

    @property
    def oom(self) -> OomWatch:
        """Counts who was killed for memory here."""

    @property
    def error_files(self) -> Mapping[int, str]:
        """By global rank, of the current attempt."""

    @property
    def stderr_files(self) -> Mapping[int, str]:
        """As error_files."""

    def power_readings(self) -> list[Reading]:
        """What their devices draw right now."""

    @property
    def stderr_from(self) -> int:
        """Where the attempt's part of the log that ranks share begins; -1: there is none."""


def look_name(attempt: int, look: int) -> str:
    """The folder of a look's raw stacks, relative to the run directory."""
    return f"looks/{attempt}-{look:04d}"


def begin_look(
    node: RankContext,
    action: ac.TakeLook,
    folder: Path,
    folders: Sequence[str],
    write: Callable[[Callable[[], object]], object],
    *,
    done: Callable[[], object] = lambda: None,
) -> None:
    """Take a look, and feed the event.

    folder, folders, write: as take_look has them. done: on the worker, before the event.
    """
    ranks = list(node.ingest.ranks.values())
    take = _look_by(node, action.attempt, ranks)
    batches = dict(node.ingest.batches)
    power = node.power_readings()
    boards = dict(node.sampler.boards)

    def work() -> ev.Event:
        result = take(folder=folder, folders=folders, write=write, may_pause=True)
        if node.run_file.settings.act and not result.missing and reads_all(result.ranks):
            for board in boards.values():
                board.write(Field.TIMEOUT_RAISED, 1)
        done()
        return ev.LookTaken(
            look=action.look,
            attempt=action.attempt,
            ranks=[_with_batch(look, batches.get(look.global_rank, {})) for look in result.ranks],
            missing=result.missing,
            took_s=round(result.took_s, 3),
            folder=look_name(action.attempt, action.look),
            readings=[*result.readings, *power],
        )

    def instead(error: str) -> ev.Event:
        missing = {rank.global_rank: error for rank in ranks}
        return ev.LookTaken(look=action.look, attempt=action.attempt, ranks=[], missing=missing)

    node.in_background(work, instead)


def look_now(node: RankContext, ranks: list[ev.Rank], samples: int) -> Callable[[], LookResult]:
    """For a person: a look at these of the node's ranks, to be taken by a worker thread; nothing is kept of it."""
    return partial(_look_by(node, node.ingest.attempt, ranks), folder=None, samples=samples)


def _look_by(node: RankContext, attempt: int, ranks: list[ev.Rank]) -> partial[LookResult]:
    """take_look, with what the supervisor knows now; a worker thread says the rest, and calls it."""
    boards = dict(node.sampler.boards)
    return partial(
        take_look,
        attempt,
        ranks,
        boards=boards,
        clock=node.clock,
        sockets_dir=node.sockets,
        recorders=node.recorders,
    )


def begin_exits(
    node: RankContext,
    action: ac.ReadExits,
    folders: Sequence[str],
    name_of: Callable[[str], str] = lambda path: path,
) -> None:
    """Read what fallen ranks left, and feed the event.

    folders: whose file systems matter to the run. name_of: a file's path → the checkpoint it belongs to.
    """
    folders = [*folders, *node.ingest.failed_saves]
    failed_loads = dict(node.ingest.failed_loads)
    ranks = list(node.ingest.ranks.values())
    log = SharedLog(node.run_file.launcher_pid, node.stderr_from) if node.stderr_from >= 0 else None

    def work() -> ev.Event:
        return read_exits(
            action.attempt,
            ranks,
            sockets_dir=node.sockets,
            clock=node.clock,
            error_files=node.error_files,
            stderr_files=node.stderr_files,
            log=log,
            oom=node.oom,
            folders=folders,
            failed_loads={rank: name_of(path) for rank, path in failed_loads.items()},
        )

    node.in_background(work, lambda error: ev.ExitsRead(attempt=action.attempt, traces=[]))


def _with_batch(look: RankLook, told: Mapping[str, Any]) -> RankLook:
    """The look, with the batch that its rank told, if that is still the one it is at."""
    is_current = told.get("batch", 0) == look.batches + (1 if told.get("is_awaited") else 0)
    return msgspec.structs.replace(look, batch=dict(told)) if told and is_current else look
