"""Stories in tensor- and data-parallel groups: waits are followed from group to group to the root.

One fault and one decoy at 1,024 ranks, the others at 64: what more of them show is not more.
"""

from __future__ import annotations

import pytest

from tests.sim import activity as act
from tests.sim.activity import Activity
from tests.sim.checks import WITHIN_S, check
from tests.sim.cluster import Cluster
from tests.sim.groups import Layout
from tests.sim.training import Plan

MANY, SOME = 1024, 64


def grouped(ranks: int) -> Cluster:
    return Cluster(ranks=ranks, plan=Plan(layout=Layout(ranks)), is_journalled=False)


def thousand() -> Cluster:
    return grouped(MANY)


@pytest.mark.parametrize(
    ("fault", "ranks"),
    [(fault, SOME if number else MANY) for number, fault in enumerate(act.FAULTS)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_root_of_all_waits_is_named(fault: Activity, ranks: int) -> None:
    cluster, guilty = grouped(ranks), ranks // 2 + 5
    cluster.do(fault, global_rank=guilty, at_s=60)
    cluster.run(until_s=60 + WITHIN_S[fault] + 30)
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident)) == (fault.cause, [guilty])
    assert incident.detected_s - 60 <= WITHIN_S[fault] + 3
    cluster.check_end()


def test_another_operation_in_one_sub_group_is_named_within_seconds() -> None:
    cluster = thousand()
    cluster.do(act.WRONG_OP, global_rank=517, at_s=60)
    cluster.run(until_s=90)
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident)) == ("collective_mismatch", [517])
    assert incident.detected_s - 60 <= 10
    assert (
        "Rank 517 on node-64 is in barrier (train.py:47) while ranks 512-516,518-519 are in all_reduce"
        in incident.summary
    )
    assert "of group mesh_tp" in incident.summary or "of group tp512" in incident.summary
    assert len(incident.evidence["collectives"]["rows"]) <= 60
    cluster.check_end()


def test_culprits_in_two_sub_groups_are_both_named() -> None:
    cluster = thousand()
    cluster.do(act.HANG, global_rank=3, at_s=60)
    cluster.do(act.HANG, global_rank=900, at_s=60.2)
    cluster.run(until_s=110)
    assert cluster.named(cluster.hangs[0]) == [3, 900]
    cluster.check_end()


@pytest.mark.parametrize(
    ("decoy", "ranks"),
    [(decoy, SOME if number else MANY) for number, decoy in enumerate(act.BUSY_DECOYS)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_ten_minutes_of_other_work_are_left_alone(decoy: Activity, ranks: int) -> None:
    """Long with 1024 ranks: each of them is played."""
    cluster = grouped(ranks)
    cluster.do(decoy, global_rank=ranks // 2 + 5, at_s=60, seconds=600)
    cluster.run(until_s=720)
    assert not cluster.hangs
    assert cluster.engine.state.restarts == 0


def test_a_small_layout_replays() -> None:
    cluster = Cluster(ranks=8, plan=Plan(layout=Layout(8, tensor=2)))
    cluster.do(act.WRONG_OP, global_rank=5, at_s=100)
    cluster.run(until_s=300)
    assert cluster.hangs[0].cause == "collective_mismatch"
    check(cluster)
