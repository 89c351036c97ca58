"""All have issued and none has completed: whom sensors name, and whom they do not."""

from __future__ import annotations

from typing import Any

import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.model.hang_patience import patience
from guardrun.supervisor.engine.model.looks import Call, GroupLook
from guardrun.supervisor.health.base.findings import Finding, Response
from tests.engine.conftest import Told
from tests.engine.detectors.hang.looks import pass_time
from tests.sim import activity as act

RANKS = 4
SETTINGS: dict[str, Any] = {"tell_s": 15.0, "is_sure": True, **patience("normal")}
CALLS = [Call(51, "all_reduce", [[512]], "float32", "completed"), Call(52, "all_reduce", [[512]], "float32", "issued")]
GROUP = GroupLook(name="0", desc="default_pg", backend="nccl", ranks=list(range(RANKS)), issued=52, calls=CALLS)
DEVICES = {rank: ev.Device(subject=f"gpu:{rank}", index=rank) for rank in range(RANKS)}
DOWN = "GPU 2: 2 of 18 NVLinks went down (link 4,5)."


def broken(rank: int, told_s: float, cause: str = "gpu_link", response: Response = Response.ISOLATE) -> Finding:
    return Finding(
        id=f"{cause}/gpu:{rank}/nvlink_down",
        cause=cause,
        subject=f"gpu:{rank}",
        since_s=told_s,
        told_s=told_s,
        summary=DOWN,
        response=response,
    )


def hang(told: Told, *findings: Finding) -> Incident:
    """Trained until 2 s; then every device waits. The incident that it comes to."""
    told.running(RANKS, **SETTINGS)
    for finding in findings:
        told.tell(ev.NodeFindingsReported(node="node-a", findings=[finding], devices=DEVICES), finding.told_s)
    known = len(told.incidents)
    waits = [act.WAITING] * RANKS
    pass_time(told, *waits, until_s=3000.0, groups=[GROUP], is_enough=lambda: len(told.incidents) > known)
    return list(told.incidents.values())[-1]


def test_the_rank_is_named_whose_device_broke_meanwhile(told: Told) -> None:
    found = hang(told, broken(2, 12.0))
    assert (found.cause, [one.rank for one in found.culprits], found.confidence) == ("collective_timeout", [2], 0.75)
    assert found.summary.startswith("Rank 2 on node-a has not completed in 6")
    assert found.summary.endswith(
        " s what all ranks have issued (GPU 2: 2 of 18 NVLinks went down (link 4,5)); 3 ranks wait for it in"
        " all_reduce."
    )
    assert found.evidence["node_findings"] == [DOWN]


def test_sensors_do_not_make_it_less_patient(told: Told) -> None:
    """A link that is down slows what goes over it: it may be that alone."""
    hang(told, broken(2, 12.0))
    assert told.now_s >= 602


@pytest.mark.parametrize(
    "findings",
    [
        [],
        [broken(2, 12.0, response=Response.NOTE)],
        [broken(2, 12.0, cause="disk_io")],
        [broken(rank, 12.0) for rank in range(2)],
    ],
    ids=["nothing", "worth a note", "a disk", "half of them"],
)
def test_nobody_is_named_by_chance(told: Told, findings: list[Finding]) -> None:
    found = hang(told, *findings)
    assert (found.cause, found.culprits) == ("collective_timeout", [])
    assert "issued theirs and none is completed" in found.summary


def test_what_broke_long_before_is_not_what_holds_it_up(told: Told) -> None:
    """Training went on with that link down."""
    told.running(RANKS, **SETTINGS)
    told.tell(ev.NodeFindingsReported(node="node-a", findings=[broken(2, 12.0)], devices=DEVICES), 12.0)
    for at_s in range(13, 100):
        told.step(10 + at_s, float(at_s))
    known = len(told.incidents)
    waits = [act.WAITING] * RANKS
    pass_time(told, *waits, until_s=3000.0, groups=[GROUP], is_enough=lambda: len(told.incidents) > known)
    found = list(told.incidents.values())[-1]
    assert (found.cause, found.culprits) == ("collective_timeout", [])


def test_what_sensors_say_of_the_others_is_shown_with_it(told: Told) -> None:
    found = hang(told, broken(2, 12.0, response=Response.NOTE))
    assert found.evidence["node_findings"] == [DOWN]


NETWORK = Finding(
    id="network/net:eth0",
    cause="network",
    subject="net:eth0",
    since_s=12.0,
    told_s=12.0,
    summary="eth0 went down.",
    response=Response.ISOLATE,
)


def test_a_node_whose_network_broke_is_named_with_all_its_ranks(told: Told) -> None:
    told.fleet_opened(most=3, **SETTINGS)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    told.tell(ev.NodeFindingsReported(node="n1", findings=[NETWORK], devices=DEVICES), 12.0)
    known, count = len(told.incidents), told.state.world_size
    waits = [act.WAITING] * count
    group = GroupLook(name="0", desc="default_pg", backend="nccl", ranks=list(range(count)), issued=52, calls=CALLS)
    pass_time(told, *waits, until_s=3000.0, groups=[group], is_enough=lambda: len(told.incidents) > known)
    found = list(told.incidents.values())[-1]
    assert {one.node for one in found.culprits} == {"n1"}
    assert " on n1 have not completed in " in found.summary and "(eth0 went down)" in found.summary


def test_the_network_of_the_only_node_tells_none_of_its_ranks_from_the_others(told: Told) -> None:
    assert hang(told, NETWORK).culprits == []
