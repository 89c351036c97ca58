"""Types that msgspec decodes into, made known to it one at a time.

The first time that a Struct is decoded into, msgspec gathers what it has to know of it, and of all that it holds.
Another thread that needs one of these meanwhile finds it half done, and the process ends by SIGSEGV (seen with 0.22).
So whatever is given to msgspec to decode or convert into, in a process that may have threads, goes through here.

A process forked while a thread is in here would find the lock held by a thread that it does not have: forks wait for
their turn, too.
"""

from __future__ import annotations

import os
import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_LOCK = threading.RLock()
_KNOWN: set[object] = set()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def known_type(kind: T) -> T:
    """The same type, once msgspec knows all of it. Raises what msgspec raises of a type that it can't decode into."""
    if kind not in _KNOWN:
        with _LOCK:
            msgspec.json.Decoder(kind)
            _KNOWN.add(kind)
    return kind
