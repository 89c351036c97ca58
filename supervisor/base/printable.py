"""Text that every encoder takes, and that does nothing to who reads it.

File names and arguments may be no UTF-8, and reach us as lone surrogates; they, and what ranks say, may hold characters
that steer a terminal or turn the order of what is read around (C0, C1, bidirectional overrides).
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_IN_JSON = re.compile(f"{_STEERING.pattern}|[\ud800-\udfff]")


def make_harmless(text: str) -> str:
    r"""The same text, with what would steer its reader's terminal or page written out (`\x1b`, `\u202e`)."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def make_harmless_json(text: str) -> str:
    """Likewise JSON, which says the same afterwards."""
    return _IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], text)


def make_printable(value: Any) -> Any:
    r"""The same text, or tables and lists of it, with what is no Unicode escaped (`\udcff`)."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {make_printable(key): make_printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_printable(item) for item in value]
    return value


def encode_json(value: Any) -> bytes:
    """JSON of structs or plain values, whatever their texts hold."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(make_printable(msgspec.to_builtins(value, str_keys=True)))


def encode_msgpack(value: Any) -> bytes:
    """Likewise, msgpack."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(make_printable(msgspec.to_builtins(value)))
