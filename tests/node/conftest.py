from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.idle_node import Node


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@pytest.fixture
def node(tmp_path: Path, process: subprocess.Popen[bytes]) -> Iterator[Node]:
    node = Node(tmp_path, process.pid)
    yield node
    node.close()
