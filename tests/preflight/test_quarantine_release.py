"""What a full pre-flight says of a device that the node was isolated for: tried with the others, and read once more."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.supervisor.health.quarantine_rules import AUTOMATIC, Isolation
from guardrun.supervisor.preflight.base.remark import Remark, Subject, note, ok, refuse, warn
from guardrun.supervisor.preflight.quarantine_release import release_mended
from guardrun.supervisor.quarantine.record_places import find_places, names_here
from guardrun.supervisor.quarantine.records import isolate_node, read_holding
from tests.sensors.nvml_stub import NvmlStub

PASSED = [ok("gpus", "2 GPUs."), ok("product", "9 matrix products."), ok("pattern", "Fine."), ok("bandwidth", "Fast.")]


@pytest.fixture
def check(
    subject: Callable[..., Subject], nvml_stub: NvmlStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[bool, str]]:
    """Isolate for a throttling GPU, end a pre-flight with these remarks: is the node free, and what was said of it?"""
    monkeypatch.setenv("GUARDRUN_AGENT_SOCKET", str(tmp_path / "no-agent.sock"))
    monkeypatch.setenv("SLURMD_NODENAME", "node-a")
    nvml_stub.set(gpus=2)

    def run(remarks: list[Remark], *, is_full: bool = True, uuid: str = "", **environ: str) -> tuple[bool, str]:
        state = str(tmp_path / "state")
        asked = subject(environ={**nvml_stub.variables, "SLURMD_NODENAME": "node-a", **environ}, state_dir=state)
        places = find_places(state, "", asked.environ, "node-a")
        finding = f"throttle/gpu:{uuid or first_uuid(asked)}"
        hot = Isolation(
            cause="thermal_throttle", who=AUTOMATIC, since_wall_s=time.time() - 3600, evidence={"finding": finding}
        )
        isolate_node(places, "node-a", hot, time.time())
        assert "node-a" in names_here(asked.environ)
        told = " ".join(one.summary for one in release_mended(asked, remarks, is_full=is_full))
        return not read_holding(places, "node-a", time.time())[0], told

    return run


def first_uuid(subject: Subject) -> str:
    from guardrun.supervisor.preflight.checks import gpu_health
    from guardrun.supervisor.preflight.checks.gpus import read_gpus

    return gpu_health.gpus_of(read_gpus(subject.environ, 20.0))[0].uuid


@pytest.mark.real("cc")
def test_a_device_that_has_worked_and_stayed_cool_is_well(check: Callable[..., tuple[bool, str]]) -> None:
    is_free, told = check(PASSED)
    assert is_free and "is lifted by this pre-flight" in told


@pytest.mark.real("cc")
@pytest.mark.parametrize(
    ("remarks", "said"),
    [
        ([*PASSED, refuse("product", "GPU 1 computes wrongly.", "Replace it.")], "GPU 1 computes wrongly"),
        ([*PASSED, warn("bandwidth", "GPU 1 is slow.", "Look.")], "GPU 1 is slow"),
        ([*PASSED, note("trial", "There are no GPUs here: the trial was the CPU's.")], "There are no GPUs here"),
    ],
    ids=["wrong", "slow", "untried"],
)
def test_a_trial_that_did_not_pass_lifts_nothing(
    check: Callable[..., tuple[bool, str]], remarks: list[Remark], said: str
) -> None:
    is_free, told = check(remarks)
    assert not is_free and f"stays: {said}" in told


@pytest.mark.real("cc")
def test_one_that_throttles_after_its_work_stays_isolated(
    check: Callable[..., tuple[bool, str]], nvml_stub: NvmlStub
) -> None:
    nvml_stub.set(gpu=1, reasons="hw_slowdown,hw_thermal")
    is_free, told = check(PASSED)
    assert not is_free and "is throttled: its hardware slows it down because it is too hot" in told


@pytest.mark.real("cc")
def test_one_that_was_not_among_those_tried_stays_isolated(check: Callable[..., tuple[bool, str]]) -> None:
    assert check(PASSED, uuid="GPU-elsewhere")[1].count("GPU-elsewhere was not tried") == 1
    assert not check(PASSED, CUDA_VISIBLE_DEVICES="1")[0]


@pytest.mark.real("cc")
def test_a_quick_look_shows_nothing_of_heat(check: Callable[..., tuple[bool, str]]) -> None:
    is_free, told = check(PASSED, is_full=False)
    assert not is_free and "guardctl check --full" in told
