"""Each fault of the emulated device, and what torch's own watchdog says of it: as on a real one."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.emu.conftest import StartRanks
from tests.emu.ranks import Ranks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("g++")

TIMEOUT = ("--steps", "100000", "--timeout-s", "5", "--sync-every", "5")
"""So long a rank of a healthy job may be behind the other, as where a busy machine has not let it run."""
TERMINATED = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0"
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
MONITOR = "Terminating the process after attempting to dump debug info, due to "


def fault(start_ranks: StartRanks, name: str, *arguments: str, **env: str) -> Ranks:
    return start_ranks("--fault", name, "--rank", "1", "--at", "10", *TIMEOUT, *arguments, env=env)


def read_dumps(folder: Path) -> list[dict[str, Any]]:
    return [pickle.loads((folder / f"trace_{rank}").read_bytes()) for rank in range(2)]


def pending(dump: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in dump["entries"] if entry["state"] != "completed"]


def last_enqueued(dump: dict[str, Any]) -> int:
    return int(dump["pg_status"]["0"]["last_enqueued_collective"])


def test_who_never_issues_is_the_one_that_reports_no_timeout(start_ranks: StartRanks, tmp_path: Path) -> None:
    """Its dumps are analysed by torch's own tool, an interpreter more."""
    job = fault(start_ranks, "never_issues", TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "trace_"))
    assert [job.wait(rank) for rank in range(2)] == [-signal.SIGABRT] * 2
    waits, culprit = job.output(0), job.output(1)
    assert WATCHDOG in waits
    # DDP's own reductions are issued where no Python runs.
    assert "Stack trace of the failed collective not found" in waits
    assert "First PG on this rank to signal dumping." in waits
    assert TERMINATED in waits
    assert "Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught" in waits
    assert WATCHDOG not in culprit
    assert "Observed flight recorder dump signal from another rank via TCPStore." in culprit
    assert "Received a dump signal due to a collective timeout from  rank 0 and we will try our best" in culprit
    assert f"{MONITOR}collective timeout or exception." in culprit

    dumps = read_dumps(tmp_path)
    assert last_enqueued(dumps[0]) > last_enqueued(dumps[1])
    assert not pending(dumps[1])
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "trace_"]
    done = subprocess.run(analyser, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "missing ranks: {1}" in said


@pytest.mark.parametrize(
    ("name", "states"), [("stuck_kernel", ["started", "scheduled"]), ("dead_link", ["started", "started"])]
)
def test_where_all_have_issued_only_timing_tells_of_whom(
    start_ranks: StartRanks, tmp_path: Path, name: str, states: list[str]
) -> None:
    env = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"), "TORCH_NCCL_ENABLE_TIMING": "1"}
    # Neither host has more to launch than the call that is stuck: nothing depends on how quickly it does.
    job = fault(start_ranks, name, "--sync-every", "1", **env)
    assert [job.wait(rank) for rank in range(2)] == [-signal.SIGABRT] * 2
    dumps = read_dumps(tmp_path)
    assert last_enqueued(dumps[0]) == last_enqueued(dumps[1])
    assert [entry["collective_seq_id"] for entry in pending(dumps[0])] == [
        entry["collective_seq_id"] for entry in pending(dumps[1])
    ]
    assert [pending(dump)[0]["state"] for dump in dumps] == states
    for rank in range(2):
        assert "failure detected by watchdog at work sequence id: " in job.output(rank)


def test_a_script_that_knows_of_no_fault_gets_it_by_the_environment(start_ranks: StartRanks) -> None:
    job = start_ranks(*TIMEOUT, env={"EMU_FAULT": "sticky_error:1:1"})
    assert job.wait(1) in (1, -signal.SIGABRT)
    assert "CUDA error: an illegal memory access was encountered" in job.output(1)
    assert "Search for `cudaErrorIllegalAddress' in " in job.output(1)


def test_a_sticky_error_is_raised_by_the_next_call_and_its_peer_loses_its_link(start_ranks: StartRanks) -> None:
    job = fault(start_ranks, "sticky_error", "--timeout-s", "60")
    assert job.wait(1) in (1, -signal.SIGABRT)
    assert "CUDA error: an illegal memory access was encountered" in job.output(1)
    assert "CUDA kernel errors might be asynchronously reported at some other API call" in job.output(1)
    assert job.wait(0) in (1, -signal.SIGABRT)
    assert "ncclRemoteError: A call failed possibly due to a network error" in job.output(0)
    assert "raised the following async exception: NCCL error: remote process exited" in job.output(0)


def test_an_asynchronous_error_is_told_steps_after_its_cause(start_ranks: StartRanks) -> None:
    job = fault(start_ranks, "late_error", "--timeout-s", "60", "--sync-every", "100000")
    assert job.wait(1) in (1, -signal.SIGABRT)
    said = job.output(1)
    assert "CUDA error: an illegal memory access was encountered" in said
    assert "befall" not in said, "it was told where it arose"


@pytest.mark.parametrize("name", ["queue_full", "queue_full_with_gil", "gil_in_sync"])
def test_a_host_that_its_device_holds_up(start_ranks: StartRanks, name: str) -> None:
    job = fault(start_ranks, name, EMU_QUEUE="64")
    assert job.wait(1) == -signal.SIGABRT
    if name != "queue_full":  # where nobody keeps it, a busy machine may still take as long to hand it on
        assert "Could not acquire GIL within 300 ms on exit, possible GIL induced hang" in job.output(1)


def test_a_query_that_hangs_stops_the_watchdog_and_the_monitor_ends_the_process(start_ranks: StartRanks) -> None:
    """Long: torch's monitor has to be out of patience first."""
    job = fault(start_ranks, "query_hangs", "--timeout-s", "60")
    assert job.wait(1) == -signal.SIGABRT
    assert "ProcessGroupNCCL's watchdog got stuck for 6 seconds without making progress" in job.output(1)
    assert f"{MONITOR}ProcessGroupNCCL watchdog hang." in job.output(1)


def test_a_rank_that_is_gone_is_a_network_error_to_the_others(start_ranks: StartRanks) -> None:
    job = fault(start_ranks, "exits", "--timeout-s", "60", "--layout", "uneven")
    assert job.wait(1) == 3
    assert job.wait(0) == -signal.SIGABRT
    assert "Stack trace of the failed collective: \n#0 " in job.output(0)
    assert "ncclRemoteError" in job.output(0)
    assert TERMINATED in job.output(0)


def test_a_backward_pass_blocks_on_the_device_s_thread(start_ranks: StartRanks) -> None:
    job = fault(start_ranks, "blocked_in_backward")
    assert job.wait(0) == -signal.SIGABRT
    assert WATCHDOG in job.output(0)
    assert WATCHDOG not in job.output(1)


def test_whoever_writes_into_the_pipe_gets_a_dump_and_training_goes_on(start_ranks: StartRanks, tmp_path: Path) -> None:
    env = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"),
    }
    job = start_ranks("--steps", "100000", "--sync-every", "5", env=env)
    pipe = tmp_path / "pipe_0.pipe"
    wait_until(lambda: "step 10 " in job.output(0) and pipe.exists(), 60, "ten steps")
    pipe.write_bytes(b"1")

    def dump() -> Any:
        with suppress(FileNotFoundError, EOFError, pickle.UnpicklingError):  # it may still be written
            return pickle.loads((tmp_path / "trace_0").read_bytes())
        return None

    assert wait_until(dump, 60, "a dump")["entries"]
    before = job.output(0).count("\n")
    wait_until(lambda: job.output(0).count("\n") > before, 60, "more steps")
