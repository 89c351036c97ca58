"""The join file: how the other nodes find the coordinator, and the key that it admits.

`.join-KEY` in the guard directory (or wherever `--guard-join` says), JSON, readable by the user alone. Keys never go
through arguments or the environment, which others can read. A head that is requeued writes it anew with the next
session; whoever cannot get through reads it again.

Jobs that torchrun's flags bring together are told apart by id and port, which all nodes write alike, and by the head's
host, which they may not: `.join-KEY@HOST`, HOST being what the head's host calls itself. A node takes, of all for its
KEY, the one whose head goes by a name or an address that it was given or has resolved.

Two heads of one run cannot both write: a file that names the same run and a session not older than the writer's own is
left alone. Between reading and renaming, a lock file beside it (O_EXCL) keeps others out.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import SECRET, make_folders, write_file
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.fleet.transport.curve import Key, KeyPair
from guardrun.supervisor.fleet.transport.envelopes import PROTOCOL

SCHEMA = 1
MAX_BYTES = 64 * 1024
LOCK_STALE_S = 30.0
"""A lock this old is a crashed writer's: writing takes milliseconds, on a slow NFS seconds."""
EVERY = "*"
TRIAL_BYTES = 4096
"""More than a join file is."""
REFUSED = ".refused"
"""Ends the name of the file by which a head says that it did not start (start_failure_files.py)."""
_BESIDE = (".lead", ".lock", ".new", REFUSED)
"""What else is written beside it."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class JoinError(Exception):
    """The join file cannot be used; says why, and what to do."""


class NotThere(JoinError):
    """Not written yet: the head may still be starting."""


class OtherRun(JoinError):
    """It is about another run, or an earlier session: perhaps soon replaced."""


class AlreadyLed(JoinError):
    """Another head leads this run."""


class BeingWritten(AlreadyLed):
    """Somebody else is writing it just now, or was killed while doing so."""


class JoinFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the join file holds. Its keys are secret: `repr` leaves them out."""

    schema: int = SCHEMA
    protocol: int = PROTOCOL
    run_id: str
    session: int
    """As in run.json: +1 for each guardrun that continues the run."""
    run_dir: str
    """On the head; the others may see it, or not."""
    token: str
    head: str
    """The head's name as a node."""
    addresses: list[str]
    """Where the head can be reached, the best first: numeric addresses, or names."""
    port: int
    names: list[str] = []
    """All by which other nodes may know the head's host: names and addresses."""
    server_key: Key
    client: KeyPair | None = None
    """None where each node has a pair of its own (munge.py)."""
    version: str
    """guardrun's."""
    created_wall_s: float

    def __repr__(self) -> str:
        return f"JoinFile(run_id={self.run_id!r}, session={self.session}, head={self.head!r}, port={self.port})"


def join_file_path(guard_dir: Path, key: str) -> Path:
    """Where the join file lies by default. key: the rendezvous' id, or the scheduler's job and step."""
    return guard_dir / f".join-{safe(key, 160)}"


def on_host(path: Path, host: str) -> Path:
    """That of one head among those for the same key; host EVERY: a pattern for all of them."""
    return path.with_name(f"{path.name}@{host if host == EVERY else safe(host)}")


def safe(text: str, limit: int = 60) -> str:
    """As a part of a file's name."""
    return _UNSAFE.sub("_", text)[:limit]


def try_writing(path: Path) -> None:
    """Find out whether a join file can be written there, room on the disk included. Raises OSError."""
    make_folders(path.parent)
    trial = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        write_file(trial, bytes(TRIAL_BYTES), SECRET)
    finally:
        trial.unlink(missing_ok=True)


def write_join_file(path: Path, join: JoinFile) -> None:
    """Write it, readable by the user alone, so that a reader sees all of it or the old one.

    A file that says the same already is left as it is: a supervisor that is started anew needs no room for it.
    Raises AlreadyLed where another head's stands there, JoinError where the folder is not to be trusted, OSError.
    """
    if says_the_same(_present(path), join):
        return
    with _locked(path):
        present = _present(path)
        if present is not None and present.run_id == join.run_id and present.session >= join.session:
            is_own = present.token == join.token  # a guardrun's; its supervisors come one after the other
            if not is_own or present.session > join.session:
                raise AlreadyLed(
                    f"{path}: {present.head} leads session {present.session} of run {present.run_id} already, "
                    f"this is session {join.session}"
                )
        write_file(path, msgspec.json.format(encode_json(join)), SECRET, is_exact=True)
        written = _present(path)
        if written != join:  # two took over one crashed writer's lock: who renamed last leads
            raise AlreadyLed(f"{path}: {written.head if written else 'somebody'} wrote it at the same time")


def says_the_same(present: JoinFile | None, join: JoinFile) -> bool:
    """But for when it was written."""
    return present is not None and msgspec.structs.replace(present, created_wall_s=join.created_wall_s) == join


def remove_join_file(path: Path, join: JoinFile) -> None:
    """Take it away at the run's end, if it is still ours."""
    present = _present(path)
    if present is not None and (present.token, present.session) == (join.token, join.session):
        path.unlink(missing_ok=True)


