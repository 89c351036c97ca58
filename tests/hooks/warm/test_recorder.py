"""What a module's code does is done again in whoever is given the module, or it is left out: one process for many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULES = {
    "reads_rank": "import os\nRANK = os.environ.get('LOCAL_RANK', '0')\n",
    "reads_all": "import os\nALL = dict(os.environ)\n",
    "reads_home": "import os\nHOME = os.getenv('MY_HOME')\n",
    "has_thread": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "has_file": "FILE = open(__file__)\n",
    "had_file": "with open(__file__) as file:\n    import plain\n",
    "handles": "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n",
    "excepts": "import sys\nsys.excepthook = lambda *_: None\n",
    "forks": "import os\nos.register_at_fork(after_in_child=lambda: None)\n",
    "paths": "import sys\nsys.path.append('/nowhere')\n",
    "moves": "import os\nos.chdir('/')\n",
    "logs": "import logging\nlogging.basicConfig(level=10)\n",
    "imports_it": "import plain, reads_rank\n",
    "plain": "X = []\n",
    "native": "import _lsprof\n",
    "package": "from .part import VALUE\n"
    "__getattr__ = lambda name: __import__('package.' + name).lazy if name == 'lazy' else 1\n",
    "package.part": "VALUE = 7\n",
    "package.lazy": "",
    "ends": "import atexit\nDONE = []\natexit.register(DONE.append, 1)\n",
    "warns": "import warnings\nwarnings.filterwarnings('ignore', message='mine')\n",
    "finds": "import sys\nclass Finder:\n    find_spec = staticmethod(lambda *_: None)\nsys.meta_path.append(Finder)\n",
    "sets": "import os\nos.environ['SET_HERE'] = 'x'\n",
    "draws": "import random\nA = random.Random()\nB = random.Random(3)\n",
    "speaks": "import logging\nlog = logging.getLogger('speaks.it')\nlog.setLevel(10)\n",
    "had_thread": "import threading\nt = threading.Thread(target=int)\nt.start()\nt.join()\n",
}
CHILD = """
import sys
fresh = frozenset(sys.modules)
sys.path.insert(1, sys.argv[1])
from guardrun.hooks.warm.process_state import Inspector
from guardrun.hooks.warm.recorder import Recorder
recorder = Recorder(fresh, Inspector())
recorder.begin()
import importlib
from guardrun.hooks.warm.stash import Stash
for name in sys.argv[2].split():
    importlib.import_module(name)
recorder.end()
import json, os, atexit, logging, time, warnings
while len(os.listdir("/proc/self/task")) > 1 + ("has_thread" in sys.argv[2].split()):
    time.sleep(0.01)  # what has been joined may still be there
told = {"unfit": {**recorder.unfit, **recorder.inspect.judge()}}
told["reads"] = {name: sorted(record.reads) for name, record in recorder.records.items() if record.reads}
first = {name: sys.modules[name] for name in recorder.records}
importlib.import_module("package.lazy")
stash = Stash(recorder, "guardrun", ())
stash.environ = dict(os.environ)
refused = []
stash.refuse = refused.append
os.environ.pop("SET_HERE", None)
atexit._clear()
"""
GIVEN = """
before_s = __import__("time").time()
filters = list(warnings.filters)
stash.hide()
stash.begin()
told["hidden"] = [name for name in ("plain", "package.part", "json", "logging") if name in sys.modules]
import logging.config
logging.config.dictConfig({"version": 1})
import package
told["lazy"] = "lazy" in vars(package)
told["with_package"] = [name for name in sys.modules if name.startswith("package")]
told["plain_comes_later"] = "plain" not in sys.modules
for name in ("ends", "warns", "finds", "sets", "draws", "speaks", "plain"):
    told[name] = importlib.import_module(name) is first[name]
