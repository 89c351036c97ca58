"""One file of torch.save's, zip or legacy: is it whole, and what is in it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any, NamedTuple

from guardrun.supervisor.checkpoints.reading.pickles import (
    BadPickle,
    Name,
    Node,
    Source,
    TooDeep,
    TooLong,
    Walk,
    walk_pickle,
)
from guardrun.supervisor.checkpoints.reading.torch_zip import (
    BadZip,
    OtherFormatError,
    Record,
    Span,
    TooManyError,
    check_crc,
    has_checksums,
    read_records,
)
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole, explain

CRC_LIMIT_BYTES = 64 << 20
"""Up to this size every byte is read and compared with its CRC: 0.1 s from a page cache."""
PICKLE_LIMIT_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
ZEROS_BYTES = 512
"""So many of them at a file's beginning are what a file system leaves of a file that never reached the disk."""
_MAX_COUNT = 1 << 63
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""torch/serialization.py, MAGIC_NUMBER."""

_ITEM_BYTES = {
    # torch/storage.py, _dtype_to_storage_type_map; what is missing here is not compared.
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(
        ("CharStorage", "ByteStorage", "BoolStorage", "QInt8Storage", "QUInt8Storage", "UntypedStorage"), 1
    ),
    "ComplexDoubleStorage": 16,
}
_STEP_KEYS = (
    *("global_step", "step", "iter_num", "iteration", "iter", "global_steps", "steps", "num_steps"),
    *("num_updates", "current_step", "train_step", "steps_run", "it", "next_step"),
)
_OPTIMIZER_KEYS = frozenset(("param_groups", "exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg"))
_MODEL_KEYS = frozenset(
    ("model", "state_dict", "model_state_dict", "model_state", "module", "net", "network", "weights")
)
_LOOK_DEPTH = 6
_LOOK_LIMIT = 200_000
"""Nodes looked at in all, those of the first level (a flat state with all of its tensors) in any case first."""
_LOOK_EACH = 2000
"""Of each below: what tells an optimizer or a model stands at the beginning."""
MAX_KEYS = 200
MAX_STEP = 1 << 53
"""What JSON's readers agree on."""
TOO_MANY = "its zip directory is too long to be looked into"
TOO_DEEP = "a key in its pickle would be hashed for ever"
TOO_LONG = "its pickle is too long to be looked into"


class Contents(NamedTuple):
    """What a torch.save file holds."""

    keys: tuple[str, ...]
    """Of the top level, where that is a dictionary; the first MAX_KEYS."""
    has_optimizer: bool
    has_model: bool
    tensors: int
    step: int | None


def _item_bytes(kind: Any) -> int | None:
    return _ITEM_BYTES.get(kind.name.rpartition(" ")[2]) if isinstance(kind, Name) else None


def _key_text(key: Any) -> str | None:
    """A storage's key, as the archive names it; None: none that torch would write, and no end of text perhaps."""
    if isinstance(key, int):
        return str(key) if abs(key) < _MAX_COUNT else None
    return key if isinstance(key, str) else None


def _storages(walk: Walk) -> dict[str, tuple[int | None, int]]:
    """Per storage key: bytes of an item (None: unknown to us), and the number of items."""
    found: dict[str, tuple[int | None, int]] = {}
    for entry in walk.persistent:
        if isinstance(entry, tuple) and len(entry) >= 5 and entry[0] == "storage" and isinstance(entry[4], int):
            key = _key_text(entry[2])
            if key is not None and 0 <= entry[4] < _MAX_COUNT:
                found[key] = (_item_bytes(entry[1]), entry[4])
    return found


def _read_pickle(span: Span, record: Record) -> tuple[Any, Walk] | None:
    """Read data.pkl; None where it is too long to be looked into."""
    if record.size > PICKLE_LIMIT_BYTES:
        return None
    try:
        return walk_pickle(span.read(record.offset, record.size))
    except TooLong:
        return None


