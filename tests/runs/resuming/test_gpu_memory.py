"""A restart on GPUs whose driver frees memory after its processes have ended: a real run over an NVML of the test's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runs.runs import EdgeRuns, finish, journal_of
from tests.sensors.nvml_stub import NvmlStub, build_library
from tests.support.waiting import wait_until

SCRIPT = """
import os, signal, time
from guardrun.hooks import step

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
gpu = 1 - int(rank)
os.environ["CUDA_VISIBLE_DEVICES"] = f"GPU-00000000-0000-0000-0000-{gpu:012d}"
with open(f"gpu-{gpu}/{os.getpid()}", "w") as memory:
    memory.write(str(60 << 30))
while not os.path.exists(f"end-{attempt}"):
    step()
    if rank == "1" and os.path.exists(f"kill-{attempt}"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
"""
FREED_MS, LIMIT_S = 5000, 11.0
CONFIG = f"[restart]\ngpu_memory_s = {LIMIT_S}\n[launcher]\nlinger_s = 0\n"


@pytest.mark.real("cc")
def test_memory_that_is_freed_late_delays_the_restart_and_what_is_not_freed_is_named(
    edge: EdgeRuns, tmp_path: Path
) -> None:
    """Long: an agent is waited for first, then memory, twice; and nothing of it is work."""
    stub = NvmlStub(build_library(tmp_path / "nvml"), tmp_path / "readings")
    stub.set(gpus=2)
    for gpu in range(2):
        (edge.folder / f"gpu-{gpu}").mkdir()
        stub.set(gpu=gpu, process_folder=str(edge.folder / f"gpu-{gpu}"), frees_ms=FREED_MS, memory_used=0)
    script = edge.folder / "train.py"
    script.write_text(SCRIPT)
    env: dict[str, str | None] = {**stub.variables, "GUARDRUN_AGENT_SOCKET": str(edge.folder / "no-agent.sock")}
    run = edge.start(str(script), config=CONFIG, env=env)

    def devices_told() -> int:
        return len(re.findall(r'"0":\{"subject":"gpu:GPU-[0-9-]+1","index":1\}', journal_of(run)))

    wait_until(lambda: devices_told() == 1, 60, "rank 0's device, which is GPU 1")
    (edge.folder / "kill-0").touch()
    wait_until(lambda: devices_told() == 2, 60, "the next attempt's device")
    for ended in (edge.folder / "gpu-0").glob("*.ended"):
        ended.with_suffix("").unlink()  # it is free, and stays so
    stub.set(gpu=0, frees_ms=1 << 40)  # rank 1's
    (edge.folder / "kill-1").touch()
    (edge.folder / "end-2").touch()
    finished = finish(run)
    assert finished.returncode == 0
    first, second = [incident["evidence"]["gpu_memory"][0] for incident in finished.incidents]
    assert (first["why"], first["holders"]) == ("free", [])
    assert 1.0 <= first["waited_s"] < LIMIT_S
    [held] = second["holders"]
    assert (second["why"], held["index"], held["rank"], held["used_bytes"]) == ("limit", 0, 1, 60 << 30)
    words = f"GPU memory of the last attempt was not freed within {LIMIT_S:.0f} s: 60.0 GiB of GPU 0 by process"
    assert words in finished.stderr and f"process {held['pid']} (rank 1), which has ended" in finished.stderr
