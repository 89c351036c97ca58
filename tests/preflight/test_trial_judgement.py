"""What answers of devices under trial mean, and when a bandwidth is too low."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.preflight import device_trial, full_preflight
from guardrun.supervisor.preflight.base.remark import Severity
from guardrun.supervisor.preflight.checks.gpu_health import Gpu
from guardrun.supervisor.preflight.device_trial import Answer
from guardrun.supervisor.preflight.full_preflight import Plan, name_devices

OK, NOTE, WARN, REFUSE = Severity


def products(*digests: str, **changes: Any) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Devices A, B, … of one model, each with the digests of its turns as letters; changes to the first."""
    answers = {
        f"GPU {place}": {"turns": len(text), "wrong": 0, "unsteady": 0, "digests": list(text)}
        for place, text in enumerate(digests)
    }
    answers["GPU 0"] |= changes
    return answers, dict.fromkeys(answers, "H100")


@pytest.mark.parametrize(
    ("given", "severities", "device"),
    [
        (products("abc", "abc"), [OK], None),
        (products("abc", "abcdef"), [OK], None),
        (products("abc"), [OK], None),
        (products("abc", "abx", "abc"), [REFUSE], "GPU 1"),
        (products("abc", "abx"), [WARN], None),
        (products("abc", "abc", wrong=2), [REFUSE], "GPU 0"),
        (products("xbc", "abc", "abc", wrong=2), [REFUSE], "GPU 0"),
        (products("abc", "abc", unsteady=1), [REFUSE], "GPU 0"),
    ],
    ids=["equal", "one did more", "one alone", "odd one", "who of two?", "wrong", "wrong and odd", "unsteady"],
)
def test_products(given: Any, severities: list[Severity], device: str | None) -> None:
    remarks = device_trial.judge_products(*given)
    assert [one.severity for one in remarks] == severities
    assert remarks[0].evidence.get("device") == device


def test_devices_of_other_models_need_not_agree() -> None:
    answers, _ = products("abc", "xyz")
    assert device_trial.judge_products(answers, {"GPU 0": "H100", "GPU 1": "A100"})[0].severity is OK


def test_cores_that_differ_are_no_proof() -> None:
    answers = {
        f"CPU {core}": {"turns": 1, "wrong": 0, "unsteady": 0, "digests": [bits]} for core, bits in enumerate("aab")
    }
    [remark] = device_trial.judge_products(answers, dict.fromkeys(answers, "CPU"))
    assert remark.severity is WARN and "CPU 2" in remark.summary


def test_failures() -> None:
    hanging = device_trial.judge_failure("product", "GPU 3", Answer({}, "it did not come back", is_hanging=True))
    assert (
        hanging is not None
        and hanging.severity is REFUSE
        and "GPU 3 did not come back from a matrix" in hanging.summary
    )
    failed = device_trial.judge_failure("ready", "GPU 3", Answer({}, "RuntimeError: no CUDA"))
    assert failed is not None and failed.severity is WARN and "no CUDA" in failed.summary
    assert device_trial.judge_failure("ready", "GPU 3", Answer({"part": "ready"})) is None


def test_memory_and_sums() -> None:
    good, bad = {"wrong": 0, "bytes": 1 << 30}, {"wrong": 1, "bytes": 1 << 30}
    assert device_trial.judge_patterns({"GPU 0": good, "GPU 1": good})[0].severity is OK
    [remark] = device_trial.judge_patterns({"GPU 0": good, "GPU 1": bad})
    assert remark.severity is REFUSE and "GPU 1 lost 1 word" in remark.summary
    assert device_trial.judge_reduce({"GPU 0": good, "GPU 1": bad})[0].severity is REFUSE
    assert device_trial.judge_patterns({}) == device_trial.judge_reduce({}) == []


@pytest.mark.parametrize(
    ("past", "speed", "severity"),
    [
        ([], 50e9, NOTE),
        ([50e9] * 2, 10e9, NOTE),
        ([50e9] * 3, 50e9, OK),
        ([50e9] * 3, 35.1e9, OK),
        ([50e9] * 3, 34.9e9, WARN),
        ([50e9, 50e9, 1e9], 34e9, WARN),
    ],
)
def test_bandwidth_against_the_nodes_own_history(past: list[float], speed: float, severity: Severity) -> None:
    assert full_preflight.judge_bandwidth("GPU 0", "to_device", speed, past).severity is severity


def test_history_is_kept_and_bounded(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    for n in range(full_preflight.KEPT + 5):
        full_preflight.keep_bandwidths(
            folder, full_preflight.read_bandwidths(folder), {"GPU-a": {"to_device": float(n)}}
        )
    kept = full_preflight.read_bandwidths(folder)["GPU-a"]["to_device"]
    assert (len(kept), kept[-1]) == (full_preflight.KEPT, full_preflight.KEPT + 4.0)
    (tmp_path / "state" / full_preflight.BANDWIDTHS_FILE).write_text("{")
    assert full_preflight.read_bandwidths(folder) == {}
    full_preflight.keep_bandwidths("/proc/none", {}, {"GPU-a": {"to_device": 1.0}})


FAST, SLOW_ONE = "NVIDIA H100", "NVIDIA A2"


def plan_of(*models: str) -> Plan:
    """GPUs in NVML's order."""
    gpus = [
        Gpu(f"GPU-{place}", {"index": place, "model": model, "bus": f"0000:0{place}:00"})
        for place, model in enumerate(models)
    ]
    devices = tuple(f"cuda:{place}" for place in range(len(gpus)))
    return Plan(devices, {}, {}, {}, [], tuple(gpus))


def test_torchs_numbers_are_not_nvmls() -> None:
    """By default CUDA has the fastest first: the device that computes wrongly must not be another one in the report."""
    told = {"cuda:0": {"uuid": "1", "bus": "0000:01:00"}, "cuda:1": {"uuid": "0", "bus": ""}}
    named = name_devices(plan_of(SLOW_ONE, FAST), told, {})
    assert named.titles == {"cuda:0": f"GPU 1 ({FAST})", "cuda:1": f"GPU 0 ({SLOW_ONE})"}
    assert named.models == {f"GPU 1 ({FAST})": FAST, f"GPU 0 ({SLOW_ONE})": SLOW_ONE}
    assert named.keys[f"GPU 1 ({FAST})"] == "GPU-1"


@pytest.mark.parametrize("told", [{}, {"cuda:0": {"uuid": "unheard-of"}, "cuda:1": {"uuid": "0", "bus": "0000:01:00"}}])
def test_a_device_that_nobody_can_name_is_called_by_torchs_number(told: dict[str, dict[str, object]]) -> None:
    named = name_devices(plan_of(SLOW_ONE, FAST), told, {})
    assert named.titles == {device: f"the GPU that torch calls {device}" for device in ("cuda:0", "cuda:1")}
    assert len(set(named.models.values())) == 2, "whose model is not known is compared with nobody"
    assert set(name_devices(plan_of(FAST, FAST), told, {}).models.values()) == {FAST}


def test_without_a_word_of_torchs_numbers_do_where_their_order_is_known() -> None:
    assert name_devices(plan_of(FAST), {}, {}).titles == {"cuda:0": f"GPU 0 ({FAST})"}
    named = name_devices(plan_of(FAST, FAST), {}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert named.titles == {"cuda:0": f"GPU 0 ({FAST})", "cuda:1": f"GPU 1 ({FAST})"}