def check_zip(span: Span, *, deep: bool = False) -> None:
    """Check one archive of torch.save's. Raises BadZip (the reason), TooManyError, TooDeep, MemoryError and OSError."""
    records = read_records(span)
    data = records.get("data.pkl")
    if data is None:
        raise OtherFormatError("is a zip archive, but none of torch.save's (no data.pkl)")
    if "version" not in records and ".data/version" not in records:
        raise BadZip("lacks its version record")
    if has_checksums(records):
        is_small = span.size <= CRC_LIMIT_BYTES
        for record in records.values():
            if deep or is_small or not record.name.startswith("data/"):
                check_crc(span, record)
    try:
        read = _read_pickle(span, data)
    except BadPickle as error:
        raise BadZip(f"has a damaged data.pkl ({error})") from error
    if read is None:
        return
    for key, (item_bytes, count) in _storages(read[1]).items():
        storage = records.get(f"data/{key}")
        if storage is None:
            raise BadZip(f"lacks tensor data (data/{key})")
        if item_bytes is not None and storage.size != item_bytes * count:
            raise BadZip(f"has tensor data of the wrong length (data/{key})")


def _check_legacy(file: IO[bytes], size: int) -> None:
    """Check a file from before torch 1.6 (or `_use_new_zipfile_serialization=False`). Raises BadZip, BadPickle."""
    source = Source(file, size)
    if walk_pickle(source)[0] != LEGACY_MAGIC:
        raise OtherFormatError("is a pickle, but none of torch.save's")
    walk_pickle(source)  # The protocol's version.
    walk_pickle(source)  # The writing machine.
    _, walk = walk_pickle(source)
    keys, _ = walk_pickle(source)
    if not isinstance(keys, list):
        raise BadZip("lacks its list of tensors")
    storages = _storages(walk)
    for key in keys:
        item_bytes, expected = storages.get(_key_text(key) or "", (None, -1))
        header = file.read(8)
        if len(header) != 8:
            raise BadZip("ends too early: tensor data is missing")
        (count,) = struct.unpack("<q", header)
        if item_bytes is None:
            return  # Where the next one begins cannot be known.
        if count != expected:
            raise BadZip("has tensor data of the wrong length")
        file.seek(count * item_bytes, os.SEEK_CUR)
        if file.tell() > size:
            raise BadZip("ends too early: tensor data is missing")


@contextmanager
def open_source(source: str | int) -> Iterator[IO[bytes]]:
    """Open a path; or read what a descriptor stands for, from its beginning, and leave the descriptor open."""
    with open(source, "rb", closefd=not isinstance(source, int)) as file:
        file.seek(0)
        yield file


