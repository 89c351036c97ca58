from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import guardrun.supervisor.collect

HEAVY = {"torch", "numpy", "psutil", "rich", "zmq", "structlog", "pynvml", "multiprocessing", "asyncio"}


@pytest.mark.cold
def test_the_collectors_bring_nothing_heavy_into_the_supervisor() -> None:
    folder = Path(guardrun.supervisor.collect.__file__).parent
    found = [path.relative_to(folder).with_suffix("") for path in folder.glob("*/*.py") if path.stem != "__init__"]
    names = [f"guardrun.supervisor.collect.{path.parent}.{path.name}" for path in found]
    code = f"import sys\nfor name in {names!r}: __import__(name)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert len(names) > 10
    assert not HEAVY & set(loaded)
