"""Runs of guardrun whose supervisor is fake_supervisor.py: what the launcher does, apart from what is decided."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.guardrun_run import GuardrunRun, GuardrunStarter

PROGRAM = [sys.executable, str(Path(__file__).with_name("program.py"))]

Facts = list[dict[str, Any]]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[GuardrunStarter]:
    starter = GuardrunStarter(tmp_path, PROGRAM)
    try:
        yield starter
    finally:
        starter.close()


def read_facts(run_dir: Path | None) -> Facts:
    """What the supervisor was told, in order, repetitions left out."""
    assert run_dir is not None
    seen: dict[int, dict[str, Any]] = {}
    path = run_dir / "facts.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        fact = json.loads(line)
        if fact["type"] != "launcher_hello":
            seen.setdefault(fact["seq"], fact)
    return list(seen.values())


@pytest.fixture
def facts_of() -> Callable[[GuardrunRun], Facts]:
    return lambda run: read_facts(run.run_dir) if run.run_dir else []