def check_torch_file(path: str | int, *, deep: bool = False) -> Verdict:
    """Say whether what torch.save wrote to path is all there.

    A cut anywhere is found; a changed bit in the directory and in the small records always, elsewhere up to
    CRC_LIMIT_BYTES or with deep. The legacy format has no checksums: there, cuts only.
    """
    try:
        with open_source(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return Torn("the file is empty")
            start = file.read(4)
            file.seek(0)
            if start[:2] == b"PK":
                check_zip(Span(file.fileno(), 0, size), deep=deep)
            elif start[:1] == b"\x80":
                _check_legacy(file, size)
            else:
                return Torn("is no file of torch.save's")
    except OSError as error:
        return Torn(explain(error))
    except (BadZip, BadPickle) as error:
        return Torn(str(error))
    except TooLong:
        return Unjudged(TOO_LONG)
    except TooManyError:
        return Unjudged(TOO_MANY)
    except TooDeep:
        return Unjudged(TOO_DEEP)
    return Whole()


def check_companion(path: str | int, *, deep: bool = False) -> Verdict:
    """Say whether a file beside those that torch.save wrote is all there, by its first bytes, whatever its name.

    Of a format that is not known here nobody can tell: it is, but for a beginning of zeros.
    """
    try:
        with open_source(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(HEAD_BYTES)
            if not head:
                return Torn("the file is empty")
            if len(head) >= ZEROS_BYTES and not head[:ZEROS_BYTES].strip(b"\0"):
                return Torn("begins with zeros")
            file.seek(0)
            if head[:4] == b"PK\3\4":
                check_zip(Span(file.fileno(), 0, size), deep=deep)
            elif head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5") and b"joblib" not in head:
                # joblib writes arrays between a pickle's opcodes, where only itself finds its way.
                _check_legacy(file, size)
    except OSError as error:
        return Torn(explain(error))
    except (OtherFormatError, TooLong, TooManyError):
        pass
    except TooDeep:
        return Unjudged(TOO_DEEP)
    except BadPickle as error:
        return Torn(f"is a damaged pickle ({error})")
    except BadZip as error:
        return Torn(str(error))
    return Whole()


def read_root(path: str | int) -> tuple[Any, Walk] | None:
    """Read what a torch.save file would load as, inert; None where that cannot be told."""
    try:
        with open_source(path) as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(2) == b"PK":
                span = Span(file.fileno(), 0, size)
                record = read_records(span).get("data.pkl")
                return _read_pickle(span, record) if record is not None else None
            file.seek(0)
            source = Source(file, size)
            if walk_pickle(source)[0] != LEGACY_MAGIC:
                return None
            walk_pickle(source)
            walk_pickle(source)
            return walk_pickle(source)
    except (OSError, BadZip, BadPickle, TooLong, TooDeep, TooManyError):
        return None


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, Node) and not value.name.startswith("torch._utils"):
        state = value.state.items() if isinstance(value.state, dict) else ()
        return (*islice(state, _LOOK_EACH), *islice((value.items or {}).items(), _LOOK_EACH))
    return ()


def _is_optimizer(key: Any, value: Any) -> bool:
    """An optimizer's state nests; settings called so (`optim_args` of Trainer's training_args.bin) do not."""
    if not isinstance(key, str):
        return False
    if key in _OPTIMIZER_KEYS:
        return True
    if "optim" not in key.lower():
        return False
    return any(isinstance(child, (dict, list, tuple, Node)) for _, child in islice(_children(value), _LOOK_EACH))


def _look_into(root: Any) -> tuple[bool, bool]:
    """(has an optimizer's state, has a model's), breadth first and bounded: both show near the top.

    A list may hold itself, or ten times another that does so in turn: what is looked at is counted before it is taken.
    """
    has_optimizer = has_model = False
    level = list(islice(_children(root), _LOOK_LIMIT))
    left = _LOOK_LIMIT - len(level)
    for depth in range(_LOOK_DEPTH):
        below: list[tuple[Any, Any]] = []
        for key, value in level:
            is_tensor = isinstance(value, Node) and value.name.startswith("torch._utils _rebuild")
            text = key if isinstance(key, str) else ""
            has_optimizer = has_optimizer or _is_optimizer(key, value)
            has_model = has_model or (depth == 0 and text in _MODEL_KEYS and bool(value))
            has_model = has_model or (is_tensor and text.endswith(("weight", "bias")))
            if left > 0:
                taken = list(islice(_children(value), min(left, _LOOK_EACH)))
                left -= len(taken)
                below += taken
        if has_optimizer and has_model:
            break
        level = below
    return has_optimizer, has_model


def _read_step(root: Any) -> int | None:
    if isinstance(root, dict):
        for key in _STEP_KEYS:
            value = root.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_STEP:
                return value
    return None


def describe_torch_file(path: str | int) -> Contents | None:
    """Say what a torch.save file holds; None where it is none, is torn, or is too large to be looked into."""
    read = read_root(path)
    if read is None:
        return None
    root, walk = read
    named = islice(root, MAX_KEYS) if isinstance(root, dict) else ()
    keys = tuple(key for key in named if isinstance(key, str))
    has_optimizer, has_model = _look_into(root)
    tensors = sum(count for name, count in walk.calls.items() if name.startswith("torch._utils _rebuild_tensor"))
    return Contents(keys, has_optimizer, has_model, tensors, _read_step(root))
