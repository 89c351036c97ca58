"""The record of quarantined nodes as it is kept: on the node, and where all nodes see it.

STATE/quarantine.json          this node's folder (base/node_state.py): root's, which holds for everybody, or the user's
                               own, which holds for that user's runs. By node: homes, and disks, are shared
SHARED/quarantine/NODE.json    a file for each node, where [node] shared_dir names a folder
….copy                         the same once more: read where the file itself cannot be
….corrupt-TIME                 what could not be read, set aside by the next writer

What holds is what all of them say together (health/quarantine_rules.py). Readers change nothing and never wait for a
writer; writers take turns by a lock, and add to what is there. A file that cannot be read, nor its copy, is no reason
to refuse a run, nor to call the node free: it is told, loudly, wherever anybody asks (`troubles`), and nothing written
there is lost. Nodes whose entries can be read are none the worse for one whose cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.health.quarantine_rules import (
    EVERYBODY,
    Isolation,
    Record,
    counting,
    isolate,
    merge,
    release,
)
from guardrun.supervisor.quarantine.record_file import (
    LOCK_PATIENCE_S,
    Known,
    add_to_file,
    list_files,
    read_file,
)
from guardrun.supervisor.quarantine.record_places import Place

SHARED_PATIENCE_S = 2.0
"""For a shared folder's answer: its file system may be dead."""
WRITE_PATIENCE_S = LOCK_PATIENCE_S + 5.0
SILENCE_S = 30.0
"""How long a shared folder that did not answer is not asked again: each that asks is stuck there."""

_silent: dict[Path, float] = {}
"""Shared folders that did not answer → when (CLOCK_MONOTONIC)."""


class Written(NamedTuple):
    """What came of a change."""

    record: Record
    paths: list[Path]
    troubles: list[str]


def read_node(places: Sequence[Place], node: str) -> tuple[Record, list[str]]:
    """All that is said of one node, and what could not be read. Next to free where nothing was ever written."""
    known = [_read_bounded(place) for place in places]
    record = merge(*(one.records[node] for one in known if node in one.records))
    return record, [trouble for one in known for trouble in one.troubles]


def read_all(places: Sequence[Place]) -> Known:
    """All that is said of all nodes; of shared folders, every node's file."""
    shared = [place for place in places if place.is_shared]
    wanted = [place for place in places if not place.is_shared]
    for place in shared:
        wanted += _files_beside(place)
    records: dict[str, Record] = {}
    troubles: list[str] = []
    for place in wanted:
        known = _read_bounded(place)
        troubles += known.troubles
        for node, record in known.records.items():
            records[node] = merge(records.get(node, Record()), record)
    return Known(records, troubles)


def read_holding(
    places: Sequence[Place], node: str, now_wall_s: float, uid: int = EVERYBODY
) -> tuple[list[Isolation], list[str]]:
    """The isolations that keep a user's runs (by default: everybody's) from a node now, and what could not be read."""
    record, troubles = read_node(places, node)
    return counting(record, now_wall_s, uid), troubles


def change(places: Sequence[Place], node: str, alter: Callable[[Record], Record], now_wall_s: float) -> Written:
    """Have `alter` add to a node's record, and keep what it answers wherever this process may write.

    It is written nowhere where nothing was added. Raises OSError where no place at all could be written.
    """
    before, troubles = read_node(places, node)
    after = alter(before)
    if after == before:
        return Written(before, [], troubles)
    written: list[Path] = []
    failure: OSError | None = None
    for place in places:
        if not place.is_written:
            continue
        try:
            troubles += _write(place, node, after, now_wall_s)
            written.append(place.path)
        except OSError as error:
            failure = error
            troubles.append(f"{place.path} could not be written: {error.strerror or error}.")
    if not written:
        raise failure or OSError("there is no folder to keep it in")
    return Written(after, written, troubles)


def isolate_node(places: Sequence[Place], node: str, isolation: Isolation, now_wall_s: float) -> tuple[Written, str]:
    """Isolate a node; also why it was not (empty: it was). Raises OSError, as change."""
    refused = ""

    def alter(record: Record) -> Record:
        nonlocal refused
        record, refused = isolate(record, isolation, now_wall_s)
        return record

    return change(places, node, alter, now_wall_s), refused


def release_node(
    places: Sequence[Place],
    node: str,
    who: str,
    now_wall_s: float,
    reason: str = "",
    *,
    is_overriding: bool = False,
    only: Collection[str] | None = None,
    uid: int | None = None,
) -> tuple[Written, list[Isolation]]:
    """Release a node; also what still holds. who, …, uid: as core's release. Raises OSError, as change."""
    left: list[Isolation] = []

    def alter(record: Record) -> Record:
        nonlocal left
        record, left = release(record, who, now_wall_s, reason, is_overriding=is_overriding, only=only, uid=uid)
        return record

    return change(places, node, alter, now_wall_s), left


# Shared folders may lie on a file system that does not answer ------------------------------------------------


def _read_bounded(place: Place) -> Known:
    if not place.is_shared:
        return read_file(place.path)
    if not _is_silent(place):
        answer = run_bounded([lambda: read_file(place.path)], workers=1, timeout_s=SHARED_PATIENCE_S)[0]
        if isinstance(answer, Known):
            return answer
        if answer is not None:
            return Known({}, [f"{place.path} could not be read: {answer}."])
        _silent[place.path.parent] = time.monotonic()
    return Known(
        {}, [f"{place.path.parent} does not answer: is its mount dead? What it says of quarantine is not known."]
    )


def _write(place: Place, node: str, added: Record, now_wall_s: float) -> list[str]:
    """As add_to_file; a shared folder that does not answer is an OSError, too."""
    if not place.is_shared:
        return add_to_file(place.path, node, added, now_wall_s)
    if not _is_silent(place):
        job = [lambda: add_to_file(place.path, node, added, now_wall_s)]
        answer = run_bounded(job, workers=1, timeout_s=WRITE_PATIENCE_S)[0]
        if isinstance(answer, list):
            return answer
        if answer is not None:
            raise answer
        _silent[place.path.parent] = time.monotonic()
    raise OSError("it does not answer: is its mount dead?")


def _is_silent(place: Place) -> bool:
    silent_s = _silent.get(place.path.parent)
    return silent_s is not None and time.monotonic() - silent_s < SILENCE_S


def _files_beside(place: Place) -> list[Place]:
    """The files of all nodes in a shared folder; the one that was asked for where that does not answer."""
    folder = place.path.parent
    names = run_bounded([lambda: list_files(folder)], workers=1, timeout_s=SHARED_PATIENCE_S)[0]
    return [place._replace(path=folder / name) for name in names] if isinstance(names, list) else [place]
