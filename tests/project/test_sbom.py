"""`make sbom` names everything that the wheel brings with it, and nothing of the machine that it was made on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.project.builds import BUILD_WHEEL, run
from tests.project.purity import ROOT
from tests.support import lowest, sbom

EPOCH_S = "1700000000"


def write(folder: Path, **variables: str) -> Path:
    """Run the program over the wheel in a folder; returns what it wrote."""
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"} | variables
    command = [sys.executable, "-W", "error", "-m", "tests.support.sbom", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=True)
    return next(folder.glob("*.cdx.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With this tree's wheel and its bill."""
    folder = tmp_path_factory.mktemp("dist")
    run("env", f"SOURCE_DATE_EPOCH={EPOCH_S}", *BUILD_WHEEL, "-d", folder, cwd=ROOT)
    write(folder, SOURCE_DATE_EPOCH=EPOCH_S)
    return folder


@pytest.fixture
def written(folder: Path) -> dict[str, Any]:
    bill: dict[str, Any] = json.loads(next(folder.glob("*.cdx.json")).read_text())
    return bill


def test_it_lies_beside_its_wheel_and_has_that_ones_hash(folder: Path, written: dict[str, Any]) -> None:
    [wheel] = folder.glob("*.whl")
    root = written["metadata"]["component"]
    assert (root["name"], root["version"]) == ("guardrun", wheel.name.split("-")[1])
    assert root["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    assert root["licenses"] == [{"expression": "Apache-2.0 AND MIT"}]
    [carried] = root["components"]
    assert (carried["name"], carried["purl"]) == ("uplot", f"pkg:npm/uplot@{carried['version']}")
    assert carried["licenses"] == [{"license": {"id": "MIT"}}]
    assert (written["bomFormat"], written["specVersion"]) == ("CycloneDX", "1.6")


def test_every_dependency_of_the_run_time_is_named_with_version_and_licence(written: dict[str, Any]) -> None:
    wanted = lowest.dependencies((ROOT / "pyproject.toml").read_text())
    here = {one.name for one in wanted if one.marker is None or one.marker.evaluate()}
    named = {one["name"]: one for one in written["components"]}
    assert len(here) > 8 and here <= set(named)
    assert {name: one["version"] for name, one in named.items()} == {name: metadata.version(name) for name in named}
    for name, one in named.items():
        texts = [
            item.get("expression") or item["license"].get("id") or item["license"]["name"] for item in one["licenses"]
        ]
        assert texts and all(texts), name
    [root] = [one for one in written["dependencies"] if one["ref"].startswith("pkg:pypi/guardrun@")]
    assert {ref.partition("pkg:pypi/")[2].partition("@")[0] for ref in root["dependsOn"]} == here


def test_what_they_ask_for_is_in_it_and_development_is_not(written: dict[str, Any]) -> None:
    named = {one["name"] for one in written["components"]}
    asked = {
        Requirement(line).name.lower().replace("_", "-")
        for name in named
        for line in metadata.requires(name) or ()
        if (marker := Requirement(line).marker) is None or marker.evaluate({"extra": ""})
    }
    assert {"sympy", "pygments"} <= asked <= named
    assert not named & {"pytest", "ruff", "mypy", "hatchling", "cyclonedx-python-lib", "transformers"}


def test_it_names_no_path_and_no_host(folder: Path, written: dict[str, Any]) -> None:
    text = next(folder.glob("*.cdx.json")).read_text()
    assert not {str(ROOT), str(folder), sys.prefix, str(Path.home()), os.uname().nodename} & set(
        re.findall(r'[^"\s]+', text)
    )
    # "/" is in what the format itself has, and in the packages' own names.
    for value in re.findall(r'"([^"]*/[^"]*)"', text):
        assert value.startswith(("http://cyclonedx.org/schema/", "pkg:pypi/", "pkg:npm/uplot@")), value
    assert written["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"


def test_the_same_wheel_has_the_same_bill(folder: Path, tmp_path: Path) -> None:
    [wheel] = folder.glob("*.whl")
    for seed in ("1", "2"):
        there = tmp_path / seed
        there.mkdir()
        (there / wheel.name).write_bytes(wheel.read_bytes())
        again = write(there, SOURCE_DATE_EPOCH=EPOCH_S, PYTHONHASHSEED=seed, TZ=f"X{seed}")
        assert again.read_bytes() == next(folder.glob("*.cdx.json")).read_bytes()


def test_without_a_date_it_has_none(folder: Path, tmp_path: Path) -> None:
    [wheel] = folder.glob("*.whl")
    (tmp_path / wheel.name).write_bytes(wheel.read_bytes())
    assert "timestamp" not in json.loads(write(tmp_path).read_text())["metadata"]


def test_two_wheels_are_one_too_many(folder: Path, tmp_path: Path) -> None:
    for name in ("guardrun-1-py3-none-any.whl", "guardrun-2-py3-none-any.whl"):
        (tmp_path / name).touch()
    with pytest.raises(subprocess.CalledProcessError):
        write(tmp_path)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "x")], ["MIT OR Apache-2.0"]),
        ([("License", "BSD"), ("Classifier", "License :: OSI Approved :: BSD License")], ["BSD"]),
        (
            [("License", "Permission is\nhereby"), ("Classifier", "License :: OSI Approved :: MIT License")],
            ["MIT License"],
        ),
        ([("License", "UNKNOWN"), ("Classifier", "License :: OSI Approved")], []),
        ([("Classifier", "License :: OSI Approved :: A"), ("Classifier", "License :: B")], ["A", "B"]),
    ],
)
def test_a_licence_is_what_the_package_names(lines: list[tuple[str, str]], named: list[str]) -> None:
    about = Message()
    for name, value in lines:
        about[name] = value
    assert sbom.licences(about) == named
