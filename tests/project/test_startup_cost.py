"""Interpreters say what starting them and importing torch cost, and nobody else notices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.purity import ROOT
from tests.support.startup_log import SCRIPT, VARIABLE, StartupCost, install, parse, pth_line

TORCH = """
import time
began = time.process_time()
while time.process_time() < began + 0.1: pass
"""
"""In place of torch: what it costs to import is known."""
TRUE_FINDER = """
import sys
import guardrun.hooks.startup.import_hooks as imports

class Rank:
    def fail(self, *what): print("failed", *what)

def install(finder, name, module):
    seen.append(name)
    sys.meta_path.remove(finder)

seen = []
imports.Finder.install = install
finder = imports.Finder(Rank(), {"torch": "its hook"})
"""


class Interpreters:
    """Each with site-packages of its own beside the real ones, with the .pth file in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.site = folder / "site"
        self.site.mkdir()
        install(self.site)
        (folder / "torch.py").write_text(TORCH)

    def run(self, code: str, *, times: int = 1) -> str:
        """What the code prints in an interpreter that has just been through its site-packages, so many times."""
        begin = f"import os, site\nos.environ[{VARIABLE!r}] = {str(self.log)!r}\n"
        begin += f"site.addsitedir({str(self.site)!r})\n" * times
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-X", "dev", "-c", begin + code],
            env={**environment, "PYTHONPATH": f"{self.folder}:{ROOT / 'src'}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout

    def cost(self) -> StartupCost:
        return parse(self.log.read_text().splitlines())


@pytest.fixture
def interpreters(tmp_path: Path) -> Interpreters:
    return Interpreters(tmp_path)


def test_a_start_and_an_import_of_torch_are_noted_with_their_cpu_time(interpreters: Interpreters) -> None:
    interpreters.run("import torch")
    interpreters.run("import json")
    cost = interpreters.cost()
    assert (cost.starts, cost.torch_imports, cost.without_torch) == (2, 1, 1)
    assert 0.1 <= cost.torch_s < 1.0
    assert 0.005 < cost.start_s < 2


def test_site_may_come_by_twice(interpreters: Interpreters) -> None:
    interpreters.run("import torch", times=2)
    assert (interpreters.cost().starts, interpreters.cost().torch_imports) == (1, 1)


def test_once_torch_is_in_all_is_as_it_was(interpreters: Interpreters) -> None:
    code = """
import importlib.util, sys
names = [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]
assert names.pop(0) == "Watch", names
assert importlib.util.find_spec("torch") and importlib.util.find_spec("nowhere") is None
import torch
assert [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path] == names
assert not vars(torch.__loader__).keys() & {"exec_module"}
assert not [name for name in sys.modules if "startup_cost" in name]
print("as it was")
"""
    assert interpreters.run(code) == "as it was\n"
    assert interpreters.cost().torch_imports == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_guardrun_s_own_finder_and_this_one_do_not_meet(interpreters: Interpreters, is_first: bool) -> None:
    """Each asks the others for torch: two that asked each other would do so for ever."""
    place = "0" if is_first else "1"
    code = f"{TRUE_FINDER}\nsys.meta_path.insert({place}, finder)\nimport torch\n"
    check = "print(seen, [f for f in sys.meta_path if type(f).__name__ in ('Watch', 'Finder')], vars(torch.__loader__))"
    told = interpreters.run(code + check)
    assert told.startswith("['torch'] [] ") and "exec_module" not in told
    assert interpreters.cost().torch_imports == 1


def test_an_import_that_fails_fails_as_it_would(interpreters: Interpreters) -> None:
    (interpreters.folder / "torch.py").write_text("raise OSError('libtorch.so')")
    code = "try:\n    import torch\nexcept OSError as error:\n    print(error, error.__context__)"
    assert interpreters.run(code) == "libtorch.so None\n"


def test_a_log_that_is_gone_or_a_script_that_is_gone_is_nobody_s_error(interpreters: Interpreters) -> None:
    interpreters.log.unlink()
    assert interpreters.run("import torch; print('in')") == "in\n"
    assert not interpreters.log.exists()
    (interpreters.site / "guardrun_startup_cost.pth").write_text(pth_line(SCRIPT.with_name("gone.py")))
    assert interpreters.run("import sys; print(type(sys.meta_path[0]).__name__ == 'Watch')") == "False\n"


def test_what_was_forked_before_it_imported_torch_has_no_start(interpreters: Interpreters) -> None:
    code = "if os.fork():\n    os.wait()\nelse:\n    import torch\n"
    interpreters.run("import warnings; warnings.simplefilter('ignore')\n" + code)
    cost = interpreters.cost()
    assert (cost.starts, cost.torch_imports, cost.without_torch) == (1, 1, 1)


def test_lines_are_summed_and_a_pid_may_come_back() -> None:
    lines = ["start 7 0.02", "torch 7 1.5", "start 7 0.02", "start 8 0.04", "torch 9 2.5", "torch", "", "end 7 1"]
    assert parse(lines) == StartupCost(
        starts=3, start_s=0.02 + 0.02 + 0.04, torch_imports=2, torch_s=4.0, without_torch=2
    )