def read_join_file(path: Path, run_id: str = "", after_session: int = -1) -> JoinFile:
    """Read it. run_id: refuse another run's. after_session: refuse that session's, and older ones.

    Raises NotThere, OtherRun (both may pass with time), JoinError.
    """
    join = parse_join_file(path, read_own(path))
    if run_id and join.run_id != run_id:
        raise OtherRun(f"{path} is run {join.run_id}'s, not {run_id}'s")
    if join.session <= after_session:
        raise OtherRun(f"{path} is of session {join.session}, which is over")
    return join


def find_join_file(path: Path, names: Collection[str]) -> JoinFile:
    """Read the one that is meant.

    path: it, or a pattern (on_host) for the heads of any host; then it is the newest whose head goes by one of these
    names. Raises NotThere, or JoinError where there is none but such as cannot be used.
    """
    if not path.name.endswith(f"@{EVERY}"):
        return read_join_file(path)
    unusable: list[JoinError] = []
    found: list[tuple[float, JoinFile]] = []
    for one in path.parent.glob(path.name):
        if one.name.endswith(_BESIDE):
            continue
        try:
            join = read_join_file(one)
        except NotThere:
            continue
        except JoinError as error:
            unusable.append(error)
            continue
        if not set(names).isdisjoint(join.names):
            found.append((_mtime(one), join))
    if found:
        return max(found, key=lambda each: each[0])[1]
    raise unusable[0] if unusable else NotThere(f"{path} is not there (yet)")


def parse_join_file(path: Path, data: bytes) -> JoinFile:
    """Raises JoinError."""
    try:
        join = msgspec.json.decode(data, type=known_type(JoinFile))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JoinError(f"{path} is no join file: {error}") from None
    if join.schema != SCHEMA or join.protocol != PROTOCOL:
        raise JoinError(
            f"{path} was written by guardrun {join.version} (schema {join.schema}, protocol {join.protocol}); "
            f"this one speaks schema {SCHEMA}, protocol {PROTOCOL}: use the same version on all nodes"
        )
    if not join.addresses or not 0 < join.port < 65536:
        raise JoinError(f"{path} names no address, or no port")
    return join


def read_own(path: Path) -> bytes:
    """The file's bytes, if it is the user's alone. Links are not followed: whoever may write the folder sets those."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotThere(f"{path} is not there (yet)") from None
    except OSError as error:
        raise JoinError(f"{path}: {error.strerror}") from None
    try:
        _check_own(path, os.fstat(fd))
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:  # ESTALE: replaced on an NFS server meanwhile
        raise NotThere(f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise JoinError(f"{path} is no join file: larger than {MAX_BYTES} bytes")
    return data


def _check_own(path: Path, status: os.stat_result) -> None:
    """Raises JoinError where it is no file, or not the user's alone."""
    if not stat.S_ISREG(status.st_mode):
        raise JoinError(f"{path} is no file")
    if status.st_uid != os.geteuid():
        raise JoinError(f"{path} belongs to uid {status.st_uid}, not to {os.geteuid()}: it is not used")
    if status.st_mode & 0o077:
        raise JoinError(
            f"{path} can be read by others (mode {stat.S_IMODE(status.st_mode):04o}), so its keys are no secret: "
            f"remove it and start the run anew, or, where nobody else has been there, chmod 600 {path}"
        )


def _present(path: Path) -> JoinFile | None:
    """What stands there, if it is a join file that can be read. What belongs to others raises JoinError."""
    try:
        data = read_own(path)
    except NotThere:
        return None
    try:
        return parse_join_file(path, data)
    except JoinError:
        return None  # of another version, or torn: replaced


def replace_own(path: Path, data: bytes) -> None:
    """Write it in place of what the user had there. Raises OSError, JoinError where that belongs to others."""
    make_folders(path.parent)
    with suppress(NotThere):
        read_own(path)
    write_file(path, data, SECRET, is_exact=True)


def find_squatter(path: Path) -> str:
    """What of somebody else's keeps this user from writing the join file, in a sentence; empty: nothing.

    A lock that a crashed writer left goes, where its folder lets it: in a sticky one only its owner can remove it.
    """
    lock = _lock_of(path)
    if _owner(lock) not in (None, os.geteuid()) and time.time() - _mtime(lock) >= LOCK_STALE_S:
        with suppress(OSError):
            lock.unlink()
    for one in (path, lock):
        owner = _owner(one)
        if owner not in (None, os.geteuid()):
            return f"{one} belongs to uid {owner}, not to {os.geteuid()}"
    return ""


def _owner(path: Path) -> int | None:
    """None: it is not there, or cannot be looked at."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold PATH.lock, made with O_EXCL. Raises AlreadyLed where another writer holds it."""
    lock = _lock_of(path)
    try:
        fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if time.time() - _mtime(lock) < LOCK_STALE_S:
            raise BeingWritten(f"{lock}: another head is just writing its join file") from None
        lock.unlink(missing_ok=True)  # a crashed writer's; two that find it at once: one of them makes the next
        try:
            fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise BeingWritten(f"{lock}: another head is just writing its join file") from None
    os.close(fd)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _mtime(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
