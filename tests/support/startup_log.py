"""How much of a run of the tests was starting Python and importing torch, as each interpreter says itself.

    python -m tests.support.startup_log      writes the .pth file for this interpreter's environment: `make setup-dev`

tests/support/startup_cost.py writes the lines that are read here.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TEST_STARTUP_LOG"
"""Not GUARDRUN_…: guardrun warns of unknown ones, and clears them from what it starts."""
SCRIPT = Path(__file__).with_name("startup_cost.py")
PTH = "guardrun_startup_cost.pth"


@dataclass(frozen=True)
class StartupCost:
    """Summed over all interpreters of a run, in CPU seconds."""

    starts: int = 0
    start_s: float = 0.0
    torch_imports: int = 0
    torch_s: float = 0.0
    without_torch: int = 0
    """Of the starts."""

    @property
    def total_s(self) -> float:
        return self.start_s + self.torch_s


def pth_line(script: Path) -> str:
    """What site runs at every start. Nothing without the variable; through a loader, which keeps compiled code.

    No name but os is bound, and whether the file is still there is asked first: site prints what a line raises.
    """
    loader = f"__import__('_frozen_importlib_external').SourceFileLoader('startup_cost', {str(script)!a})"
    return (
        f"import os; os.environ.get('{VARIABLE}') and os.path.exists({str(script)!a}) "
        f"and exec({loader}.get_code('startup_cost'), {{'__name__': 'startup_cost'}})\n"
    )


def install(folder: Path) -> Path:
    """Write the .pth file into a folder of site-packages."""
    path = folder / PTH
    path.write_text(pth_line(SCRIPT))
    return path


def is_installed() -> bool:
    return (Path(sysconfig.get_path("purelib")) / PTH).exists()


def parse(lines: Iterable[str]) -> StartupCost:
    """Sum the lines of a log; what is no whole line counts for nothing.

    A start and an import of torch belong together where one pid wrote both, one after the other.
    A process that was forked before it imported torch has an import without a start.
    """
    starts = torch_imports = with_torch = 0
    start_s = torch_s = 0.0
    waiting: set[str] = set()
    for line in lines:
        fields = line.split()
        if len(fields) != 3 or fields[0] not in ("start", "torch"):
            continue
        what, pid, cpu_s = fields[0], fields[1], float(fields[2])
        if what == "start":
            starts, start_s = starts + 1, start_s + cpu_s
            waiting.add(pid)
        else:
            torch_imports, torch_s = torch_imports + 1, torch_s + cpu_s
            with_torch += pid in waiting
            waiting.discard(pid)
    return StartupCost(starts, start_s, torch_imports, torch_s, starts - with_torch)


class StartupLog:
    """The file of one run; every process started meanwhile inherits its name."""

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="guardrun-tests-startup-", suffix=".log")
        os.close(descriptor)
        self._path = Path(name)
        os.environ[VARIABLE] = name

    def read(self) -> StartupCost:
        return parse(self._path.read_text(errors="replace").splitlines())

    def close(self) -> None:
        os.environ.pop(VARIABLE, None)
        self._path.unlink(missing_ok=True)


if __name__ == "__main__":
    install(Path(sysconfig.get_path("purelib")))
