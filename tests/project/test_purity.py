"""What may import what holds in every file; the linter itself is tried on what it must find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.purity import CORE, HOOKS, ROOT, RULES, SUPERVISOR, Rule, files_under, lint


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.folder)
def test_every_file_keeps_its_folders_rule(rule: Rule) -> None:
    files = files_under(rule)
    assert files
    problems = [f"{path.relative_to(ROOT)}:{text}" for path in files for text in lint(path.read_text(), rule)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("rule", "source", "problem"),
    [
        (CORE, "import time", "imports time"),
        (CORE, "def f():\n    import os", "imports os"),
        (CORE, "from guardrun.supervisor.rundir import journal", "imports guardrun.supervisor"),
        (CORE, "from guardrun.hooks.wire.board import Milestone", "imports guardrun.hooks.wire.board"),
        (CORE, "import os.path", "imports os.path"),
        (CORE, "from guardrun import slurm", "imports guardrun.slurm"),
        (CORE, "from . import events", "imports ."),
        (CORE, "x = open('/proc/stat')", "uses open"),
        (CORE, "print('here')", "uses print"),
        (CORE, "import signal\nsignal.signal(signal.SIGTERM, None)", "uses signal.signal"),
        (CORE, "from signal import alarm", "uses signal.alarm"),
        (HOOKS, "import torch", "imports torch at import time"),
        (HOOKS, "if True:\n    import torch.distributed", "imports torch.distributed at import time"),
        (HOOKS, "from guardrun.supervisor.engine.model import events", "imports guardrun.supervisor.engine"),
        (HOOKS, "import numpy", "imports numpy"),
        (SUPERVISOR, "def f():\n    import torch", "imports torch"),
    ],
)
def test_what_breaks_a_rule_is_found(rule: Rule, source: str, problem: str) -> None:
    found = lint(source, rule)
    assert len(found) == 1
    assert problem in found[0]


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (CORE, "import signal\nname = signal.Signals(9).name"),
        (CORE, "from collections.abc import Callable\nfrom guardrun.supervisor.engine.model.events import Event"),
        (CORE, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        (HOOKS, "def f():\n    import torch"),
        (CORE, "class Incident:\n    id: str"),
        (HOOKS, "import os, msgspec, zmq\nfrom guardrun.hooks.wire.board import Field"),
        (SUPERVISOR, "import os\nfrom guardrun.hooks.wire.board import Field"),
    ],
)
def test_what_keeps_the_rules_passes(rule: Rule, source: str) -> None:
    assert lint(source, rule) == []


def modules_after(statement: str, folder: Path) -> set[str]:
    """Top-level modules loaded in a fresh interpreter that ran statement."""
    code = f"{statement}\nimport sys\nprint('\\n'.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.cold
def test_the_supervisor_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = modules_after("import guardrun.supervisor.guardrund, guardrun.supervisor.daemon.daemon", tmp_path)
    assert loaded & {"torch", "numpy", "rich", "psutil", "pynvml", "hypothesis", "jinja2"} == set()


@pytest.mark.cold
def test_hooks_load_neither_torch_nor_zmq_by_themselves(tmp_path: Path) -> None:
    loaded = modules_after("import guardrun.hooks", tmp_path)
    assert loaded & {"torch", "zmq", "numpy", "rich", "psutil", "jinja2"} == set()


@pytest.mark.cold
def test_the_launcher_loads_no_templates(tmp_path: Path) -> None:
    loaded = modules_after("import guardrun.launcher.main, guardrun.launcher.run.launcher_loop", tmp_path)
    assert "torch" in loaded and "jinja2" not in loaded
