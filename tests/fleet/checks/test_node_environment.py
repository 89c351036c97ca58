"""What a node says of its versions and of the code that it would run."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from guardrun.supervisor.fleet.checks import node_environment
from guardrun.supervisor.fleet.checks.node_environment import find_script, read_code, read_facts

PYTHON = "/usr/bin/python3"


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")


def test_versions_without_importing_torch(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    found = read_facts([PYTHON, "-u", "train.py", "--lr=1"], tmp_path, 5.0)
    assert found.versions["torch"] == version("torch") and found.versions["python"] == platform.python_version()
    assert (found.script, list(found.files), found.wall_s) == ("train.py", ["train.py"], 5.0)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ([PYTHON, "-u", "train.py", "other.py"], "train.py"),
        ([PYTHON, "-u", "-m", "pkg.train", "x"], "pkg/train.py"),
        ([PYTHON, "-m", "pkg"], "pkg/__main__.py"),
        (["run.sh", "train.py"], "run.sh"),
        ([PYTHON, "-m", "elsewhere.train"], None),
        (["--run-path", "nowhere.py"], None),
    ],
)
def test_the_script_is_found(tmp_path: Path, command: list[str], script: str | None) -> None:
    write(tmp_path, "train.py", "other.py", "pkg/train.py", "pkg/__main__.py", "run.sh")
    assert find_script(command, tmp_path) == (tmp_path / script if script else None)


def test_the_code_beside_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_environment, "MAX_S", 60.0)
    write(tmp_path, "train.py", "model.py", "data/load.py", "notes.txt", ".git/hook.py", "env/pyvenv.cfg", "env/x.py")
    name, files = read_code(tmp_path / "train.py")
    assert name == "train.py" and set(files) == {"train.py", "model.py", "data/load.py"}
    before = dict(files)
    (tmp_path / "model.py").write_text("# changed\n")
    _, after = read_code(tmp_path / "train.py")
    assert {name for name in after if after[name] != before[name]} == {"model.py"}


def test_the_whole_package_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_environment, "MAX_S", 60.0)
    write(tmp_path, "setup.py", "pkg/__init__.py", "pkg/model.py", "pkg/bin/__init__.py", "pkg/bin/train.py")
    name, files = read_code(tmp_path / "pkg/bin/train.py")
    assert name == "pkg/bin/train.py" and {"pkg/model.py", "pkg/bin/train.py"} <= set(files)


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES", "MAX_S"])
def test_too_much_code_is_the_script_alone(tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "train.py", *(f"part{number}.py" for number in range(30)))
    monkeypatch.setattr(node_environment, limit, {"MAX_FILES": 10, "MAX_BYTES": 100, "MAX_S": 1e-9}[limit])
    name, files = read_code(tmp_path / "train.py")
    assert set(files) <= {name}
