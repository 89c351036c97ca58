"""JSON, JSON lines and safetensors' headers: whole, or cut; and the little that is read from them.

Bounded before anything is built.
"""

from __future__ import annotations

import json
import os
import struct
from typing import IO, Any

from guardrun.supervisor.checkpoints.reading.torch_file import open_source
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole, explain

MAX_TEXT_BYTES = 32 << 20
MAX_VALUES = 3_000_000
"""By the signs between them: so many take a second, and the memory that there is."""
TOO_LONG = "is too long to be looked into"
_JSON_BEGINS = frozenset('{["-0123456789tfnNI')
_SIGNS = (b"[", b"{", b",", b"\n")


class TooManyValues(Exception):
    """Parsing it would take longer than is given for it."""


def parse_json(data: bytes) -> Any:
    """Raises ValueError, RecursionError, TooManyValues."""
    if sum(map(data.count, _SIGNS)) > MAX_VALUES:
        raise TooManyValues
    return json.loads(data.decode("utf-8", "replace").removeprefix("\ufeff"))


def read_json(file: IO[bytes]) -> tuple[Any, Verdict]:
    """Read a JSON file: (value, Whole), or None and why not. Raises OSError."""
    data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        return None, Unjudged(TOO_LONG)
    try:
        return parse_json(data), Whole()
    except TooManyValues:
        return None, Unjudged(TOO_LONG)
    except (ValueError, RecursionError):
        return None, Torn("is damaged (no JSON)" if data.strip(b"\0 \n") else "the file is empty")


def check_json(file: IO[bytes]) -> Verdict:
    """JSON, or JSON lines; what does not begin like either, or is too long, is of another kind. Raises OSError."""
    _, verdict = read_json(file)
    if isinstance(verdict, Unjudged):
        return Whole()
    if isinstance(verdict, Whole):
        return verdict
    file.seek(0)
    data = file.read(MAX_TEXT_BYTES)
    begin = data[:64].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")[:1]
    if data.strip(b"\0 \r\n") and begin not in _JSON_BEGINS:
        return Whole()
    return Whole() if _are_lines(data) else verdict


def _are_lines(data: bytes) -> bool:
    at = count = 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        line = data[at:end]
        at = end + 1
        if not line.strip():
            continue
        count += 1
        try:
            parse_json(line)
        except (ValueError, RecursionError, TooManyValues):
            return False
    return count > 1


# Safetensors --------------------------------------------------------------------------------------------------------
# A safetensors file: its header states its length.
#
# Eight bytes (little endian) of header length, a JSON object with each tensor's data_offsets, the data.
# Format: https://github.com/huggingface/safetensors#format


MAX_HEADER_BYTES = 100_000_000
"""The reference implementation's own limit."""
_MAX_OFFSET = 1 << 63
_TOO_LONG = "its header is too long to be looked into"


def parse_end(header: bytes) -> int:
    """Say how many bytes of data a header promises. Raises ValueError, RecursionError, TooManyValues."""
    tensors: Any = parse_json(header)
    if not isinstance(tensors, dict):
        raise ValueError("not an object")
    end = 0
    for name, tensor in tensors.items():
        if name == "__metadata__":
            continue
        first, last = tensor["data_offsets"]
        if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last < _MAX_OFFSET):
            raise ValueError("offsets")
        end = max(end, last)
    return end


def check_safetensors(path: str | int) -> Verdict:
    """Say whether the file is as long as its header says."""
    try:
        with open_source(path) as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if not size:
                return Torn("the file is empty")
            if len(prefix) < 8:
                return Torn("ends within its header")
            (length,) = struct.unpack("<Q", prefix)
            if length > MAX_HEADER_BYTES:
                return Torn("is no safetensors file (its header would be too long)")
            if 8 + length > size:
                return Torn("ends within its header")
            if length > MAX_TEXT_BYTES:
                return Unjudged(_TOO_LONG)
            end = parse_end(file.read(length))
    except OSError as error:
        return Torn(explain(error))
    except TooManyValues:
        return Unjudged(_TOO_LONG)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Torn("has a damaged header")
    if 8 + length + end != size:
        return Torn(f"has {size} bytes where its header says {8 + length + end}")
    return Whole()
