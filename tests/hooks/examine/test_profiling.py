"""Steps are profiled on request; training computes the same bits, and nothing is left behind that could end it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.examine.kineto import find_obstacle
from guardrun.hooks.examine.profiling import Profiling
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.messages import HookFailed
from tests.hooks.bed import Bed, finish

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "profiled_steps.py")


def test_training_and_what_the_script_does_go_on_as_without(bed: Bed, tmp_path: Path) -> None:
    """All that tests/hooks/ranks/profiled_steps.py does."""
    file = tmp_path / "told"
    done = finish(bed.start([SCRIPT, str(file), "all"]))
    assert done.returncode == 0, done.stderr
    (failed,) = bed.hear_all(HookFailed)
    assert (failed.hook, failed.error) == ("profile", "RuntimeError: of torch's")
    told: dict[str, Any] = json.loads(file.read_text())
    bits = told["bits"]
    assert len(bits["steps"]) == 2 and bits["marks"] == 3 and bits["plain_ns"] > 0 and bits["why"] == ""
    assert bits["steps"][1][0] == bits["steps"][0][0] + 1 and all(one > 0 for one in bits["held_ns"])
    assert told["own before"] == told["own warming up"] == "the script profiles by itself"
    for name in ("own meanwhile", "own in a thread"):
        assert told[name]["why"] == "the script profiles by itself" and 0 < len(told[name]["steps"]) < 20
    assert told["child"] == 5 and "the script forked" in told["fork"]["why"] and len(told["fork"]["steps"]) == 3
    assert told["long step"]["why"].startswith("a step went on for ") and len(told["long step"]["steps"]) == 2
    assert "has not ended for" in told["no Python"] and "is taken off as soon as it does" in told["no Python"]
    assert told["called off"] == "it was called off before it began"
    assert told["no step"] == "no optimizer's step ended on the thread that trains"
    assert len(told["several optimizers"]["steps"]) == 2 and len(told["capture"]["steps"]) == 2
    assert "room that the trace may take" in told["no room"]
    assert len(told["full"]["steps"]) == 3 and told["full"]["why"] == ""
    assert len(told["blind"]["steps"]) == 3 and told["interrupted"] is told["failing"] is False
    assert told["signalled"] == "the script's" and told["signalled, answer"] == "TimeoutError: the script's"
    assert "'epoch 3' was under way" in told["named"] and "torch crashes" in told["named"]


@pytest.mark.parametrize(("how", "status", "says"), [("exit", 3, ""), ("raise", 1, 'KeyError: "the script\'s own"')])
def test_a_script_that_ends_while_the_profiler_is_on_ends_as_it_would(
    bed: Bed, how: str, status: int, says: str
) -> None:
    done = finish(bed.start([SCRIPT, "-", how]))
    assert done.returncode == status and says in done.stderr and "fault" not in done.stderr.lower()


@pytest.mark.parametrize(
    "arguments",
    [{"steps": 0, "seconds": 9}, {"steps": 21, "seconds": 9}, {"steps": 1, "seconds": 301},
     {"steps": 1, "seconds": float("nan")}, {}],
)  # fmt: skip
def test_what_is_refused(rank: Rank, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="steps can be profiled"):
        Profiling(rank, arguments)


class _Torch:
    """As much of it as is asked for graphs."""

    class version:  # as torch has it
        cuda = "12.4"

    class autograd:
        @staticmethod
        def _profiler_enabled() -> bool:
            return False


def test_other_profilers_and_graphs_of_old_cuda(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert find_obstacle(rank, torch) == "" and find_obstacle(rank, _Torch) == ""
    rank.has_captured = True
    assert "captured graphs, which the profiler of CUDA 12.4 breaks" in find_obstacle(rank, _Torch)
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    assert find_obstacle(rank, torch) == "Nsight Systems profiles it"


def test_a_rank_without_optimizers(rank: Rank) -> None:
    with pytest.raises(ValueError, match="has not imported torch's optimizers"):
        Profiling(rank, {"steps": 1, "seconds": 9})
