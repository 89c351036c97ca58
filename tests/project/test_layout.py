"""The folders at the top level, the links in src/guardrun and the build's tables say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.project.purity import FOLDERS, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = ROOT / "src" / "guardrun"
OWN_FILES = {"__init__.py", "__main__.py", "py.typed"}
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD: dict[str, Any] = PYPROJECT["tool"]["hatch"]["build"]


def test_every_folder_has_a_relative_link() -> None:
    links = {path.name: os.readlink(path) for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {folder: f"../../{folder}" for folder in FOLDERS}
    assert all((PACKAGE / name).resolve() == ROOT / name for name in links)


def test_nothing_else_lies_in_the_package() -> None:
    others = {path.name for path in PACKAGE.iterdir() if not path.is_symlink()} - {"__pycache__"}
    assert others == OWN_FILES


def test_the_wheel_maps_every_folder() -> None:
    wheel = BUILD["targets"]["wheel"]
    assert wheel["sources"] == {**{name: f"guardrun/{name}" for name in FOLDERS}, "src/guardrun": "guardrun"}


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_an_archive_takes_folders_themselves_and_never_their_links(target: str) -> None:
    included = set(BUILD["targets"][target]["only-include"])
    assert set(FOLDERS) < included
    assert {name for name in included if name.startswith("src")} == {f"src/guardrun/{name}" for name in OWN_FILES}


def test_the_linter_sees_every_file_once() -> None:
    assert set(PYPROJECT["tool"]["ruff"]["extend-exclude"]) == {f"src/guardrun/{name}" for name in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_importable_under_one_name_only(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"import guardrun.{folder}, not {folder}" in done.stderr
    subprocess.run([sys.executable, "-c", f"import guardrun.{folder}"], cwd=ROOT, check=True)
