"""JSON and JSON lines: whole, or cut; and the little that is read from them. Bounded before anything is built."""

from __future__ import annotations

import json
from typing import IO, Any

from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole

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
