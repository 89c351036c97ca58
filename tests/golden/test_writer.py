"""The dumps that tests write are those that torch wrote: of an H100, of gloo, and of each release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorder_dumps import RELEASES, Job
from tests.support.recorder_script import parse_script

RECORDED = Path(__file__).parents[1] / "data" / "recorder"
OF_THE_MOMENT = {"time_created_ns", "time_discovered_completed_ns", "thread_id", "thread_name", "timeout_ms", "frames"}
H100 = """
all: all_reduce[16]*3
0: {send>1 recv<1}*2 send>1[16]
1: {send>0 recv<0}*2 recv<0[16]
all: all_gather[5,6] all_gather_into_tensor[16] reduce_scatter_tensor[16]
all: broadcast[16] barrier all_reduce_coalesced[4,4]
all/undefined: all_reduce[16]
all/other: all_reduce[16]
"""
SKIPPED = """
all: gloo.all_reduce[8]*3
0: gloo.all_reduce[8]?
"""


def recorded(name: str) -> dict[str, Any]:
    dump: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return dump


def lasting(dump: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries without times, threads and whatever a dump of another moment has otherwise."""
    entries = [{key: entry[key] for key in entry if key not in OF_THE_MOMENT} for entry in dump["entries"]]
    for entry in entries:
        entry["process_group"] = entry["process_group"][:1]
    return entries


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "end"), [("idle", ""), ("pending", "all: all_reduce[16]?")])
def test_what_an_h100_recorded(name: str, end: str, rank: int) -> None:
    real = recorded(f"nccl-h100-{name}-{rank}")
    ours = Job(H100 + end, ranks=2, groups={"undefined": "0-1", "other": "0-1"}).raw_dump(rank)
    assert lasting(ours) == lasting(real)
    assert {*ours["entries"][0], "frames"} == {*real["entries"][0]}
    assert ours["pg_status"] == real["pg_status"]
    assert {*ours} == {*real}
    assert {name: each["ranks"] for name, each in ours["pg_config"].items()} == {
        name: each["ranks"] for name, each in real["pg_config"].items()
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_what_gloo_recorded(rank: int) -> None:
    real = recorded(f"gloo-skip-{rank}")
    ours = Job(SKIPPED, ranks=2, backends={"world": "gloo"}).raw_dump(rank, backend="gloo")
    assert lasting(ours) == lasting(real)
    assert ours["pg_config"] == real["pg_config"]
    assert {*ours} == {*real}


@pytest.mark.parametrize("torch", RELEASES)
def test_what_each_release_has(torch: str) -> None:
    dump = Job("all: all_gather[5,6,7,8]? barrier?", torch=torch).raw_dump(0)
    names = [entry["profiling_name"] for entry in dump["entries"]]
    is_old = torch in ("2.6", "2.7")
    assert names == (
        ["nccl:coalesced", "nccl:all_reduce_barrier"]
        if is_old
        else ["nccl:_broadcast_oop"] * 4 + ["nccl:ALLGATHER_coalesced", "nccl:all_reduce_barrier"]
    )
    assert ("thread_name" in dump["entries"][0]) == (torch == "2.13")
    assert {"comm_lib_version", "nccl_version"} & {*dump} == {
        "2.8": {"nccl_version"}, "2.13": {"comm_lib_version"}
    }.get(torch, set())  # fmt: skip


def test_the_ring_keeps_the_last_and_their_numbers() -> None:
    entries = Job("all: all_reduce*30", ring=8).raw_dump(2)["entries"]
    assert [entry["record_id"] for entry in entries] == list(range(22, 30))


@pytest.mark.parametrize("script", ["all: all_reduce[a]", "all: {send>1", "x: barrier", "0: ?", "0: send>"])
def test_what_is_not_in_the_notation_is_refused(script: str) -> None:
    with pytest.raises(ValueError):
        parse_script(script)
