"""Values of single steps: whole at first, thinner later, at the same steps in every run."""

from __future__ import annotations

import itertools
import math
from contextlib import closing
from pathlib import Path

import pytest

from guardrun.supervisor.rundir import step_values
from guardrun.supervisor.rundir.step_values import (
    HEADING,
    MAX_BYTES,
    NAME,
    WHOLE,
    StepsFile,
    StepValues,
    is_kept,
    read_steps,
)


def test_every_digit_comes_back(tmp_path: Path) -> None:
    values = [
        StepValues(1, 0.1 + 0.2, 1e-320),
        StepValues(2, math.inf, None),
        StepValues(3, None, 5.0),
        StepValues(4, None, None),
    ]
    with closing(StepsFile(tmp_path)) as file:
        file.add(0, values[:2])
    with closing(StepsFile(tmp_path)) as file:
        file.add(3, values[2:])
    assert list(read_steps(tmp_path)) == [(0, values[0]), (0, values[1]), (3, values[2]), (3, values[3])]
    assert (tmp_path / NAME).read_text().count(HEADING) == 1
    with closing(StepsFile(tmp_path)) as file:
        file.add(3, [StepValues(5, math.nan, None)])
    [*_, (_, last)] = read_steps(tmp_path)
    assert last.loss is not None and math.isnan(last.loss)


def test_steps_that_are_kept() -> None:
    assert all(is_kept(step) for step in range(WHOLE))
    assert [step for step in range(WHOLE, WHOLE + 6) if is_kept(step)] == [WHOLE, WHOLE + 2, WHOLE + 4]
    assert [step for step in range(2 * WHOLE, 2 * WHOLE + 9) if is_kept(step)] == [
        2 * WHOLE,
        2 * WHOLE + 4,
        2 * WHOLE + 8,
    ]
    # Of each stretch the first 1024 stand for all.
    starts = [0, *(WHOLE << power for power in range(10))]
    kept = sum(
        sum(map(is_kept, range(low, low + 1024))) * (high - low) // 1024 for low, high in itertools.pairwise(starts)
    )
    assert starts[-1] > 8_000_000
    assert kept * len("0,9999999,2.3025850929940459,12.345678901234567\n") < MAX_BYTES


def test_a_file_is_full_some_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_values, "MAX_BYTES", 100)
    with closing(StepsFile(tmp_path)) as file:
        for step in range(100):
            file.add(0, [StepValues(step, 1.0, 2.0)])
    assert (tmp_path / NAME).stat().st_size <= 100
    assert [values.step for _, values in read_steps(tmp_path)] == list(range(len(list(read_steps(tmp_path)))))


@pytest.mark.parametrize(
    "line", ["0,1,2\n", "0,1,2,3,4\n", "a,b,c,d\n", "0,-1,1.0,1.0\n", "0,1,1.0,1.0", "\n", "0,1," + "9" * 500]
)
def test_lines_that_are_torn_or_strange(tmp_path: Path, line: str) -> None:
    (tmp_path / NAME).write_text(f"{HEADING}0,1,1.0,1.0\n{line}")
    assert [values.step for _, values in read_steps(tmp_path)] == [1]