told["same_spec"] = sys.modules["plain"].__spec__.loader.__class__.__name__
told["atexit"] = atexit._ncallbacks()
told["filters"] = len(warnings.filters) - len(filters)
told["finder"] = getattr(sys.meta_path[-1], "__name__", "")
told["set"] = os.environ.get("SET_HERE")
told["level"] = [sys.modules["speaks"].log.level, sys.modules["speaks"].log.disabled]
told["unseeded"] = [generator is sys.modules["draws"].A for generator in recorder.unseeded]
told["early"] = list(refused)
os.environ["MY_HOME"] = "elsewhere"
import reads_home
told["refused"] = list(refused)
open(os.path.join(sys.argv[3], "imports_it.py"), "w").close()
sys.path.insert(0, sys.argv[3])
importlib.invalidate_caches()
import imports_it
told["refused_again"] = refused[len(told["refused"]):]
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import native
told["refused_last"] = refused[-1]
told["since"] = logging._startTime / (1 if isinstance(logging._startTime, float) else 1e9) > before_s
"""


def run(folder: Path, names: list[str], more: str = "") -> dict[str, Any]:
    """What the child process tells of these modules."""
    for name, code in MODULES.items():
        path = folder / "modules" / name.replace(".", "/")
        is_package = any(other.startswith(f"{name}.") for other in MODULES)
        path = path / "__init__.py" if is_package else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    (folder / "first").mkdir()
    command = [
        sys.executable,
        "-c",
        CHILD + more + "\nprint(json.dumps(told))\n",
        str(folder / "modules"),
        " ".join(names),
    ]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, str(folder / "first")],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All at once: each is told from the others."""
    return run(tmp_path_factory.mktemp("recorded"), list(MODULES))


def test_what_no_rank_may_share_is_told_with_its_doer(looked_at: dict[str, Any]) -> None:
    unfit = looked_at["unfit"]
    assert unfit["has_thread"] == "it starts a thread"
    assert unfit["has_file"].startswith("it opens /")
    assert unfit["handles"] == "it changes the handlers of signals"
    assert unfit["excepts"] == "it changes sys.excepthook"
    assert unfit["forks"].startswith("it asks to be called at forks")
    assert unfit["paths"] == "it changes sys.path"
    assert unfit["moves"] == "it changes the working folder"
    assert unfit["logs"] == "it changes the root logger"


def test_what_is_done_again_or_over_is_no_harm(looked_at: dict[str, Any]) -> None:
    innocent = {"had_thread", "had_file", "plain", "package", "package.part", "ends", "warns", "finds", "sets", "draws"}
    assert innocent.isdisjoint(looked_at["unfit"])


def test_variables_are_noted_with_their_reader(looked_at: dict[str, Any]) -> None:
    reads = looked_at["reads"]
    assert reads["reads_rank"] == ["LOCAL_RANK"]
    assert "*" in reads["reads_all"]
    assert reads["reads_home"] == ["MY_HOME"]
    assert "imports_it" not in reads


def test_modules_come_back_as_if_for_the_first_time(tmp_path: Path) -> None:
    names = [
        "package",
        "ends",
        "warns",
        "finds",
        "sets",
        "draws",
        "speaks",
        "plain",
        "reads_home",
        "imports_it",
        "native",
    ]
    told = run(tmp_path, [*names, "native"], GIVEN)
    assert told["unfit"] == {} and told["hidden"] == [] and told["early"] == []
    assert (
        not told["lazy"] and sorted(told["with_package"]) == ["package", "package.part"] and told["plain_comes_later"]
    )
    assert all(told[name] for name in ("ends", "warns", "finds", "sets", "draws", "speaks", "plain"))
    assert told["same_spec"] == "SourceFileLoader"
    assert (told["filters"], told["finder"], told["set"]) == (1, "Finder", "x")
    assert told["atexit"] >= 1 and told["unseeded"] == [True]
    assert told["level"] == [10, False]
    assert told["refused"] == ["reads_home reads MY_HOME, which is not what it was"]
    assert told["refused_again"] == ["imports_it is found elsewhere now"]
    assert told["since"]
    if len(os.sched_getaffinity(0)) > 1:
        assert told["refused_last"].startswith("the script has changed this process's CPUs")
