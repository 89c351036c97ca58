"""What a rank's files say of what it computes with: bounded, and nothing but regular files is ever opened."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire.messages import EnvironmentReported
from guardrun.supervisor.base.redaction import HIDDEN
from guardrun.supervisor.collect.ranks import environment
from guardrun.supervisor.collect.ranks.environment import (
    MAX_FILE_BYTES,
    FileReader,
    read_environment,
    read_packages,
)
from guardrun.supervisor.rundir.environment import DIGEST_CHARS, Environment

NOW_S = 1795e6


def told(folder: Path, **changes: Any) -> EnvironmentReported:
    values: dict[str, Any] = {
        "attempt": 0,
        "global_rank": 0,
        "pid": 1,
        "script": str(folder / "train.py"),
        "modules": [str(folder / "train.py"), str(folder / "pkg" / "model.py")],
        "more_modules": 0,
        "path": [],
        "runtime": {"python": "3.11.9"},
        "flags": {},
        "seed": 2**64 - 1,
        "variables": {"OMP_NUM_THREADS": "1", "HF_TOKEN": "hunter2hunter2", "HF_ENDPOINT": "https://me:pass@host/x"},
        "device": "",
    }
    return EnvironmentReported(**{**values, **changes})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "pkg" / "model.py").write_text("x = 1\n")
    (tmp_path / "conf.yaml").write_text("lr: 1\n")
    return tmp_path


def read(project: Path, *arguments: str, **changes: Any) -> Environment:
    script = ["python", "-u", str(project / "train.py"), *arguments]
    return read_environment(told(project, **changes), script, str(project), session=1, node="node-a", wall_s=NOW_S)


def test_code_and_files_of_arguments(project: Path) -> None:
    found = read(project, "--config=conf.yaml", "conf.yaml", "--out", "nowhere", "pkg")
    assert list(found.files) == ["train.py", "pkg/model.py"]
    assert found.files["train.py"].digest == hashlib.sha256(b"print(1)\n").hexdigest()[:DIGEST_CHARS]
    assert list(found.arguments) == ["--config=conf.yaml", "conf.yaml"]
    assert (found.session, found.seed, found.repository) == (1, 2**64 - 1, None)


def test_secrets_are_not_kept(project: Path) -> None:
    found = read(project)
    assert found.variables["OMP_NUM_THREADS"] == "1" and found.variables["HF_TOKEN"] == HIDDEN
    assert "pass" not in found.variables["HF_ENDPOINT"]


def test_a_module_from_elsewhere_has_its_whole_path(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("library") / "lib.py"
    other.write_text("")
    assert list(read(project, modules=[str(other)]).files) == ["train.py", str(other)]


def test_what_is_no_file_is_not_opened(project: Path) -> None:
    """A FIFO without a writer: who opens it to read waits for ever."""
    (project / "train.py").unlink()
    os.mkfifo(project / "train.py")
    os.mkfifo(project / "fifo")
    found = read(project, "fifo", "--device=/dev/zero", modules=[str(project / "gone.py"), "/dev/zero", "a\0b"])
    assert found.arguments == {}
    assert {one.digest for one in found.files.values()} == {""}
    assert found.files["train.py"].why == "it is no regular file"
    assert found.files["gone.py"].why == "No such file or directory"


def test_what_is_large_is_told_by_its_size(project: Path) -> None:
    with (project / "train.py").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    one = read(project).files["train.py"]
    assert (one.digest, one.size_bytes, one.why) == ("", MAX_FILE_BYTES + 1, "larger than 4 MiB") and one.mtime_s > 0


def test_what_is_another_users_is_told_by_its_size(project: Path) -> None:
    reader = FileReader(uid=os.geteuid() + 4242)
    found = project / "train.py"
    if os.geteuid() == 0:  # root's own files count as anybody's
        os.chown(found, 4711, -1)
    one = reader.digest(str(found))
    assert (one.digest, one.size_bytes, one.why) == ("", 9, "it belongs to another user")


def test_all_files_together_have_a_bound(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FileReader(os.geteuid())
    (project / "big").write_bytes(bytes(MAX_FILE_BYTES))
    found = [reader.digest(str(project / "big")).why for _ in range(20)]
    assert found.count("") == 16 and found[-1] == "there are too many files"


def test_packages_by_the_names_of_their_folders(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    for name in ("torch-2.13.0+cpu.dist-info", "Typing_Extensions-4.1.dist-info", "zope.interface-8.0-py3.11.egg-info"):
        (first / name).mkdir()
    for name in ("torch-2.6.0.dist-info", "numpy-2.3.1.dist-info", "strange.dist-info", "-1.dist-info", "x-2"):
        (second / name).mkdir()
    path = [str(tmp_path / "nowhere"), str(first), str(second), "", str(first / "torch-2.13.0+cpu.dist-info")]
    assert read_packages(path) == {
        "numpy": "2.3.1",
        "torch": "2.13.0+cpu",
        "typing-extensions": "4.1",
        "zope-interface": "8.0",
    }


def test_of_a_folder_with_very_many_files_the_first_ones_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that lies beside its data: names of millions of files would be held, and sorted."""
    monkeypatch.setattr(environment, "MAX_ENTRIES", 50)
    data, packages = tmp_path / "data", tmp_path / "packages"
    for folder in (data, packages):
        folder.mkdir()
    for number in range(100):
        (data / f"own{number}-1.dist-info").touch()
    (packages / "torch-2.13.0.dist-info").touch()
    found = read_packages([str(data), str(packages)])
    assert len(found) == 51 and found["torch"] == "2.13.0"
    assert read_packages(["a\0b"]) == {}
