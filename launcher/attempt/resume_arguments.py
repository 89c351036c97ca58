"""What makes a script resume: arguments, and variables of the environment that ranks are started in.

Without torch, which takes seconds to import.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from guardrun.supervisor.config import fill_placeholders
from guardrun.supervisor.engine.model.events import Checkpoint

RESUME_FROM, RESUME_STEP = "GUARDRUN_RESUME_FROM", "GUARDRUN_RESUME_STEP"


def resume_arguments(templates: list[str], checkpoint: Checkpoint | None) -> list[str]:
    """What is appended to the script's arguments."""
    if checkpoint is None:
        return []
    return [_fill(template, checkpoint) for template in templates]


def resume_environment(templates: Mapping[str, str], checkpoint: Checkpoint | None) -> dict[str, str | None]:
    """What tells the script, in its environment, to resume; None takes a variable away."""
    if checkpoint is None:
        return {RESUME_FROM: None, RESUME_STEP: None}
    wanted: dict[str, str | None] = {name: _fill(template, checkpoint) for name, template in templates.items()}
    return wanted | {RESUME_FROM: checkpoint.path, RESUME_STEP: str(checkpoint.step)}


def _fill(template: str, checkpoint: Checkpoint) -> str:
    return fill_placeholders(template, checkpoint.path, checkpoint.step, os.path.dirname(checkpoint.path))


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change this process's environment, which torch's process layer hands on to the ranks, for a while."""
    before = {name: os.environ.get(name) for name in changes}
    _change_environment(changes)
    try:
        yield
    finally:
        _change_environment(before)


def _change_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
