"""The emulated device trains right, lets the host run ahead, and its recorder tells what NCCL's does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.collect.collectives.flight_recorder import parse_trace
from tests.emu.conftest import StartRanks
from tests.emu.ranks import QUICK

pytestmark = pytest.mark.real("g++")

STEPS = 20
HOLD_FROM = 3
"""DDP reads sizes of its buckets back from the device in its second step."""


def expected_parameters() -> list[Any]:
    """What the same training gives on the CPU, in one process."""
    import torch

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(STEPS):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return [each.tolist() for each in model.parameters()]


def flat(values: Any) -> list[float]:
    return [one for each in values for one in flat(each)] if isinstance(values, list) else [values]


def entries_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = told["dump"]["entries"]
    return entries


def test_ddp_reaches_the_numbers_of_one_process_while_the_host_runs_ahead(start_ranks: StartRanks) -> None:
    hold = ("--sync-every", "1000", "--hold-from", str(HOLD_FROM))
    job = start_ranks("--steps", str(STEPS), *hold, env={"EMU_QUEUE": "100000"})
    told = [job.told(rank) for rank in range(2)]
    expected = flat(expected_parameters())
    for each in told:
        assert flat(each["parameters"]) == pytest.approx(expected, abs=1e-5)
        # The device stood still while the host launched its steps: that took no step's end to go on.
        launched = each["launched"]["0"]
        ahead = int(launched["last_enqueued_collective"]) - int(launched["last_completed_collective"])
        assert ahead >= STEPS - HOLD_FROM
        assert each["thread"] not in ("", "MainThread")

    dump = told[0]["dump"]
    assert dump["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    names = Counter(entry["profiling_name"] for entry in dump["entries"])
    assert names["nccl:all_reduce"] == STEPS
    assert {entry["state"] for entry in dump["entries"]} == {"completed"}
    assert [entry["collective_seq_id"] for entry in dump["entries"]] == list(range(1, len(dump["entries"]) + 1))
    assert dump["pg_status"]["0"]["last_enqueued_collective"] == str(len(dump["entries"]))

    trace = parse_trace(json.dumps(dump).encode())
    assert not trace.trouble
    assert trace.members == {"0": [0, 1]}
    assert len(trace.entries) == len(dump["entries"])
    assert all(entry.is_done and entry.backend == "nccl" for entry in trace.entries)


AHEAD = """
import torch
from tests.emu import device as emu
emu.use()
slots, x, event = torch.empty(64, pin_memory=True), torch.ones(64, device="emu"), torch.Event("emu")
emu.kernel(0.2)
for number in range(64):
    slots[number].copy_(x[number], non_blocking=True)
    event.record()
emu.synchronize()
print(int(slots.sum()))
"""


def test_a_full_queue_empties_though_its_host_keeps_the_gil(library: Path) -> None:
    """Event.record() does: nothing that runs on the device waits for it.

    Copies and marks take turns in the queue, of an odd length: a copy comes to its end while a mark finds no room.
    """
    env = {**os.environ, **QUICK, "EMU_QUEUE": "5"}
    done = subprocess.run([sys.executable, "-c", AHEAD], env=env, capture_output=True, check=False, timeout=240)
    assert (done.returncode, done.stdout) == (0, b"64\n"), done.stderr.decode()


def test_fsdp_reaches_them_too_on_a_group_of_two_backends(start_ranks: StartRanks) -> None:
    job = start_ranks("--layout", "fsdp", "--steps", str(STEPS), "--backend", "cpu:gloo,emu:nccl")
    told = [job.told(rank) for rank in range(2)]
    for each in told:
        assert flat(each["parameters"]) == pytest.approx(flat(expected_parameters()), abs=1e-5)
        assert each["thread"] not in ("", "MainThread")
    names = Counter(entry["profiling_name"] for entry in entries_of(told[0]))
    assert names["nccl:_reduce_scatter_base"] == 2 * STEPS
    assert names["nccl:_all_gather_base"] >= 2 * STEPS


def test_batches_of_sends_and_receives_are_recorded_as_nccl_s(start_ranks: StartRanks) -> None:
    job = start_ranks("--layout", "pipeline", "--steps", "3", ranks=3)
    told = [job.told(rank) for rank in range(3)]
    middle = entries_of(told[1])
    assert [entry["profiling_name"] for entry in middle[:4]] == [
        "nccl:recv 1<-0",
        "nccl:coalesced",
        "nccl:send 1->2",
        "nccl:coalesced",
    ]
    for part, closing in zip(middle[::2], middle[1::2], strict=True):
        assert (part["is_p2p"], part["state"], part["retired"]) == (True, "scheduled", False)
        assert (closing["is_p2p"], closing["state"], closing["input_sizes"]) == (False, "completed", [])
        assert part["p2p_seq_id"] == closing["p2p_seq_id"]
        assert closing["collective_seq_id"] == 0
    # Each step adds to what rank 0 began with 1 for each rank that it went through on its way down.
    assert [each["losses"] for each in told] == [[]] * 3
    trace = parse_trace(json.dumps(told[1]["dump"]).encode())
    assert all(entry.is_done for entry in trace.entries)
    assert {(entry.op, entry.peer) for entry in trace.entries} == {("recv", 0), ("send", 2), ("recv", 2), ("send", 0)}


def test_uneven_gathers_and_coalesced_reductions_are_recorded_as_nccl_s(start_ranks: StartRanks) -> None:
    job = start_ranks("--layout", "uneven", "--steps", "2", "--sync-every", "1")
    told = [job.told(rank) for rank in range(2)]
    # Parts are number + rank, rank + 1 of them; their sum is then added up over both.
    assert [each["losses"] for each in told] == [[4.0, 10.0]] * 2
    entries = entries_of(told[0])
    names = [entry["profiling_name"] for entry in entries]
    assert names[:3] == ["nccl:_broadcast_oop", "nccl:_broadcast_oop", "nccl:ALLGATHER_coalesced"]
    assert [entry["state"] for entry in entries[:3]] == ["scheduled", "scheduled", "completed"]
    assert len({entry["collective_seq_id"] for entry in entries[:3]}) == 1
    assert [entry["input_sizes"] for entry in entries[:3]] == [[[1]], [[2]], []]
    trace = parse_trace(json.dumps(told[0]["dump"]).encode())
    assert all(entry.is_done for entry in trace.entries)
    assert "all_gather" in {entry.op for entry in trace.entries}


def test_what_was_captured_is_replayed_and_neither_recorder_nor_watchdog_hears_of_it(start_ranks: StartRanks) -> None:
    """The communicator before it takes a second, for which the host waits."""
    job = start_ranks("--layout", "graph", "--steps", "3", "--sync-every", "1", env={"EMU_COMM_S": "1"})
    told = [job.told(rank) for rank in range(2)]
    # Each step adds 2 x + 1 of both ranks, whose x are the step's number and one more.
    assert [each["losses"] for each in told] == [[4.0, 12.0, 24.0]] * 2
    for each in told:
        names = [entry["profiling_name"] for entry in entries_of(each)]
        assert names == ["nccl:all_reduce"], "that before the capture"
        # The numbers of what was captured are gone all the same.
        assert each["launched"]["0"]["last_enqueued_collective"] == "1"
        assert each["counted"] == 3
