"""What `make test-lowest` goes by: each package of the run time at its lower bound, each with tests that use it."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support import lowest

PYPROJECT = (lowest.ROOT / "pyproject.toml").read_text()


def test_every_package_of_the_run_time_has_tests_that_use_it() -> None:
    assert {one.name for one in lowest.dependencies(PYPROJECT)} == set(lowest.USES)


@pytest.mark.parametrize("test", [*dict.fromkeys(test for uses in lowest.USES.values() for test in uses)])
def test_these_tests_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert (lowest.ROOT / path).exists()
    assert not name or f"def {name}(" in (lowest.ROOT / path).read_text()


def test_what_needs_torch_is_left_out_without_it() -> None:
    assert "--deselect=tests/preflight/test_full.py" in lowest.tests(has_torch=False)
    assert "tests/preflight/test_full.py" not in lowest.tests(has_torch=False)
    assert {"tests/preflight/test_full.py", "tests/config"} <= set(lowest.tests(has_torch=True))


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_under_each_python_every_package_has_one_lower_bound(python: str) -> None:
    names = set(lowest.lowest(lowest.dependencies(PYPROJECT), python))
    assert names == set(lowest.USES) - (set() if python == "3.10" else {"tomli"})


def test_the_lowest_version_is_the_bound_for_that_python() -> None:
    wanted = [Requirement("a>=2; python_version < '3.11'"), Requirement("a>=3.1,<9; python_version >= '3.11'")]
    assert lowest.lowest(wanted, "3.10") == {"a": Version("2")}
    assert lowest.lowest(wanted, "3.11") == {"a": Version("3.1")}


@pytest.mark.parametrize("loose", ["a", "a<3", "a==2", "a>1"])
def test_a_package_without_a_lower_bound_is_refused(loose: str) -> None:
    with pytest.raises(ValueError, match="lower bound"):
        lowest.lowest([Requirement(loose)], "3.11")


def test_the_pins_are_those_of_everything_else() -> None:
    pins = "# why\n\nprometheus-client==0.26.0\nrich==15.0.0\npluggy==1.7.0; python_version > '3'\n"
    assert (
        lowest.others(pins, {"rich": Version("13"), "prometheus-client": Version("1")}) == pins.splitlines()[-1] + "\n"
    )


def test_an_environment_with_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    lowest.check(tmp_path, {"rich": Version(version("rich"))})
    with pytest.raises(SystemExit, match=r"rich .*, not 0\.1"):
        lowest.check(tmp_path, {"rich": Version("0.1")})
