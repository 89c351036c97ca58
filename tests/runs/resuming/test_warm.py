"""Ranks that are forked from the warm process are what executed ones are; whatever they can't be is started as ever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs.runs import EdgeRuns, Finished, finish, log_of, read_log
from tests.support import scenes
from tests.support.forkserver.program import other_name
from tests.support.waiting import wait_until

CONFIG = """
[launcher]
warm = "auto"
warm_free_mb = 0
"""
OF_AN_ATTEMPT = (
    "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE", "GUARDRUN_HOOKS",
)  # fmt: skip
"""Variables with another value in each."""
OURS = ("guardrun.", "msgspec", "decimal", "_decimal")
"""Modules of the hooks' thread, which imports them when it comes to it."""


class Restarted:
    """A run whose first attempt was killed when there was a warm process."""

    def __init__(self, folder: Path, finished: Finished, status: str) -> None:
        """status: of guardctl, when there was one."""
        assert finished.returncode == 0 and finished.run_dir is not None, finished
        self.status = status
        self.log = read_log(finished.run_dir)
        self.answers = {
            (attempt, rank): json.loads((folder / f"answers-{attempt}-{rank}.json").read_text())
            for attempt in (0, 1)
            for rank in (0, 1)
        }

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    runs = EdgeRuns(tmp_path_factory.mktemp("warm"))
    executed = {"PYTHON_EXEC": other_name()}
    try:
        run = runs.start("alike.py", "--lr", "3", config=CONFIG, env=executed)
        wait_until(lambda: "warm_ready" in log_of(run) or "warm_given_up" in log_of(run), 90, "a warm process")
        status = scenes.guardctl(runs.folder, "status")
        (runs.folder / "go").touch()
        yield Restarted(runs.folder, finish(run), status)
    finally:
        runs.close()


def without_attempt(name: str, value: Any) -> Any:
    """What does not differ between two attempts of fresh processes, either."""
    if name.startswith("getenv.") and name.removeprefix("getenv.") in OF_AN_ATTEMPT:
        return None
    if isinstance(value, dict):
        return {key: kept for key, kept in value.items() if key not in OF_AN_ATTEMPT}
    if isinstance(value, list):
        kept = [item for item in value if not (isinstance(item, str) and item.startswith((*OURS, *OF_AN_ATTEMPT)))]
        return sorted(kept) if name == "imported.order" else kept
    return value


def imported_by_the_hooks() -> set[str]:
    """By their thread, a quarter of a second after the start: some ranks take as long to their script's first line."""
    sender = "guardrun.hooks.beat.message_sender"
    code = f"import sys; known = {{*sys.modules}}; import {sender}; print(*{{*sys.modules}} - known)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_ranks_of_the_second_attempt_come_of_it(restarted: Restarted) -> None:
    assert not restarted.of("warm_given_up")
    (ready,) = restarted.of("warm_ready")
    assert ready["modules"] > 900
    words = f"warm ranks: ready, {ready['modules']} modules, {ready['memory_mb']} MB"
    assert words in restarted.status.splitlines()
    second = next(line for line in restarted.of("attempt_started") if line["attempt"] == 1)
    assert restarted.of("warm_ranks_started")[0]["pids"] == second["pids"]


@pytest.mark.parametrize("rank", [0, 1])
def test_two_hundred_properties_are_a_cold_rank_s(restarted: Restarted, rank: int) -> None:
    cold, warm = (restarted.answers[attempt, rank]["same"] for attempt in (0, 1))
    assert len(cold) > 200
    compared = {name: [without_attempt(name, one.get(name)) for one in (cold, warm)] for name in {**cold, **warm}}
    differing = {name: values for name, values in compared.items() if values[0] != values[1]}
    if "modules" in differing and set.symmetric_difference(*map(set, differing["modules"])) <= imported_by_the_hooks():
        del differing["modules"]
    assert differing == {}


def test_no_two_ranks_draw_the_same_numbers(restarted: Restarted) -> None:
    drawn = [answers["drawn"] for answers in restarted.answers.values()]
    assert {name: len({one[name] for one in drawn}) for name in drawn[0]} == dict.fromkeys(drawn[0], 4)


def test_ranks_that_stand_no_fork_are_executed_once_more_at_no_cost(edge: EdgeRuns) -> None:
    """More than 20 s: torch is imported by two attempts' ranks, and by the warm process beside the first."""
    config = CONFIG + "[restart]\nmax_restarts = 1\n"
    run = edge.start("stands_no_fork.py", config=config, env={"PYTHON_EXEC": other_name()})
    wait_until(lambda: "warm_ready" in log_of(run) or "warm_given_up" in log_of(run), 90, "a warm process")
    (edge.folder / "go").touch()
    finished = finish(run)
    assert finished.returncode == 0 and finished.run_dir and finished.summary, finished
    log = read_log(finished.run_dir)
    # By number: one that is ordered twice, as where an answer was late, is told twice.
    attempts = {line["attempt"]: line["pids"] for line in log if line["event"] == "attempt_started"}
    assert list(attempts) == [0, 1, 2]
    assert [line["pids"] for line in log if line["event"] == "warm_ranks_started"] == [attempts[1]]
    _, fallen = finished.incidents
    assert (fallen["cause"], fallen["action"]) == ("segfault", "restart")
    assert fallen["evidence"]["warm"] == {"forked": [0, 1], "why": "no step was done"}
    assert finished.summary["restarts"] == 1, "the kill alone"
    assert "its ranks were forked, which may be why: from now on all are executed" in finished.stderr
