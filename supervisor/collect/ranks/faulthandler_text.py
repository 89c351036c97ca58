"""The text that faulthandler writes: CPython's Python/traceback.c, 3.10 to 3.14.

Threads have no native id in it, only pthread's. The main thread is written last: the interpreter lists the newest
thread first.
"""

from __future__ import annotations

import re

from guardrun.supervisor.engine.model.looks import Frame, ThreadLook

MAX_FRAMES = 60

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[(.*)\] )?\(most recent call first\):")
_STACK = re.compile(r"^Stack \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')

_FATAL = "Fatal Python error: "
_CURRENT = "Current thread 0x"
_OTHER = "\nThread 0x"


def parse_fatal(text: str) -> list[Frame]:
    """Parse what a fatal signal left: the last one's stack, innermost first, of the thread that it met.

    Where that runs no Python (gloo's own thread ends the process), the main thread's.
    """
    last = text[max(text.rfind(_FATAL), 0) :]
    current = last.partition(_CURRENT)[2]
    for part in (f"{_CURRENT}{current.partition(_OTHER)[0]}" if current else "", last):
        threads = parse_faulthandler(part)
        if threads:
            return threads[0].frames
    return []


def parse_faulthandler(text: str, main_tid: int = 0) -> list[ThreadLook]:
    """Parse a dump of all threads, the main one first.

    main_tid is the main thread's id (the pid); the others read 0. Other text around the dump is passed over, threads
    without Python frames are left out.
    """
    threads: list[tuple[str, list[Frame]]] = []
    frames: list[Frame] | None = None
    for line in text.splitlines():
        head = _THREAD.match(line) or _STACK.match(line)
        if head is not None:
            frames = []
            threads.append(((head[1] or "") if head.re is _THREAD else "", frames))
        elif match := _FRAME.match(line):
            if frames is not None and len(frames) < MAX_FRAMES:
                frames.append(Frame(match[3], match[1], int(match[2]) if match[2].isdigit() else 0))
        elif line.strip() and not line.startswith("  "):
            frames = None  # Other text, 3.14's C stack among it.
    # The main thread is last even if it shows no frame.
    looks = [
        ThreadLook(tid=main_tid if is_last else 0, name=name, is_main=is_last, frames=frames)
        for is_last, (name, frames) in zip([False] * (len(threads) - 1) + [True], threads, strict=False)
        if frames
    ]
    return sorted(looks, key=lambda look: not look.is_main)
