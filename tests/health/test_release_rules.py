"""Which quarantines may end without a person, and what a release by a pre-flight lifts."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.agent.quarantine_keeper import is_well
from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.readings import Readout, Sample, Value
from guardrun.supervisor.health.quarantine_rules import (
    AUTOMATIC,
    PREFLIGHT,
    Isolation,
    Part,
    Proof,
    Record,
    end_of,
    isolate,
    part_of,
    release,
)

NOW_S = 10_000.0


def of(finding: str, who: str = AUTOMATIC, since_s: float = 100.0) -> Isolation:
    cause = finding.partition("/")[0]
    return Isolation(cause=cause, who=who, since_wall_s=since_s, evidence={"finding": finding} if finding else {})


@pytest.mark.parametrize(
    ("finding", "part"),
    [
        ("network/net:eth0/down", Part("net:eth0", Proof.LOOK)),
        ("network/net:eth0/flapping", Part("net:eth0", Proof.LOOK)),
        ("network/net:eth0/adapter", None),
        ("network/ib:mlx5_0/1/down", None),
        ("disk/mount:/data/full", Part("mount:/data", Proof.LOOK)),
        ("disk/mount://full", Part("mount:/", Proof.LOOK)),
        ("disk/mount:/data/read_only", None),
        ("disk/disk:sda/io", None),
        ("throttle/gpu:GPU-1", Part("gpu:GPU-1", Proof.TRIAL)),
        ("thermal/cpu:0", None),
        ("gpu_link/gpu:GPU-1/pcie", Part("gpu:GPU-1", Proof.TRIAL)),
        ("gpu_ecc/gpu:GPU-1", None),
        ("gpu_remap/gpu:GPU-1/failed", None),
        ("gpu_xid/gpu:GPU-1/79", None),
        ("gpu_lost/gpu:GPU-1", None),
        ("", None),
    ],
)
def test_which_parts_show_that_they_are_well(finding: str, part: Part | None) -> None:
    assert part_of(of(finding)) == part


def test_what_a_person_isolated_waits_for_a_person() -> None:
    assert part_of(of("network/net:eth0/down", who="alice")) is None


def test_evidence_that_says_nothing_of_a_part() -> None:
    assert part_of(msgspec.structs.replace(of(""), evidence={"finding": 3})) is None


def test_a_pre_flight_lifts_what_it_names_and_nothing_else() -> None:
    record = Record()
    said = [of("network/net:eth0/down"), of("gpu_ecc/gpu:0"), of("network/net:eth0/down", who="alice")]
    for one in said:
        record, _ = isolate(record, one, NOW_S)
    after, left = release(record, PREFLIGHT, NOW_S, "net:eth0 is well", only=[one.id for one in (said[0], said[2])])
    assert [(one.who, one.cause) for one in left] == [("alice", "network"), (AUTOMATIC, "gpu_ecc")]
    assert end_of(said[0], after, NOW_S) == "released by preflight: net:eth0 is well"
    again, _ = release(after, PREFLIGHT, NOW_S + 1, only=[said[0].id])
    assert again == after


def read(subject: str, age_s: float = 1.0, *, is_silent: bool = False, **values: Value | None) -> Readout:
    samples = [Sample(subject=subject, name=name, value=value) for name, value in values.items()]
    return Readout(sensor="network", at_s=NOW_S - age_s, samples=samples, is_silent=is_silent)


def found(subject: str, response: Response) -> Finding:
    return Finding(
        id=f"x/{subject}", cause="x", subject=subject, since_s=0.0, told_s=0.0, summary="It is.", response=response
    )


UP = read("net:eth0", is_up=True)


@pytest.mark.parametrize(
    ("readouts", "findings", "expected"),
    [
        ([UP], [], True),
        ([UP], [found("cpu:0", Response.NOTE)], True),
        ([read("net:eth0", is_up=False)], [], False),
        ([read("net:eth1", is_up=True)], [], False),
        ([read("net:eth0", is_up=None)], [], False),
        ([read("net:eth0", age_s=3600.0, is_up=True)], [], False),
        ([read("net:eth0", is_silent=True, is_up=True)], [], False),
        ([UP], [found("net:eth0", Response.NOTE)], False),
        ([UP], [found("net:eth1", Response.ISOLATE)], False),
    ],
    ids=["up", "a note elsewhere", "down", "another", "unknown", "old", "silent", "errors", "another is down"],
)
def test_when_a_part_is_well(readouts: list[Readout], findings: list[Finding], expected: bool) -> None:
    assert is_well(Part("net:eth0", Proof.LOOK), readouts, findings, NOW_S) is expected
