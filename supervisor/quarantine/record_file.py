"""One file of the record of quarantined nodes: read, added to, set aside where it is spoilt (quarantine/records.py)."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.node_state import make_folder, write_durably
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.health.quarantine_rules import Record, merge, prune
from guardrun.supervisor.quarantine.record_places import copy_of

SCHEMA = 1
MAX_BYTES = 16 << 20
LOCK_PATIENCE_S = 5.0
LOCK_POLL_S = 0.02


class Known(NamedTuple):
    """What is known of nodes."""

    records: dict[str, Record]
    troubles: list[str]
    """What could not be read, in whole sentences. With any, a node that looks free may be none."""


class _Document(msgspec.Struct, kw_only=True):
    schema: int = SCHEMA
    nodes: dict[str, msgspec.Raw] = {}


def read_file(path: Path) -> Known:
    """What a file says of all its nodes; nothing where there is none."""
    document, troubles = _read_document(path)
    records = {}
    for node, raw in (document.nodes if document else {}).items():
        try:
            records[node] = msgspec.json.decode(raw, type=known_type(Record))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            troubles.append(f"{path}: the entry of {node} cannot be read ({error}).")
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
        return msgspec.json.decode(data, type=known_type(_Document)), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return None, f"is corrupt ({error})"


def list_files(folder: Path) -> list[str]:
    """Names of the files of nodes in a shared folder."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [name for name in names if name.endswith(".json") and not name.startswith(".") and unquote(name) != ".json"]


# Writing --------------------------------------------------------------------------------------------------------


def add_to_file(path: Path, node: str, added: Record, now_wall_s: float) -> list[str]:
    """Add to one file; answers what was wrong there. Raises OSError."""
    make_folder(path.parent)
    with _locked(path) as troubles:
        document, said = _read_document(path)
        if document is not None and document.schema > SCHEMA:
            raise OSError(f"it is of a newer guardrun (schema {document.schema})")
        document = document or _Document()
        if said:
            troubles.extend(_set_aside(path))
        own = Record()
        if node in document.nodes:
            try:
                own = msgspec.json.decode(document.nodes[node], type=known_type(Record))
            except (msgspec.DecodeError, ValueError, RecursionError):
                troubles.extend(_keep_aside(path))
        document.nodes[node] = msgspec.Raw(encode_json(prune(merge(own, added), now_wall_s)))
        data = msgspec.json.format(encode_json(document))
        write_durably(path, data)
        write_durably(copy_of(path), data)
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
