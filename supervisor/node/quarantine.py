"""The record of quarantined nodes as it is kept: on the node, and where all nodes see it.

STATE/quarantine.json          this node's folder (node/state.py): root's, which holds for everybody, or the user's
                               own, which holds for that user's runs. By node: homes, and disks, are shared
SHARED/quarantine/NODE.json    a file for each node, where [node] shared_dir names a folder
….copy                         the same once more: read where the file itself cannot be
….corrupt-TIME                 what could not be read, set aside by the next writer

What holds is what all of them say together (core/node/quarantine.py). Readers change nothing and never wait for a
writer; writers take turns by a lock, and add to what is there. A file that cannot be read, nor its copy, is no reason
to refuse a run, nor to call the node free: it is told, loudly, wherever anybody asks (`troubles`), and nothing written
there is lost. Nodes whose entries can be read are none the worse for one whose cannot.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from guardrun.supervisor.collect.bounded import run_bounded
from guardrun.supervisor.core.node.quarantine import Isolation, Record, holding, isolate, merge, prune, release
from guardrun.supervisor.node.places import Place, copy_of
from guardrun.supervisor.node.state import make_folder, write_durably
from guardrun.supervisor.printable import encode_json

SCHEMA = 1
MAX_BYTES = 16 << 20
SHARED_PATIENCE_S = 2.0
"""For a shared folder's answer: its file system may be dead."""
LOCK_PATIENCE_S = 5.0
LOCK_POLL_S = 0.02


class Known(NamedTuple):
    """What is known of nodes."""

    records: dict[str, Record]
    troubles: list[str]
    """What could not be read, in whole sentences. With any, a node that looks free may be none."""


class Written(NamedTuple):
    """What came of a change."""

    record: Record
    paths: list[Path]
    troubles: list[str]


class _Document(msgspec.Struct, kw_only=True):
    schema: int = SCHEMA
    nodes: dict[str, msgspec.Raw] = {}


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


def read_holding(places: Sequence[Place], node: str, now_wall_s: float) -> tuple[list[Isolation], list[str]]:
    """The isolations of a node that hold now, and what could not be read."""
    record, troubles = read_node(places, node)
    return holding(record, now_wall_s), troubles


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
            troubles += _write_place(place, node, after, now_wall_s)
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
    places: Sequence[Place], node: str, who: str, now_wall_s: float, reason: str = "", *, is_overriding: bool = False
) -> tuple[Written, list[Isolation]]:
    """Release a node; also what still holds. who, is_overriding: as core's release. Raises OSError, as change."""
    left: list[Isolation] = []

    def alter(record: Record) -> Record:
        nonlocal left
        record, left = release(record, who, now_wall_s, reason, is_overriding=is_overriding)
        return record

    return change(places, node, alter, now_wall_s), left


# Reading --------------------------------------------------------------------------------------------------------


def _read_bounded(place: Place) -> Known:
    if not place.is_shared:
        return _read_place(place)
    answer = run_bounded([lambda: _read_place(place)], workers=1, timeout_s=SHARED_PATIENCE_S)[0]
    if isinstance(answer, Known):
        return answer
    return Known({}, [f"{place.path} did not answer within {SHARED_PATIENCE_S:g} s: {answer or 'is its mount dead?'}."])


def _read_place(place: Place) -> Known:
    document, troubles = _read_document(place.path)
    records = {}
    for node, raw in (document.nodes if document else {}).items():
        try:
            records[node] = msgspec.json.decode(raw, type=Record)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            troubles.append(f"{place.path}: the entry of {node} cannot be read ({error}).")
    return Known(records, troubles)


def _read_document(path: Path) -> tuple[_Document | None, list[str]]:
    """The file, else its copy; None where there is neither, or neither can be read."""
    document, trouble = _decode(path)
    if document is not None:
        return document, []
    copy, worse = _decode(copy_of(path))
    if copy is not None:
        return copy, [f"{path} {trouble or 'is gone'}: its copy is used."]
    if not trouble and not worse:
        return None, []
    return None, [
        f"{path} {trouble or 'is gone'}, and its copy {worse or 'is not there'}: quarantine is not known from it."
    ]


def _decode(path: Path) -> tuple[_Document | None, str]:
    """A file, and what is wrong with it: None and nothing where there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return None, "is too large"
        return msgspec.json.decode(data, type=_Document), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return None, f"is corrupt ({error})"


def _files_beside(place: Place) -> list[Place]:
    """The files of all nodes in a shared folder; the one that was asked for where that does not answer."""
    folder = place.path.parent
    names = run_bounded([lambda: _list(folder)], workers=1, timeout_s=SHARED_PATIENCE_S)[0]
    return [place._replace(path=folder / name) for name in names] if isinstance(names, list) else [place]


def _list(folder: Path) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [name for name in names if name.endswith(".json") and not name.startswith(".") and unquote(name) != ".json"]


# Writing --------------------------------------------------------------------------------------------------------


def _write_place(place: Place, node: str, added: Record, now_wall_s: float) -> list[str]:
    """Add to one file; answers what was wrong there. Raises OSError."""
    make_folder(place.path.parent)
    with _locked(place.path) as troubles:
        document, said = _read_document(place.path)
        if document is not None and document.schema > SCHEMA:
            raise OSError(f"it is of a newer guardrun (schema {document.schema})")
        document = document or _Document()
        if said:
            troubles.extend(_set_aside(place.path))
        own = Record()
        if node in document.nodes:
            try:
                own = msgspec.json.decode(document.nodes[node], type=Record)
            except (msgspec.DecodeError, ValueError, RecursionError):
                troubles.extend(_keep_aside(place.path))
        document.nodes[node] = msgspec.Raw(encode_json(prune(merge(own, added), now_wall_s)))
        data = msgspec.json.format(encode_json(document))
        write_durably(place.path, data)
        write_durably(copy_of(place.path), data)
    return troubles


@contextmanager
def _locked(path: Path) -> Iterator[list[str]]:
    """Hold a file's lock while writing it. One that nobody gives back, or that cannot be had, holds up nothing."""
    troubles: list[str] = []
    descriptor = _open_lock(path.with_name(f".{path.name}.lock"))
    try:
        if descriptor is not None and not _lock(descriptor):
            troubles.append(f"{path} has been locked by somebody for {LOCK_PATIENCE_S:g} s: written all the same.")
        yield troubles
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_lock(path: Path) -> int | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):  # one that another user made can be read at least
        with suppress(OSError):
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    return None


def _lock(descriptor: int) -> bool:
    deadline_s = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(LOCK_POLL_S)
        except OSError:
            return True  # a file system without locks: whoever writes adds, and takes nothing away


def _set_aside(path: Path) -> list[str]:
    aside = _aside_of(path)
    try:
        path.rename(aside)
    except OSError:
        return []
    return [f"{path} could not be read and was set aside as {aside.name}."]


def _keep_aside(path: Path) -> list[str]:
    """Likewise, of a file whose other entries are in order: it stays."""
    aside = _aside_of(path)
    with suppress(OSError):
        write_durably(aside, path.read_bytes())
    return [f"{path} held an entry that could not be read; as it was: {aside.name}."]


def _aside_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}")
