"""Whom a device waits for, timed on it: FSDP, tensor parallel and pipelines on the emulated device."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.patches.device_timing import FSDP1, FSDP2
from guardrun.hooks.wire.board import Field, Milestone
from guardrun.hooks.wire.messages import HookFailed
from guardrun.supervisor.cli.base.verb import read_run
from guardrun.supervisor.cli.verbs.report import UNSEEN, read_story
from tests.emu.ranks import LIGHT, SCRIPT
from tests.emu.scripts.timed import SLOW_S
from tests.hooks.bed import Bed, finish
from tests.support.guardrun_run import Finished, GuardrunRun
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("g++")

TIMED = SCRIPT.with_name("timed.py")
WINDOWS = "[slowdown]\nwindow_s = 3\n"


def own_s(sums: list[int]) -> float:
    steps, took_ns, waited_ns, _data_ns, _gc_ns = sums
    assert steps >= 3
    return (took_ns - waited_ns) / steps / 1e9


def test_a_device_that_is_slower_is_told_from_those_that_wait_for_it(library: Path, tmp_path: Path) -> None:
    """Devices that are alike are, in every layout; the host waits for neither."""
    [port] = free_ports(1)
    more = {**LIGHT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with Bed(world_size=2) as bed:
        bed.times_devices = True
        ranks = [bed.start([str(TIMED), "--out", str(tmp_path)], rank=rank, more=more) for rank in range(2)]
        done = [finish(rank) for rank in ranks]
        assert [rank.returncode for rank in done] == [0, 0], done
        assert bed.hear_all(HookFailed) == []
        assert not any(bed.board(rank)[Field.MILESTONES] & Milestone.WAITS_UNSEEN for rank in range(2))
    told: list[dict[str, Any]] = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert set(told[0]["functions"]) == {"wait_tensor", *FSDP1, *(name for names in FSDP2.values() for name in names)}
    for layout in told[0]["layouts"]:
        (alike, slow), (other_alike, other_slow) = (each["layouts"][layout] for each in told)
        assert own_s(other_alike) == pytest.approx(own_s(alike), abs=SLOW_S / 2), layout
        assert own_s(other_slow) - own_s(slow) == pytest.approx(SLOW_S, abs=SLOW_S / 2), layout


@pytest.mark.timeout(420)
def test_a_straggler_of_an_fsdp_job_is_told(start_guardrun: Callable[..., GuardrunRun], library: Path) -> None:
    """Long: what is usual is learned first, and the slowness has to last to be believed."""
    slow = ["--kernel-s", "0.1", "--slow-s", "0.3", "--rank", "1", "--at", "200", "--sync-every", "5"]
    arguments = ["--nproc-per-node=2", str(SCRIPT), "--layout", "fsdp", "--steps", "100000", *slow]
    run = start_guardrun(arguments, config=f"{WINDOWS}device_timing = true\n", env=dict(LIGHT))
    # Where a busy machine holds either up, it may have been told of before, for something else.
    sentence = re.compile(r"Rank 1 on \S+ has become slow: .*, who wait for it: steps take ")
    wait_until(lambda: sentence.search(run.stdout + run.stderr), 300, "rank 1 to be told of")


def test_without_it_nobody_is_told_and_the_page_says_so(run_guardrun: Callable[..., Finished], library: Path) -> None:
    """As long as its start takes where much else runs."""
    slow = ["--kernel-s", "0.05", "--slow-s", "0.15", "--rank", "1", "--at", "20"]
    arguments = ["--nproc-per-node=2", str(SCRIPT), "--layout", "fsdp", "--steps", "40", *slow]
    finished = run_guardrun(arguments, config=WINDOWS, env=dict(LIGHT))
    assert finished.returncode == 0 and finished.incidents == [], finished
    assert finished.run_dir is not None
    data, _ = read_story(finished.run_dir, read_run(finished.run_dir), "")
    assert data["troubles"] == [UNSEEN]
