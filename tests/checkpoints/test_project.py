"""What the supervisor may rely on, and what the documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from guardrun.supervisor.checkpoints.format_table import FORMATS

DOCS = Path(__file__).parents[2] / "docs" / "checkpoints.md"


@pytest.mark.cold
def test_choosing_brings_no_torch_and_no_unpickler_into_the_process() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import guardrun.supervisor.checkpoints.chooser\n"
        "print(*sorted({'torch', 'numpy', 'psutil', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
    sources = Path(__file__).parents[2] / "supervisor" / "checkpoints"
    for path in sources.rglob("*.py"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if line.strip() in ("import pickle", "import torch", "import zipfile")], path


def test_the_documentation_has_every_format() -> None:
    text = DOCS.read_text()
    missing = [known.name for known in FORMATS if f"| `{known.name}` |" not in text]
    assert missing == []
