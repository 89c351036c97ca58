"""Text that every encoder takes: file names and arguments may be no UTF-8, and reach us as lone surrogates."""

from __future__ import annotations

from typing import Any

import msgspec


def make_printable(value: Any) -> Any:
    """The same text, or tables and lists of it, with what is no Unicode escaped (`\\udcff`)."""
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
