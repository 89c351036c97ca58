"""Whether what torch.compile has compiled would be compiled once more if there were global hooks of modules.

dynamo looks for such hooks when it compiles, and most often not again: only where a module with hooks of its own is
compiled does it go by what torch's global dictionaries have in them. That stands in the guards of what it has compiled,
which are read as text, as they print themselves for whoever debugs them.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ("_global_forward_hooks", "_global_forward_pre_hooks")
MARKS = ("DictGuardManager", "LENGTH", "DICT_", "KEYS", "EQUALS", "ID_MATCH")
"""Of guards on more than a dictionary's type."""
MAX_NS = 2_000_000_000


def find_obstacle() -> str:
    """Why global hooks would have something compiled anew, in words; empty: they would not."""
    codes: Any = getattr(getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None), "seen", None)
    if not codes:
        return ""  # nothing is compiled
    try:
        read: Any = sys.modules["torch._C._dynamo.eval_frame"]._debug_get_cache_entry_list
        until_ns = monotonic_ns() + MAX_NS
        for known in list(codes):
            code = known()
            for entry in read(code) if code is not None else []:
                if depends_on_hooks(str(entry.guard_manager)):
                    return "modules with hooks of their own are compiled: they would be compiled once more for ours"
                if monotonic_ns() > until_ns:
                    return "too much is compiled to find out whether it would be compiled once more for our hooks"
    except Exception as error:
        return f"it can't be told whether what is compiled would be compiled once more ({type(error).__name__})"
    return ""


def depends_on_hooks(guards: str) -> bool:
    """Whether guards, as text, go by what is in torch's global dictionaries of hooks."""
    return any(
        any(name in line for name in NAMES) and any(mark in line for mark in MARKS) for line in guards.splitlines()
    )
