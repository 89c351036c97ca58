"""A safetensors file: its header states its length.

Eight bytes (little endian) of header length, a JSON object with each tensor's data_offsets, the data.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import os
import struct
from typing import Any

from guardrun.supervisor.checkpoints.reading.json_documents import MAX_TEXT_BYTES, TooManyValues, parse_json
from guardrun.supervisor.checkpoints.reading.torch_file import open_source
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole, explain

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
