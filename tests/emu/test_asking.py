"""What asking a recorder costs a device, and what torch's own dump tells: measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.collect.collectives.dump_pipe import dump_by_pipe, find_pipe
from guardrun.supervisor.collect.collectives.flight_recorder import parse_counts, parse_trace
from tests.emu.ranks import QUICK
from tests.support.guardrun_run import MARK, clean_environment
from tests.support.processes import kill_marked
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("g++")

SCRIPT = Path(__file__).parent / "scripts" / "asked.py"
CALLS = 50
HELD_S = 3


@pytest.fixture
def asked(library: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A rank with so many calls pending, and torch's own pipe."""
    mark = f"asked-{tmp_path.name}"
    more = {**QUICK, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe-")}
    more |= {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump-"), MARK: mark}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path), str(CALLS)],
        env=clean_environment(mark, more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    kill_marked(MARK, mark)
    process.communicate()


def test_numbers_cost_the_device_nothing_and_entries_a_query_each(asked: subprocess.Popen[str], tmp_path: Path) -> None:
    """One rank for all of it: timeouts that were raised, and torch's own dump with and without the GIL."""
    assert asked.stdout is not None and asked.stdin is not None
    told = json.loads(asked.stdout.readline())
    print(told)
    assert told["numbers"]["queries"] == 0
    assert told["entries"]["queries"] == CALLS
    # A group's timeout counts for what is issued after it was set.
    assert told["timeouts_s"] == [600] + [2100] * CALLS

    stem, prefix = str(tmp_path / "pipe-"), str(tmp_path / "dump-")
    wait_until(lambda: find_pipe(asked.pid, stem), 20, "torch's pipe")
    data = dump_by_pipe(asked.pid, stem, prefix, time.monotonic() + 20)
    assert data is not None
    trace = parse_trace(data)
    assert trace.trouble == ""
    assert [entry.seq for entry in trace.entries if not entry.is_done] == list(range(2, CALLS + 2))
    assert parse_counts(data) == {"0": [CALLS + 1, -1, 1]}

    # With the GIL held torch's dump waits for it: it has Python's stacks, which nobody can do without.
    asked.stdin.write("\n")
    asked.stdin.flush()
    assert asked.stdout.readline() == "holds\n"
    assert dump_by_pipe(asked.pid, stem, prefix, time.monotonic() + HELD_S) is None
    asked.stdin.write("\n")
    asked.stdin.flush()
    assert asked.stdout.readline() == "held\n"
    asked.stdin.write("\n")
    asked.stdin.flush()
    assert asked.wait(60) == 0
