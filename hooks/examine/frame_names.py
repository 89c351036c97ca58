"""Names that a person would use for what a thread is at: the variables of its frames, read without changing them.

Before Python 3.13 a frame's variables are shown in a dictionary that the frame keeps: the one that locals() answers
there. Whoever asks for it has it filled anew, and what a script keeps of it (`config = locals()`) would have more in it
than before, or keep a step's tensors alive. So it is put back: emptied where nobody had asked, else as it was. Whether
somebody had is read from the frame itself, at places that are the same in all releases of a version, and held against
what is known of the frame; where that does not fit, no variables are read.
"""

from __future__ import annotations

import ctypes
import sys

from guardrun.hooks.calls.call_places import is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType
    from typing import Any

    from guardrun.hooks.rank.rank import Rank

MAX_FRAMES = 64
CO_OPTIMIZED = 1
"""Of a function's code: its variables are no dictionary."""
SHOWN_ALIVE = (3, 13)
"""From here on frames show their variables by a view of them."""
LAYOUTS: dict[tuple[int, int], tuple[int, int, int]] = {
    (3, 10): (0, 32, 56),
    (3, 11): (24, 32, 24),
    (3, 12): (24, 0, 40),
}
"""Where a frame object points to its inner frame (0: it has none), and where that has its code, and that dictionary:
bytes, as Include/cpython/frameobject.h and Include/internal/pycore_frame.h of these versions have them."""
ALL = frozenset(("dir", "eval", "exec", "globals", "locals", "vars"))
"""Who mentions one of them may mean any name."""
OF_LIBRARIES = frozenset(
    (
        "accelerator", "criterion", "dataloader", "lr_scheduler", "model", "optimizer", "scaler", "scheduler",
        "train_dataloader", "train_loader", "trainer",
    )
)  # fmt: skip
"""Variables that are taken from frames of libraries as well, where the script has none of that name."""


class UnreadableError(Exception):
    """A frame's variables can't be read without leaving something behind."""


def read_variables(frame: Any) -> dict[str, Any]:
    """A frame's variables by name. Raises UnreadableError."""
    if not frame.f_code.co_flags & CO_OPTIMIZED or sys.version_info >= SHOWN_ALIVE:
        return dict(frame.f_locals)
    pointer = _dictionary_of(frame)
    held: Any = ctypes.cast(pointer, ctypes.py_object).value if pointer else None
    before = dict(held) if held is not None else {}
    shown = frame.f_locals
    variables = dict(shown)
    if held is not None or sys.getrefcount(shown) <= 3:  # the frame's, ours, and the call's: nobody else has it
        shown.clear()
        shown.update(before)
    return variables


def _dictionary_of(frame: Any) -> int:
    """Where the dictionary is that the frame keeps; 0: it has none."""
    layout = LAYOUTS.get(sys.version_info[:2])
    if layout is None or sys.implementation.name != "cpython":
        raise UnreadableError("variables of frames can't be read on this Python without leaving something behind")
    inner_at, code_at, dictionary_at = layout

    def word(address: int) -> int:
        return ctypes.c_size_t.from_address(address).value

    inner = word(id(frame) + inner_at) if inner_at else id(frame)
    if word(inner + code_at) != id(frame.f_code):
        raise UnreadableError("this Python keeps its frames in another way than others of its version")
    return word(inner + dictionary_at)


def frames_from(frame: Any) -> list[Any]:
    """It and its callers, MAX_FRAMES at most."""
    found: list[Any] = []
    while frame is not None and len(found) < MAX_FRAMES:
        found.append(frame)
        frame = frame.f_back
    return found


def mentioned(code: CodeType) -> frozenset[str] | None:
    """All names that a code, and what is defined in it, may look up; None: any."""
    names: set[str] = set()
    waiting = [code]
    while waiting:
        one = waiting.pop()
        names.update(one.co_names)
        waiting += [each for each in one.co_consts if isinstance(each, type(code))]
    return None if names & ALL else frozenset(names)


class Names:
    """What a thread's frames call things."""

    def __init__(self, frame: Any, rank: Rank, optimizer: Any) -> None:
        """frame: of that thread, innermost. optimizer: the one that has just stepped; None: none has."""
        frames = frames_from(frame)
        self._users = [one for one in frames if is_users(one.f_code.co_filename)]
        self._libraries = [one for one in frames if not is_users(one.f_code.co_filename)]
        self._rank, self._optimizer = rank, optimizer
        self.trouble = ""
        """Why variables are missing."""

    def place(self) -> str:
        """The line of the user's own code that the thread is at: `train (train.py:73)`; empty: there is none."""
        if not self._users:
            return ""
        frame = self._users[0]
        code = frame.f_code
        return f"{code.co_name} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"

    def find(self, wanted: frozenset[str] | None) -> dict[str, Any]:
        """Those of the wanted ones (None: all) that there are: innermost first, then the script's, then libraries'."""
        found: dict[str, Any] = {}

        def add(names: dict[str, Any], only: Iterable[str] | None = None) -> None:
            for name in list(names) if only is None else only:
                if name in names and name not in found and (wanted is None or name in wanted):
                    found[name] = names[name]

        main = getattr(sys.modules.get("__main__"), "__dict__", {})
        for place, frame in enumerate(self._users):
            add(self._read(frame))
            if not place:
                add(frame.f_globals)
                add(main)
        if not self._users:
            add(main)
        for frame in self._libraries:
            if frame.f_globals.get("__name__", "").startswith("guardrun."):
                continue
            if OF_LIBRARIES.isdisjoint(frame.f_code.co_varnames) and "self" not in frame.f_code.co_varnames:
                continue
            variables = self._read(frame)
            add(variables, OF_LIBRARIES)
            one = variables.get("self")
            if any(kind.__name__ == "Trainer" for kind in type(one).__mro__):
                add({"trainer": one})
                add(getattr(one, "__dict__", {}), OF_LIBRARIES)
        add(self._known())
        return found

    def _known(self) -> dict[str, Any]:
        """What the hooks know of, and modules by their usual names."""
        rank = self._rank
        known: dict[str, Any] = {"optimizers": rank.steps.optimizers() if rank.steps is not None else []}
        if (optimizer := self._optimizer or next(iter(known["optimizers"]), None)) is not None:
            known["optimizer"] = optimizer
        if models := rank.spent.models() if rank.spent is not None else []:
            known["model"] = models[-1]
        modules = {"torch": "torch", "np": "numpy", "dist": "torch.distributed"}
        return known | {name: sys.modules[module] for name, module in modules.items() if module in sys.modules}

    def _read(self, frame: Any) -> dict[str, Any]:
        try:
            return read_variables(frame)
        except UnreadableError as error:
            self.trouble = str(error)
            return {}
