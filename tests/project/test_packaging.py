"""A wheel and a source archive build, hold what they should, and work in an environment of their own."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.project.builds import BUILD_WHEEL, run
from tests.project.purity import FOLDERS, ROOT


def source_files() -> set[str]:
    """What the package is made of, as the wheel names it."""
    found = {f"guardrun/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    for folder in FOLDERS:
        paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        found |= {f"guardrun/{path.relative_to(ROOT)}" for path in paths}
    return found


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree, and the wheel built from that sdist in rebuilt/."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        # As extractall(filter="data"), which Python has from 3.11.4 on.
        sdist.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        sdist.extractall(folder / "unpacked")
    unpacked = next((folder / "unpacked").iterdir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "rebuilt", cwd=unpacked)
    return folder


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_package_and_nothing_else(archives: Path) -> None:
    assert names_in(next(archives.glob("*.whl"))) == source_files()


def test_the_sdist_builds_the_same_wheel(archives: Path) -> None:
    assert names_in(next(archives.glob("rebuilt/*.whl"))) == names_in(next(archives.glob("*.whl")))


def test_no_archive_holds_a_link(archives: Path) -> None:
    with zipfile.ZipFile(next(archives.glob("*.whl"))) as wheel:
        assert not [item.filename for item in wheel.infolist() if stat.S_ISLNK(item.external_attr >> 16)]
    with tarfile.open(next(archives.glob("*.tar.gz"))) as sdist:
        assert not [item.name for item in sdist.getmembers() if item.issym() or item.islnk()]


def test_the_sdist_holds_tests_docs_and_set_up(archives: Path) -> None:
    unpacked = next((archives / "unpacked").iterdir())
    for name in ("Makefile", "constraints.txt", "README.md", "CHANGELOG.md", "docs", "tests/conftest.py", "examples"):
        assert (unpacked / name).exists(), name


def install(what: Path, folder: Path, *options: str) -> Path:
    """Make an environment in folder with guardrun installed from an archive or a tree; returns its bin/.

    options: of pip's, more.
    What guardrun needs is lent by the environment that runs the tests (a .pth file), so that torch is not installed
    again; guardrun itself is not: an editable install is a .pth file too, and those of a lent folder are not read.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    site = next(folder.glob("lib/python3.*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    usual = ["--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--quiet"]
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", *usual, *options, what, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def environment(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment with the wheel installed."""
    return install(next(archives.glob("*.whl")), tmp_path_factory.mktemp("environment"))


@pytest.mark.parametrize("what", ["sdist", "pip install ."])
def test_the_sdist_and_the_tree_can_be_installed(what: str, archives: Path, tmp_path: Path) -> None:
    """Long on a busy machine: pip builds and installs."""
    programs = install(next(archives.glob("*.tar.gz")) if what == "sdist" else ROOT, tmp_path, "--no-compile")
    assert "usage: guardctl" in run(programs / "guardctl", "--help", cwd=tmp_path).lower()


def test_it_is_the_installed_package_that_is_imported(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "python", "-c", "import guardrun.hooks; print(guardrun.hooks.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)


@pytest.mark.parametrize(
    ("command", "answer"),
    [("guardrun", "usage: guardrun"), ("guardctl", "usage: guardctl"), ("guardrund", "started by guardrun")],
)
def test_the_commands_answer(environment: Path, command: str, answer: str, tmp_path: Path) -> None:
    """Long for the first of a fresh environment: Python compiles what it imports."""
    assert answer in run(environment / command, "--help", cwd=tmp_path).lower()


def test_it_runs_as_a_module(environment: Path, tmp_path: Path) -> None:
    """Long for the first of a fresh environment: Python compiles what it imports."""
    assert "usage: guardrun" in run(environment / "python", "-m", "guardrun", "--help", cwd=tmp_path).lower()


def test_every_module_can_be_imported(environment: Path, tmp_path: Path) -> None:
    """Long for the first of a fresh environment: Python compiles what it imports."""
    code = """
import importlib, pkgutil, guardrun
for module in pkgutil.walk_packages(guardrun.__path__, "guardrun."):
    if not module.name.endswith(("__main__", ".sitecustomize")):
        importlib.import_module(module.name)
"""
    run(environment / "python", "-W", "error::SyntaxWarning", "-c", code, cwd=tmp_path)


def test_pages_find_their_templates(environment: Path, tmp_path: Path) -> None:
    code = (
        "from guardrun.supervisor.report.elements.html_page import environment; print(environment(60).list_templates())"
    )
    assert "'incident.html'" in run(environment / "python", "-c", code, cwd=tmp_path)


def test_a_wheel_has_the_same_bytes_wherever_and_whenever_it_is_built(archives: Path, tmp_path: Path) -> None:
    """In two folders, with other times and modes of the files."""
    unpacked = next((archives / "unpacked").iterdir())
    built: list[bytes] = []
    for number, mode in enumerate((0o600, 0o664)):
        tree = tmp_path / f"tree-{number}"
        shutil.copytree(unpacked, tree)
        for path in tree.rglob("*"):
            path.chmod(mode | 0o111 if path.is_dir() else mode | (path.stat().st_mode & 0o100))
            os.utime(path, (1e9 + 1e8 * number,) * 2)
        umask = os.umask(0o077 if number else 0o002)
        try:
            run("env", "SOURCE_DATE_EPOCH=1700000000", *BUILD_WHEEL, "-d", tmp_path / f"out-{number}", cwd=tree)
        finally:
            os.umask(umask)
        built.append(next((tmp_path / f"out-{number}").glob("*.whl")).read_bytes())
    assert built[0] == built[1]


def test_the_licence_is_in_the_wheel_and_named(archives: Path) -> None:
    with zipfile.ZipFile(next(archives.glob("*.whl"))) as wheel:
        [text] = [name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        [metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        assert wheel.read(text) == (ROOT / "LICENSE").read_bytes()
        assert "License-Expression: Apache-2.0 AND MIT\n" in wheel.read(metadata).decode()
