"""A Chrome trace as torch's profiler writes it, read event by event: a file of any size, that a rank has written. Pure.

    {"schemaVersion": 1, "deviceProperties": […], …, "traceEvents": [{event}, {event}, …], "traceName": "…"}

Only `traceEvents` is read. What is no event is passed over, as is one that is broken, if another one follows. Where the
text breaks off, or is none, reading ends. That is said.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

CHUNK_BYTES = 1 << 20
MAX_EVENT_CHARS = 1 << 20
HEAD_CHARS = 4 << 20
"""Before the first event: torch writes what it knows of devices there."""
KEY = '"traceEvents"'
EVENT = "\n  {\n"
"""How torch begins an event, and nothing else."""
_DEVICE = re.compile(r'"deviceProperties": \[\s*\{[^{}]{0,4096}?"name": "([^"\\]{1,160})"')

Read = Callable[[int], bytes]


class ChromeTrace:
    """Reads one."""

    def __init__(self, read: Read, limit: int) -> None:
        """read: so many bytes at most, none at the end. limit: of events that are looked at."""
        self._read = read
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._at = 0
        self._is_at_end = False
        self.device_name = ""
        """Of the first device that its head names."""
        self.trouble = ""
        """Why not all events were read; empty: they were."""

    def events(self) -> Iterator[dict[str, Any]]:
        """One after the other. Raises what read does."""
        if not self._find_first():
            self.trouble = "it has no events"
            return
        decode = json.JSONDecoder().raw_decode
        count = broken = 0
        while True:
            if not self._skip_blanks():
                self.trouble = "it breaks off"
                return
            if self._text[self._at] == "]":
                if broken:
                    self.trouble = f"{broken:,} of its events are no JSON (torch does not escape quotes in names)"
                return
            try:
                event, self._at = decode(self._text, self._at)
            except RecursionError:
                self.trouble = "an event nests without end"
                return
            except ValueError:
                # Whether an event is broken or just not whole yet, only what follows tells.
                if (following := self._text.find(EVENT, self._at + 1)) >= 0:
                    self._at, broken = following, broken + 1
                    continue
                if len(self._text) - self._at > MAX_EVENT_CHARS or not self._more():
                    self.trouble = "it breaks off" if self._is_at_end else "an event is broken, or has no end"
                    return
                continue
            if count >= self._limit:
                self.trouble = f"it has more than {self._limit:,} events"
                return
            count += 1
            if isinstance(event, dict):
                yield event

    def drain(self) -> None:
        """Read what is left, for whoever reads along."""
        while self._read(CHUNK_BYTES):
            pass

    def _find_first(self) -> bool:
        while (found := self._text.find(KEY)) < 0:
            if len(self._text) > HEAD_CHARS or not self._more():
                return False
        if named := _DEVICE.search(self._text[:found]):
            self.device_name = named[1]
        self._at = found + len(KEY)
        for wanted in ":[":
            if not self._skip_blanks() or self._text[self._at] != wanted:
                return False
            self._at += 1
        return True

    def _skip_blanks(self) -> bool:
        """To the next character that says something; False where there is none."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n,":
                self._at += 1
            if self._at < len(self._text):
                return True
            if not self._more():
                return False

    def _more(self) -> bool:
        data = self._read(CHUNK_BYTES)
        self._is_at_end = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, not data)
        self._at = 0
        return bool(data)
