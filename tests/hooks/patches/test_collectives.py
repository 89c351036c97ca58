"""Two ranks over gloo: what a rank shows while it makes groups, communicates and waits for the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire.board import OPS, Field, Milestone
from guardrun.hooks.wire.messages import Beat, HookFailed
from tests.hooks.bed import Bed, finish
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "groups.py")


@dataclass
class Pair:
    """Two ranks that came to their end, and what was seen on the way."""

    bed: Bed
    said: list[dict[str, Any]]
    waited: dict[str, Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    signs = tmp_path_factory.mktemp("signs")
    [port] = free_ports(1)
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_TIMEOUT": "123.5"}
    with Bed(world_size=2) as bed:
        ranks = [bed.start([SCRIPT, str(signs)], rank=rank, more=more) for rank in range(2)]
        waited: dict[str, Any] = {}
        bed.wait_until(Field.INIT_SINCE_NS)
        waited["init"] = (bed.milestones(0), bed.board(1)[Field.INIT_SINCE_NS])
        (signs / "init").touch()
        for sign, op in (("collective", "all_reduce"), ("wait", "wait")):
            wait_until((signs / f"{sign}-stops").exists, 60, f"rank 1 to stop before its {sign}")
            bed.wait_until(Field.COLLECTIVE_SINCE_NS, partial(_waits_in, bed, op))
            waited[sign] = (bed.board(1)[Field.COLLECTIVE_SINCE_NS], OPS[bed.board(0)[Field.COLLECTIVE_OP]])
            (signs / sign).touch()
        done = [finish(rank) for rank in ranks]
        assert [rank.returncode for rank in done] == [0, 0], done
        assert bed.hear_all(HookFailed) == []
        yield Pair(bed, [json.loads(rank.stdout) for rank in done], waited)


def _waits_in(bed: Bed, op: str, since_ns: int) -> bool:
    """Whether rank 0 has been in this call for a while (its heart has beaten in it), and rank 1 is in none."""
    board = bed.board(0)
    is_long = since_ns != 0 and board[Field.COLLECTIVE_OP] == OPS.index(op) and board[Field.HEART_NS] > since_ns
    return is_long and bed.board(1)[Field.COLLECTIVE_SINCE_NS] == 0


def test_a_rank_that_waits_in_init_shows_it(pair: Pair) -> None:
    milestones, since_of_the_other = pair.waited["init"]
    assert Milestone.INIT_ENTERED in milestones
    assert Milestone.INIT_DONE not in milestones
    assert since_of_the_other == 0
    assert Milestone.INIT_DONE in pair.bed.milestones(0)


def test_groups_are_counted(pair: Pair) -> None:
    assert [said["groups"] for said in pair.said] == [[3, 0], [3, 0]]


def test_nccl_timeout_is_the_default_and_explicit_ones_stay(pair: Pair) -> None:
    assert [said["timeouts"] for said in pair.said] == [[123.5, 123.5, 77.0]] * 2


def test_calls_that_communicate_are_counted_once_each(pair: Pair) -> None:
    assert [said["calls"] for said in pair.said] == [6, 6]
    assert [said["sum"] for said in pair.said] == [[4.0, 4.0]] * 2
    assert all(said["same"] for said in pair.said)


def test_a_call_that_raises_is_left(pair: Pair) -> None:
    assert all("no_such_argument" in said["error"] for said in pair.said)
    assert [said["after an error"] for said in pair.said] == [[0], [0]]


def test_a_rank_that_waits_for_another_shows_where(pair: Pair) -> None:
    assert pair.waited["collective"] == (0, "all_reduce")
    assert pair.waited["wait"] == (0, "wait")
    assert Milestone.FIRST_PROGRESS in pair.bed.milestones(0)


def test_collectives_that_pass_no_wrapper_are_progress(pair: Pair) -> None:
    for said in pair.said:
        assert said["before DDP"] == said["after DDP"]
        assert said["progress after"] - said["progress before"] > 1e9
        assert said["group_seq"] > 50
    sequences = [beat.group_seqs for beat in pair.bed.hear_all(Beat) if beat.group_seqs]
    assert max(len(groups) for groups in sequences) == 3
    assert max(sum(groups.values()) for groups in sequences) > 50
