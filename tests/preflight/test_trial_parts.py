"""Each part of the trial finds what it is there for: arithmetic, memory and sums that are made wrong on purpose.

In processes of their own: a device binds its process to a core, and torch's operators are replaced there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from guardrun.supervisor.preflight import full_preflight
from guardrun.supervisor.preflight.base.remark import Severity, Subject
from guardrun.supervisor.preflight.device_trial import Answer, Trial, ask_all

CORES = sorted(os.sched_getaffinity(0))

PROGRAM = """
import json, sys
import torch
from guardrun.launcher.device_trial import device as pattern, device as product, device as sums
from guardrun.launcher.device_trial.device import Device
product.CPU_SIZE, product.CPU_S, pattern.CPU_MOST_BYTES = 64, 0.0, pattern.CHUNK_BYTES
device = Device(f"cpu:{sys.argv[1]}")
{replacement}
print(json.dumps({call}))
"""

FLIPPED_ONCE = """
multiply = torch.Tensor.__matmul__
def wrong(left, right):
    result = multiply(left, right)
    if result.dtype == torch.float32:
        result[3, 5] += 1
    return result
torch.Tensor.__matmul__ = wrong
"""
NOW_SO_NOW_SO = """
multiply, calls = torch.Tensor.__matmul__, [0]
def unsteady(left, right):
    result = multiply(left, right)
    calls[0] += 1
    if result.dtype == torch.float32 and calls[0] > 8:
        result[0, 0] += 1e-3 * calls[0]
    return result
torch.Tensor.__matmul__ = unsteady
"""
LOST_BIT = """
fill = torch.Tensor.fill_
def forgetful(tensor, value):
    fill(tensor, value)
    tensor[12345] ^= 1 << 40
    return tensor
torch.Tensor.fill_ = forgetful
"""
STUCK_ADDRESS = """
add = torch.add
def stuck(left, right, out):
    add(left, right, out=out)
    out[4096:8192] = out[:4096].clone()
    return out
torch.add = stuck
"""
LOST_SUM = """
import torch.distributed as dist
def lossy(tensor):
    tensor[7] += 1
sums.dist.all_reduce = lossy
"""


def run(call: str, replacement: str = "") -> dict[str, int]:
    code = PROGRAM.replace("{call}", call).replace("{replacement}", replacement)
    command = [sys.executable, "-c", code, str(CORES[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_a_sound_device() -> None:
    product = run("product.try_product(device)")
    assert (product["wrong"], product["unsteady"], product["turns"]) == (0, 0, 2)
    assert run("pattern.try_pattern(device)")["wrong"] == 0


@pytest.mark.parametrize(
    ("call", "replacement", "field"),
    [
        ("product.try_product(device)", FLIPPED_ONCE, "wrong"),
        ("product.try_product(device)", NOW_SO_NOW_SO, "unsteady"),
        ("pattern.try_pattern(device)", LOST_BIT, "wrong"),
        ("pattern.try_pattern(device)", STUCK_ADDRESS, "wrong"),
    ],
    ids=["one element", "not always the same", "one bit", "an address line"],
)
def test_an_unsound_one_is_found(call: str, replacement: str, field: str) -> None:
    assert run(call, replacement)[field] > 0


def test_a_sum_that_is_wrong_is_found(tmp_path: Path) -> None:
    call = f"sums.try_reduce(device, {str(tmp_path / 'store')!r}, 0, 1)"
    assert run(call)["wrong"] == 0
    (tmp_path / "store").unlink(missing_ok=True)
    assert run(call, LOST_SUM)["wrong"] == 1


def test_the_device_that_hangs_in_the_middle_is_named_and_the_others_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is stopped before the product, as a driver's call that does not return would hold it."""
    monkeypatch.setattr(full_preflight, "MAX_CORES", 2)

    def ask_stopped(trials: Sequence[Trial], part: str, timeout_s: float) -> Mapping[str, Answer]:
        if part != "product":
            return ask_all(trials, part, timeout_s)
        os.kill(trials[-1].pid, signal.SIGSTOP)
        return {**ask_all(trials[:-1], part, timeout_s), **ask_all(trials[-1:], part, 0.5)}

    monkeypatch.setattr(full_preflight, "ask_all", ask_stopped)
    remarks = full_preflight.run_full(Subject(node="n", cwd=str(tmp_path), environ=dict(os.environ)))
    [refused] = [one for one in remarks if one.severity is Severity.REFUSE]
    hanging = CORES[:: max(1, len(CORES) // 2)][:2][-1]
    assert f"CPU {hanging} did not come back from a matrix product" in refused.summary
    checks = {one.check for one in remarks if one.severity is not Severity.REFUSE}
    assert "reduce" not in checks, "all have to be there for that"
    if len(CORES) > 1:
        assert {"product", "pattern", "bandwidth"} <= checks
