"""The device's allocator has the figures of torch's; a leak, and what it can't use, are told by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.emu.ranks import LIGHT, SCRIPT
from tests.runs.runs import check_show
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("g++")

HABITS = SCRIPT.with_name("memory.py")
MIB = 1 << 20
DEVICE_MB = 400
WINDOWS = """
[leaks]
memory_window_s = 1.5
"""

FIGURES = """
import json, sys
import torch
from tests.emu import device as emu
emu.use()
MIB = 1 << 20
told = []
def tell():
    stats = torch.accelerator.memory_stats()
    names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes", "segment")
    told.append([stats[f"{name}.all.current"] for name in names] + [stats["num_alloc_retries"], stats["num_ooms"]])
def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="emu")
a = empty(100); tell()                       # a block of 512 in a segment of 2 MiB
b = empty(3 * MIB); tell()                   # in one of 20 MiB
c = empty(11 * MIB); tell()                  # fits into what is left of it
del b; tell()
d = empty(4 * MIB); tell()                   # not into what b has left, but behind c
e = empty(30 * MIB + 1); tell()              # a segment of its own
del e; tell()
f = empty(36 * MIB); tell()                  # there is no room beside that, until it is given back
try:
    empty(64 * MIB)
except torch.OutOfMemoryError as error:
    told.append(str(error).split("\\n")[0])
tell()
told.append(list(torch.accelerator.get_memory_info()))
emu.set_others(MIB)
told.append(list(torch.accelerator.get_memory_info()))
json.dump(told, sys.stdout)
"""


def test_figures_are_those_of_a_caching_allocator(library: Path) -> None:
    env = {**os.environ, **LIGHT, "EMU_MEMORY_MB": "64"}
    done = subprocess.run([sys.executable, "-c", FIGURES], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    told: list[Any] = json.loads(done.stdout)
    small, rest = 2 * MIB, 2 * MIB - 512
    assert told[0] == [512, small, rest, 1, 0, 0]
    assert told[1] == [512 + 3 * MIB, small + 20 * MIB, rest + 17 * MIB, 2, 0, 0]
    assert told[2] == [512 + 14 * MIB, small + 20 * MIB, rest + 6 * MIB, 2, 0, 0]
    assert told[3] == [512 + 11 * MIB, small + 20 * MIB, rest + 9 * MIB, 2, 0, 0]
    assert told[4] == [512 + 15 * MIB, small + 20 * MIB, rest + 5 * MIB, 2, 0, 0]
    assert told[5] == [512 * 2 + 45 * MIB, small + 52 * MIB, 2 * rest + 5 * MIB, 3, 0, 0]
    assert told[6] == [512 + 15 * MIB, small + 52 * MIB, rest + 5 * MIB, 3, 0, 0]
    assert told[7] == [512 + 51 * MIB, small + 56 * MIB, rest + 5 * MIB, 3, 1, 0]
    assert told[8].startswith("CUDA out of memory. Tried to allocate 64 MiB. GPU 0 has a total capacity of 64 MiB")
    assert told[9] == [512 + 51 * MIB, small + 56 * MIB, rest + 5 * MIB, 3, 2, 1]
    assert told[10:] == [[6 * MIB, 64 * MIB], [5 * MIB, 64 * MIB]]


def test_ranks_whose_devices_fill_up_are_told_and_train_on(
    start_guardrun: Callable[..., GuardrunRun], library: Path, tmp_path: Path
) -> None:
    """One leaks, one fragments; the first evaluates, keeps what it needs for that, and gives it back.

    Asked what it keeps, the one that leaks names the line, though to Python what that keeps is next to nothing.
    """
    end = tmp_path / "end"
    env = {**LIGHT, "EMU_MEMORY_MB": str(DEVICE_MB)}
    arguments = ["--nproc-per-node=3", str(HABITS), str(end), "tidy", "leaks", "streams"]
    run = start_guardrun(arguments, config=WINDOWS, env=env)
    wait_until(lambda: _steps(run) >= 5, 60, "steps")
    for seconds in ("10", "30", "45"):
        memory = json.loads(run.guardctl("memory", "1", "--seconds", seconds, "--json"))["ranks"]["1"]
        if memory["grown"]["steps"] >= 5:  # of a busy machine, ten seconds are too few for them
            break
    wait_until(lambda: len(run.incidents()) == 2, 60, "two incidents")
    end.touch()
    finished = run.wait()
    assert finished.returncode == 0, finished
    steps = memory["grown"]["steps"]
    (losses,) = [one for one in memory["tensors"] if one["device"].startswith("emu") and one["shape"] == []]
    assert steps >= 5 and losses["tensors"] >= 0.8 * steps and losses["bytes"] == 4 * losses["tensors"]
    assert memory["grown"]["device_bytes"] >= 0.8 * steps * MIB
    line = 1 + next(n for n, text in enumerate(HABITS.read_text().splitlines()) if "losses.append(" in text)
    sites = [site for site in memory["sites"] if site["line"] == line and site["file"] == str(HABITS)]
    assert max(site["objects"] for site in sites) >= 0.8 * steps
    told = {incident["cause"]: incident for incident in finished.incidents}
    check_show("device memory grows", finished, told["gpu_leak"]["id"])
    check_show("device memory in pieces", finished, told["gpu_fragmentation"]["id"])
    for cause, rank, words in (
        ("gpu_leak", 1, "in tensors that stay from step to step"),
        ("gpu_fragmentation", 2, "until what it didn't use was given back: its tensors never had more than 24"),
    ):
        incident = told.pop(cause)
        assert (incident["kind"], incident["action"]) == ("memory", "none")
        assert [culprit["rank"] for culprit in incident["culprits"]] == [rank]
        assert words in incident["summary"]
        evidence = incident["evidence"]
        assert evidence["limit_bytes"] == evidence["device_bytes"] == DEVICE_MB * MIB
        if cause == "gpu_leak":
            most_s = max(120.0, 800 * float(seconds) / steps)  # of 400 MiB one goes with each step, however long it is
            assert 0 < evidence["left_range_s"][0] <= evidence["left_s"] <= evidence["left_range_s"][1] < most_s
        else:
            assert evidence["new_retries"] >= 6 and evidence["ooms"] == 0
    assert told == {}


def _steps(run: GuardrunRun) -> int:
    if run.run_dir is None or not (run.run_dir / "run.json").exists():
        return 0
    ranks = json.loads(run.guardctl("status", "--json"))["ranks"]
    return min((rank["step"] or 0 for rank in ranks), default=0)
