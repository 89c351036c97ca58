"""A handful of the gym's cases, played under guardrun by the gym's own code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.gym.case import Decoy, Fault
from benchmarks.gym.launchers import BY_NAME
from benchmarks.gym.observation import Observation
from benchmarks.gym.play import Turn, play
from benchmarks.gym.score import score_decoy, score_fault
from benchmarks.gym.suite import CASES

pytestmark = [pytest.mark.real("py-spy"), pytest.mark.timeout(900)]

QUICK = ("killed", "exception", "stop", "extra_barrier", "brief_stop")
BY_CASE = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observation]:
    """All of them, two at a time."""
    folder = tmp_path_factory.mktemp("gym")

    def one(name: str) -> Observation:
        return play(Turn(BY_CASE[name], BY_NAME["guardrun"], repeat=0, seed=1), folder / name)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(QUICK, pool.map(one, QUICK), strict=True))


@pytest.mark.parametrize("name", [name for name in QUICK if isinstance(BY_CASE[name], Fault)])
def test_a_fault_is_found_named_blamed_and_mended(played: dict[str, Observation], name: str) -> None:
    fault, seen = BY_CASE[name], played[name]
    assert isinstance(fault, Fault)
    score = score_fault(fault, seen)
    # How long it took depends on how busy the machine is; `make gym` says.
    missed = [text for text in score.misses(fault, seen.patience) if " later than " not in text]
    assert not missed, f"{missed}\n{seen.told}\n{seen.output_tail}"
    assert score.verdict_s is not None
    assert score.recover_s is not None
    assert score.steps_lost is not None
    assert 0 <= score.steps_lost < 15


def test_a_decoy_is_left_alone(played: dict[str, Observation]) -> None:
    decoy, seen = BY_CASE["brief_stop"], played["brief_stop"]
    assert isinstance(decoy, Decoy)
    assert score_decoy(decoy, seen).is_clean, f"{seen.told}\n{seen.output_tail}"
    assert seen.planted_at is not None


def test_a_run_s_folder_is_gone_and_nothing_of_it_is_left(
    played: dict[str, Observation], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert not any(path.is_dir() and path.name in QUICK for path in tmp_path_factory.getbasetemp().glob("gym*/*"))
    assert not any(seen.left for seen in played.values())


def test_a_launcher_that_does_not_get_to_the_planting_is_trouble_and_no_verdict(tmp_path: Path) -> None:
    case, launcher = BY_CASE["killed"], BY_NAME["guardrun"]
    broken = type(launcher)(launcher.name, launcher.program, ("--guard-no-such-flag",), launcher.port_flag)
    seen = play(Turn(case, broken, repeat=0, seed=1), tmp_path / "run")
    assert seen.trouble == "it was never planted"
    assert seen.returncode == 2
