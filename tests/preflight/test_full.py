"""The trial of the devices, for real on cores of the CPU; and devices that hang, die or fail in the middle of it."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from guardrun.supervisor.preflight import full_preflight
from guardrun.supervisor.preflight.base.remark import Severity, Subject
from guardrun.supervisor.preflight.device_trial import Trial, ask_all, hear_all
from tests.cli.conftest import Ctl, ctl, runs  # noqa: F401  # fixtures

OK, NOTE, WARN, REFUSE = Severity
CORE = min(os.sched_getaffinity(0))
START_S = 60.0


@pytest.fixture
def log() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        yield file


@pytest.fixture
def trial(log: IO[bytes], tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    started: list[Trial] = []

    def start(device: str = f"cpu:{CORE}", environ: dict[str, str] | None = None) -> Trial:
        environ = {**os.environ, **(environ or {})}
        started.append(
            Trial(device, rank=0, ranks=1, store=str(tmp_path / "store"), environ=environ, log=log),
        )
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_guardctl_check_full(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Twice: the second has something to compare with."""
    monkeypatch.setenv("GUARDRUN_NODE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(full_preflight, "MAX_CORES", 2)
    past = {f"CPU {core}": {"memory": [1.0] * 3, "bus": [1e15] * 3} for core in os.sched_getaffinity(0)}
    full_preflight.keep_bandwidths(str(tmp_path / "state"), past, {})
    data = ctl.json("check", "--full")
    assert data["level"] == "full" and data["verdict"] in ("note", "warn")
    found = {one["check"]: one for one in data["remarks"]}
    assert found["trial"]["severity"] == "note" and "CPU" in found["trial"]["summary"]
    assert {found[name]["severity"] for name in ("product", "pattern")} == {"ok"}
    cores = min(2, len(os.sched_getaffinity(0)))
    measured = [one for one in data["remarks"] if one["check"] == "bandwidth"]
    assert {one["evidence"]["measure"] for one in measured} == ({"memory", "bus"} if cores > 1 else {"memory"})
    assert {one["severity"] for one in measured if one["evidence"]["measure"] == "memory"} == {"ok"}
    assert {one["severity"] for one in measured if one["evidence"]["measure"] == "bus"} <= {"warn"}
    assert (
        len(full_preflight.read_bandwidths(str(tmp_path / "state"))[measured[0]["evidence"]["device"]]["memory"]) == 4
    )
    if cores > 1:
        assert found["reduce"]["severity"] == "ok"


def test_a_device_that_hangs_is_told_and_ended(trial: Callable[..., Trial]) -> None:
    one = trial()
    assert hear_all([one], "ready", START_S)[one.device].error == ""
    os.kill(one.pid, signal.SIGSTOP)
    answer = ask_all([one], "product", 0.5)[one.device]
    assert answer.is_hanging and "product" in answer.error
    began_s = time.monotonic()
    assert ask_all([one], "pattern", 100.0)[one.device].error == answer.error, "never asked again"
    assert time.monotonic() - began_s < 60


def test_a_device_whose_process_is_killed(trial: Callable[..., Trial]) -> None:
    one = trial()
    assert hear_all([one], "ready", START_S)[one.device].error == ""
    os.kill(one.pid, signal.SIGKILL)
    assert "killed by signal 9" in ask_all([one], "product", 10.0)[one.device].error


def test_a_device_that_is_not_there(trial: Callable[..., Trial]) -> None:
    one = trial("cuda:0", {"CUDA_VISIBLE_DEVICES": ""})
    answer = hear_all([one], "ready", START_S)[one.device]
    assert answer.error and not answer.is_hanging


def test_a_part_that_raises_says_so_and_the_next_still_answers(trial: Callable[..., Trial]) -> None:
    one = trial()
    assert hear_all([one], "ready", START_S)[one.device].error == ""
    assert "KeyError" in ask_all([one], "nonsense", 10.0)[one.device].error
    assert ask_all([one], "pattern", START_S)[one.device].data["wrong"] == 0


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_preflight, "MAX_CORES", 1)
    monkeypatch.chdir(tmp_path)
    remarks = full_preflight.run_full(Subject(node="n", cwd=str(tmp_path), environ=dict(os.environ)))
    assert {one.check for one in remarks} == {"trial", "product", "pattern", "bandwidth"}
    assert max(one.severity.rank for one in remarks) == NOTE.rank
    assert list(tmp_path.iterdir()) == []
