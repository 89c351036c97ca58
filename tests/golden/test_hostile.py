"""Broken and hostile dumps are refused with a sentence, at once; what else there is to read is read."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardrun.supervisor.collect.collectives.flight_recorder import MAX_BYTES, parse_trace
from guardrun.supervisor.collect.collectives.process_groups import join
from guardrun.supervisor.engine.model.looks import GroupLook, ProcessLook, RankLook
from guardrun.supervisor.engine.observation.collective_waits import match
from tests.support.recorder_dumps import WALL_NS, Job

MIXED = """
all: all_reduce[64]*3 all_gather[5,6] {all_reduce[4] broadcast[9]}
0: {send>1 recv<1}? send>1[8]?
1: {send>0 recv<0}?
all: barrier@?
"""
JOB = Job(MIXED, ranks=2)
DUMP = JOB.raw_dump(0)
HUGE = "9" * 5000
NESTED = "[" * 400 + "]" * 400


def looks(data: bytes) -> list[GroupLook]:
    """What becomes of a dump beside a sound one: put together, judged, and written to a journal."""
    told = []
    for rank, dump in enumerate([data, JOB.dump(1)]):
        for page in (JOB.page(rank), None):
            groups = join(page, parse_trace(dump), at_ns=lambda ns: ns / 1e9, wall_ns=WALL_NS)
            told.append(RankLook(global_rank=rank, at_s=1.0, process=ProcessLook(pid=1), groups=groups))
    match(told[::2])
    match(told[1::2])
    line = msgspec.json.encode(told)
    assert msgspec.json.decode(line, type=list[RankLook]) == told
    assert len(line) < 200_000
    return told[0].groups


def with_entry(index: int = 0, **changes: Any) -> bytes:
    entries = [dict(entry) for entry in DUMP["entries"]]
    entries[index] |= changes
    return json.dumps(DUMP | {"entries": entries}).encode()


def patched(old: str, new: str) -> bytes:
    """The dump with a piece of its text replaced, once: for what json does not write."""
    text = json.dumps(DUMP)
    assert old in text
    return text.replace(old, new, 1).encode()


@pytest.mark.parametrize("percent", range(0, 100, 7))
def test_a_dump_that_was_cut_off(percent: int) -> None:
    data = JOB.dump(0)
    trace = parse_trace(data[: len(data) * percent // 100])
    assert trace.entries == []
    assert "can't be read" in trace.trouble


@pytest.mark.parametrize(
    "data",
    [
        patched('"collective_seq_id": 1', '"collective_seq_id": NaN'),
        patched('"collective_seq_id": 1', '"collective_seq_id": -Infinity'),
        patched('"version": "2.10"', '"version": ' + "[" * 100_000),
        patched('"Float"', '"\\ud800"'),
        patched('"scheduled"', '"schedu\xff"').decode("utf-8").encode("latin-1"),
    ],
    ids=["NaN", "Infinity", "nested", "half a surrogate", "no UTF-8"],
)
def test_what_is_no_json_is_said(data: bytes) -> None:
    trace = parse_trace(data)
    assert "can't be read" in trace.trouble
    assert len(trace.trouble) < 300
    looks(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"collective_seq_id": -7},
        {"collective_seq_id": 1 << 60},
        {"p2p_seq_id": int("9" * 400)},
        {"record_id": -2},
        {"time_created_ns": int("9" * 400)},
        {"time_created_ns": -5},
        {"time_created_ns": 1e300},
        {"input_sizes": [[-1]]},
        {"input_sizes": [[int("9" * 400)] * 60]},
        {"input_sizes": [[2] * 10_000]},
        {"input_sizes": {"0": 4}},
        {"input_dtypes": [None]},
        {"process_group": []},
        {"process_group": "0"},
        {"profiling_name": 4},
        {"state": "finished"},
        {"state": None},
        {"retired": "yes"},
        {"is_p2p": 1},
        {"profiling_name": f"nccl:send 0->{10**30}", "collective_seq_id": "x"},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_an_entry_that_says_nonsense_is_left_out_alone(changes: dict[str, Any]) -> None:
    data = with_entry(**changes)
    trace = parse_trace(data)
    assert trace.trouble == "1 entries of the flight recorder can't be read (its version: 2.10)"
    assert len(trace.entries) == len(parse_trace(JOB.dump(0)).entries) - 1
    looks(data)


@pytest.mark.parametrize(
    "data",
    [
        patched('"ranks": "[0, 1]"', f'"ranks": "[{HUGE}]"'),
        patched('"ranks": "[0, 1]"', f'"ranks": "[{"0, " * 10_000}0"'),
        patched('"version": "2.10"', f'"version": {NESTED}'),
        patched('"pg_config": {', f'"pg_config": {{"a": {NESTED}, '),
        patched('"profiling_name": "nccl:all_reduce"', f'"profiling_name": "nccl:send {HUGE}->{HUGE}"'),
        patched('"profiling_name": "nccl:all_reduce"', f'"profiling_name": "{"x" * 100_000}"'),
        with_entry(process_group=["0" * 100_000, "d" * 100_000]),
        with_entry(-1, collective_seq_id=1 << 53),
        with_entry(-1, collective_seq_id=1 << 53, input_sizes=[[1 << 53] * 64] * 50),
    ],
    ids=["a rank", "ranks", "version", "groups", "a peer", "a name", "a group", "a number", "sizes"],
)
def test_what_is_huge_ends_no_look(data: bytes) -> None:
    began = time.process_time()
    looks(data)
    assert time.process_time() - began < 2.0


def test_what_is_too_long_is_not_read() -> None:
    began = time.process_time()
    trace = parse_trace(bytes(200 << 20))
    assert trace.trouble == "the flight recorder's dump is not read: its dump is 200 MB long, and at most 8 MB are read"
    assert time.process_time() - began < 1.0


def test_a_million_entries_of_which_the_last_are_read() -> None:
    text = JOB.dump(0).decode()
    data = text.replace('"entries": [', '"entries": [' + "{}," * 1_000_000, 1).encode()
    assert len(data) < MAX_BYTES
    began = time.process_time()
    trace = parse_trace(data)
    assert time.process_time() - began < 2.0
    assert [entry.op for entry in trace.entries] == [entry.op for entry in parse_trace(JOB.dump(0)).entries]
    assert "entries of the flight recorder can't be read" in trace.trouble


NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.lists(st.integers(-2, 1 << 60), max_size=4),
    st.sampled_from(["nccl:coalesced", "gloo:", ":", "nccl:recv 0<-1", [["0"]], [[]], {"0": {"ranks": "[1"}}]),
)
WHERE = st.tuples(st.integers(-1, len(DUMP["entries"]) - 1), st.sampled_from([*DUMP["entries"][0], "new"]), NONSENSE)


@settings(max_examples=60)
@given(st.lists(WHERE, min_size=1, max_size=6))
def test_nonsense_anywhere_in_a_dump(changes: list[tuple[int, str, Any]]) -> None:
    dump = json.loads(JOB.dump(0))
    for index, key, value in changes:
        (dump if index < 0 else dump["entries"][index])[key] = value
    looks(json.dumps(dump).encode())
