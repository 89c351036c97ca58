"""What an interpreter had used of a CPU by the time it was up, and what importing torch took of it.

Not imported: a .pth file of the environment (tests/support/startup_log.py writes it) has every Python that is started
run this, where TEST_STARTUP_LOG names the file of a run of the tests. It runs beside whatever a test looks at, hence:
the standard library's quickest parts only, nothing in sys.modules, nothing ever raised, and once torch is in, nothing
left in sys.meta_path. A process that was forked rather than started does not come by here: it had nothing to start.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

LOG = os.environ.get("TEST_STARTUP_LOG", "")


def note(what: str, cpu_s: float) -> None:
    """Append a line to the run's file, in one write: others append to it at the same time.

    Not made anew: what outlives the run must not leave a file behind.
    """
    try:
        log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(log, f"{what} {os.getpid()} {cpu_s:.6f}\n".encode())
    except OSError:
        pass
    finally:
        os.close(log)


class Watch:
    """A meta path finder that finds nothing of its own: it sees torch being imported, once."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let those behind this one find torch, and borrow its loader's exec_module.

        guardrun's own finder asks all others in turn, too: asked by it, this one asks only those behind, and asks
        nobody where it is just asking.
        """
        if name != "torch" or self._is_asking or self not in sys.meta_path:
            return None
        self._is_asking = True
        try:
            for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
                spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        self._borrow(spec.loader)
                    return spec
            return None
        finally:
            self._is_asking = False

    def _borrow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            began_s = time.process_time()
            try:
                execute(module)
            finally:
                note("torch", time.process_time() - began_s)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass  # a loader that takes no attributes: not measured


# In a virtual environment site comes by twice (CPython 3.11 and others).
if not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
    note("start", time.process_time())
    sys.meta_path.insert(0, Watch())
