from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.idle_node import Node


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that sleeps: while its interpreter still starts, py-spy finds none in it."""
    command = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def node(tmp_path: Path, process: subprocess.Popen[bytes]) -> Iterator[Node]:
    node = Node(tmp_path, process.pid)
    yield node
    node.close()
