"""A wall clock that is set back by an hour in mid-run: nothing is decided by it.

The machine's own clock is left alone: a small library, loaded into every process of the run, answers in its place.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.edge.runs import RESUME, EdgeRuns, finish, only, ranks_of
from tests.support.waiting import wait_until

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static int (*real)(clockid_t, struct timespec *);
int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, at);
    const char *file = getenv("CLOCK_BACK_FILE");
    if (status == 0 && id == CLOCK_REALTIME && file && access(file, F_OK) == 0) at->tv_sec -= 3600;
    return status;
}
"""


@pytest.fixture
def clock(tmp_path: Path) -> dict[str, str | None]:
    """Environment in which CLOCK_REALTIME is an hour earlier as soon as the file `back` is there."""
    (tmp_path / "clock.c").write_text(SOURCE)
    library = tmp_path / "clock.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(tmp_path / "clock.c"), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "CLOCK_BACK_FILE": str(tmp_path / "back")}


@pytest.mark.real("cc")
def test_a_clock_set_back_by_an_hour_changes_nothing(edge: EdgeRuns, clock: dict[str, str | None]) -> None:
    config = RESUME + "[hang]\nfloor_s = 2\n"
    run = edge.start("plain.py", "--when", "now:stop", "--steps", "100000", config=config, env=clock)
    wait_until((edge.folder / "out/ckpt_50.safetensors").exists, 60, "fifty steps")
    (edge.folder / "back").touch()
    wait_until((edge.folder / "out/ckpt_150.safetensors").exists, 60, "a hundred more")
    assert run.incidents() == []
    (edge.folder / "now").touch()
    wait_until(lambda: any(incident["recovered"] for incident in run.incidents()), 60, "a stopped rank to be mended")
    run.send(signal.SIGTERM)
    finished = finish(run, 60)
    incident = only(finished)
    assert finished.returncode == 143
    assert (incident["cause"], ranks_of(incident), incident["action"]) == ("rank_stopped", [1], "restart")
    assert incident["resumed_from"]["step"] == 10 * (incident["step"] // 10)
    assert incident["onset"] <= incident["detected"] <= incident["recovered"]
    summary = finished.summary
    assert summary is not None
    assert 0 < summary["wall_s"] < 120
    assert 0 <= summary["goodput"] <= 1
    assert all(seconds >= 0 for seconds in summary["lost_s"].values())
    assert finished.run_dir is not None
    lines = [json.loads(line) for line in (finished.run_dir / "events.jsonl").read_text().splitlines()]
    times = [line["t"] for line in lines]
    walls = [line["wall"] for line in lines]
    assert times == sorted(times)
    assert walls != sorted(walls), "the clock was not set back"
