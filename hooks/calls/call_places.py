"""Whose line called: places in the code, found on the way of every collective, and their names on the calls page."""

from __future__ import annotations

from _thread import RLock

from guardrun.hooks.wire.calls_page import MAX_STRINGS, MAX_TEXT_BYTES, STRINGS_AT, TEXT_AT, Head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_NOT_THE_USERS = (
    "site-packages/",
    "dist-packages/",
    "/lib/python3",
    "guardrun/hooks/",
    "/torch/distributed/",
    "/torch/nn/",
    "/torch/utils/",
    "/torch/autograd/",
    "/torch/optim/",
    "/torch/_",
)
"""As supervisor/engine/observation/frames.py has it, which no hook can import; a test holds the two together."""
_TORCHS = ("/torch/", "guardrun/hooks/", "/contextlib.py", "/functools.py")
MAX_FRAMES = 64
"""A state dict that is gathered is some thirty frames below the line that asked for it."""
MAX_PLACES = 4096
"""Code objects that are remembered."""


def is_users(path: str) -> bool:
    """Whether a code object's file is of the user's own code."""
    return not path.startswith("<") and not any(part in path for part in _NOT_THE_USERS)


class Strings:
    """The page's strings: each once, only ever added to."""

    def __init__(self, data: memoryview, words: memoryview) -> None:
        self._bytes = data
        self._words = words
        self._numbers: dict[str, int] = {"": 0}
        # The hooks' thread adds strings, too. A signal's handler may call a collective in the middle of it.
        self._lock = RLock()
        words[Head.STRINGS] = 1

    def close(self) -> None:
        """Let go of the page."""
        self._bytes = self._words = memoryview(b"")

    def intern(self, text: str) -> int:
        """The number of a string on the page; 0 where there is no room for it."""
        number = self._numbers.get(text)
        if number is not None:
            return number
        with self._lock:
            return self._add(text)

    def _add(self, text: str) -> int:
        if text in self._numbers:
            return self._numbers[text]
        words = self._words
        data = text.encode("utf-8", "backslashreplace")
        count, used = words[Head.STRINGS], words[Head.TEXT_BYTES]
        if count >= MAX_STRINGS or used + len(data) > MAX_TEXT_BYTES:
            return 0
        self._bytes[TEXT_AT + used : TEXT_AT + used + len(data)] = data
        words[STRINGS_AT + count] = used << 32 | len(data)
        words[Head.TEXT_BYTES] = used + len(data)
        words[Head.STRINGS] = count + 1
        self._numbers[text] = count
        return int(count)


class Place:
    """Lines of one code object; keeps it alive, so that its id stays its own."""

    __slots__ = ("code", "is_torchs", "is_users", "lines", "packed")

    def __init__(self, code: CodeType) -> None:
        path = code.co_filename
        self.code = code
        self.is_users = is_users(path)
        self.is_torchs = any(part in path for part in _TORCHS)
        self.packed = -1
        """File and function, once they are on the page."""
        self.lines: dict[int, int] = {}


class Places:
    """Finds the line that called; about 0.1 microseconds a frame."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._known: dict[int, Place] = {}

    def find(self, frame: Any) -> int:
        """The innermost line of the user's own code, else the innermost that isn't torch's; as Record.PLACE has it."""
        places = self._known
        other: tuple[Place, Any] | None = None
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            known = places.get(id(code))
            if known is None:
                if len(places) >= MAX_PLACES:
                    places.clear()
                known = places[id(code)] = Place(code)
            if known.is_users:
                return known.lines.get(frame.f_lasti) or self._line(known, frame)
            if other is None and not known.is_torchs:
                other = (known, frame)
            frame = frame.f_back
        return self._line(*other) if other is not None else 0

    def _line(self, known: Place, frame: Any) -> int:
        if known.packed < 0:
            intern = self._strings.intern
            known.packed = intern(known.code.co_filename) << 48 | intern(known.code.co_name) << 32
        place = known.lines[frame.f_lasti] = known.packed | (frame.f_lineno or 0)
        return place
