"""Steps whose gradients are not finite are left out on all ranks, and nothing else is another for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from guardrun.hooks.wire.messages import HookFailed, Noted
from guardrun.hooks.wire.metrics_page import Flag, Head, metrics_name
from guardrun.supervisor.collect.ranks.metrics import MetricsReader, StepRecord
from tests.hooks.bed import Bed, finish
from tests.support.keep_group import KEEP_GROUP
from tests.support.ports import free_ports

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "guarded.py")
SHARDED = ("fsdp2", "tensor parallel", "fsdp1 False", "fsdp1 True")
HELD = {
    *("adamw", "adamw foreach", "adamw fused", "amsgrad for loop", "momentum", "own", "zero", "two", "scheduled"),
    *("accumulated", "closure", "bfloat16", "kinds", *SHARDED),
}
SCALED = ("scaled False", "scaled True")
ALONE = "it has parameters of which it isn't known that all ranks train them together"
CLOSURE = "it calls its closure itself, so gradients are not seen before it steps"
WRAPPED = "torch had wrapped its step before guardrun was there, or compiled it whole"
LATE = "not all ranks came to its step within 10 s"

Ways = dict[str, dict[str, Any]]


class Trained(NamedTuple):
    """What two ranks have done."""

    bad: list[Ways]
    fine: list[Ways]
    records: list[list[StepRecord]]
    counts: list[int]
    notes: list[set[str]]


def environment(rank: int, port: int) -> dict[str, str]:
    """Of a rank without guardrun."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN")}
    return {**plain, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    [port] = free_ports(1)
    with Bed(world_size=2) as bed:
        bed.numeric = "skip"
        more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [bed.start([KEEP_GROUP, SCRIPT, "bad", "fine"], rank=rank, more=more) for rank in range(2)]
        done = [finish(rank) for rank in ranks]
        assert [rank.returncode for rank in done] == [0, 0], done
        assert bed.hear_all(HookFailed) == []
        notes = [{each.text for each in bed.hear_all(Noted) if each.global_rank == rank} for rank in range(2)]
        records, counts = [], []
        for rank in range(2):
            reader = MetricsReader(bed.sockets / metrics_name(0, rank))
            records.append([record for record in reader.records() if record.flags & Flag.LEFT_OUT])
            head = reader.head()
            reader.close()
            assert head is not None
            counts.append(head[Head.LEFT_OUT])
    told = [json.loads(rank.stdout) for rank in done]
    yield Trained([rank["bad"] for rank in told], [rank["fine"] for rank in told], records, counts, notes)


def test_the_bad_step_changes_nothing_on_any_rank_and_training_goes_on(trained: Trained) -> None:
    for way in sorted(HELD):
        for told in trained.bad:
            steps = [True, True, False, True, True] if way != "scheduled" else [False, True, True, True, True]
            assert told[way]["changes"] == steps, way
            assert told[way]["is_finite"], way
    for way in HELD - {"fsdp1 False", "fsdp1 True"}:  # whose shards are not put together
        assert trained.bad[0][way]["digest"] == trained.bad[1][way]["digest"], way


def test_a_finite_run_is_bit_for_bit_what_it_is_without_guardrun(trained: Trained) -> None:
    [port] = free_ports(1)
    command = [sys.executable, KEEP_GROUP, SCRIPT, "fine"]
    ranks = [
        subprocess.Popen(command, env=environment(rank, port), stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    plain = [json.loads(rank.communicate(timeout=240)[0])["fine"] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert trained.fine == plain
    assert len(plain[0]) == len(HELD) + len(SCALED) + 2, "what is reduced by hand, and left alone"


def test_whose_gradients_were_at_fault_is_told(trained: Trained) -> None:
    """Of a reduced gradient all ranks'; of shards that rank's who has it. A GradScaler's own are not counted."""
    assert trained.counts == [len(records) for records in trained.records] and trained.counts[0] >= len(HELD)
    assert trained.counts[0] == trained.counts[1]
    own = [[bool(record.flags & Flag.BAD_GRADIENTS) for record in records] for records in trained.records]
    assert own[1] == [True] * trained.counts[1]
    assert own[0] == [True] * (trained.counts[0] - len(SHARDED)) + [False] * len(SHARDED)
    assert [trained.bad[0][way]["changes"] for way in SCALED] == [[True, True, False, True, True]] * 2


def test_what_it_has_no_hold_of_is_said_once_and_left_alone(trained: Trained) -> None:
    both = {("SGD", ALONE), ("LBFGS", CLOSURE), ("SGD", "it steps within the backward pass"), ("Uneven", LATE)}
    both |= {("Elsewhere", "it steps in another thread"), ("Late", WRAPPED)}
    both |= {("Adagrad", "there are several ranks, and no process group of torch.distributed")}
    for rank, more in enumerate([{("AdamW", ALONE)}, {("Faulty", LATE)}]):
        assert trained.notes[rank] == {f'numeric = "skip" has no hold of {name}: {why}' for name, why in both | more}
    assert not trained.bad[0]["reduced by hand"]["is_finite"], "as without guardrun"
    assert trained.bad[0]["faulty"]["changes"] == trained.bad[1]["faulty"]["changes"] == [True]


def test_ranks_that_do_not_step_together_wait_once_and_end(trained: Trained) -> None:
    waited = [told["uneven"]["waited_in_vain"] for told in trained.bad]
    assert waited[0] == 1 >= waited[1], "rank 0 makes a step by itself"
