"""The flight recorder's dumps, recorded and made by hand; and a server that answers badly."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.collect.collectives.flight_recorder import (
    TraceError,
    fetch_trace,
    find_obstacle,
    parse_trace,
    request,
)
from guardrun.supervisor.collect.collectives.process_groups import join
from guardrun.supervisor.engine.model.looks import Call, GroupLook

DUMPS = Path(__file__).parents[2] / "data" / "recorder"


def read(name: str) -> bytes:
    return (DUMPS / f"{name}.json").read_bytes()


def groups(name: str) -> dict[str, GroupLook]:
    trace = parse_trace(read(name))
    assert trace.trouble == ""
    return {group.desc: group for group in join(None, trace, at_ns=lambda ns: ns / 1e9, last=100)}


def last(name: str, desc: str = "default_pg") -> Call:
    return groups(name)[desc].calls[-1]


def test_every_call_over_gloo_is_read() -> None:
    told = groups("gloo-calls-0")["default_pg"]
    assert (told.issued, told.completed, told.backend, told.source) == (21, 21, "gloo", "flight recorder")
    assert [(call.seq, call.op) for call in told.calls][:6] == [
        (1, "all_reduce"), (2, "all_reduce"), (3, "broadcast"), (4, "reduce"), (5, "all_gather"), (6, "all_gather")
    ]  # fmt: skip
    assert told.calls[2].dtype == "float64"
    assert told.calls[-1].sizes == [[4, 3], [5]]
    assert {call.state for call in told.calls} == {"completed"}


def test_a_rank_that_skips_is_one_behind() -> None:
    waiting, skipping = groups("gloo-skip-0")["default_pg"], groups("gloo-skip-1")["default_pg"]
    assert (waiting.issued, waiting.completed) == (4, 3)
    assert (skipping.issued, skipping.completed) == (3, 3)
    assert (last("gloo-skip-0").state, last("gloo-skip-1").state) == ("issued", "completed")


def test_a_mismatch_is_two_operations_of_one_number() -> None:
    assert [(call.seq, call.op, call.sizes) for call in (last("gloo-mismatch-0"), last("gloo-mismatch-1"))] == [
        (2, "all_reduce", [[8]]), (2, "broadcast", [[8]])
    ]  # fmt: skip


def test_subgroups_are_told_apart() -> None:
    said = {
        rank: {desc: (told.issued, told.completed) for desc, told in groups(f"gloo-subgroups-{rank}").items()}
        for rank in range(4)
    }
    assert said == {
        0: {"row_0": (2, 2), "column_0": (2, 1)},
        1: {"row_0": (2, 2), "column_1": (2, 1)},
        2: {"row_1": (2, 1), "column_0": (1, 1)},
        3: {"row_1": (1, 1), "column_1": (1, 1)},
    }


def test_several_asynchronous_ones_may_be_pending() -> None:
    told = groups("gloo-pending-0")["default_pg"]
    assert [call.seq for call in told.calls if call.state != "completed"] == [5, 6]
    assert (told.issued, told.completed) == (6, 4)
    assert groups("gloo-pending-1")["default_pg"].issued == 4


def test_nccl_s_names_states_and_members() -> None:
    told = groups("nccl-mismatch-0")
    assert {desc: (each.backend, each.ranks) for desc, each in told.items()} == {
        "default_pg": ("nccl", [0, 1]), "mesh_tp": ("nccl", [0, 1])
    }  # fmt: skip
    calls = told["default_pg"].calls
    assert [(call.seq, call.op, call.dtype, call.state) for call in calls] == [
        (1, "barrier", "float32", "completed"),
        (2, "all_gather_into_tensor", "bfloat16", "completed"),
        (3, "reduce_scatter_tensor", "bfloat16", "completed"),
        (1, "send", "bfloat16", "completed"),
        (4, "all_gather_into_tensor", "bfloat16", "started"),
        (5, "all_reduce", "float8_e4m3fn", "issued"),
    ]
    assert calls[2].sizes == [[2048], [4096]], "coalesced: one number, several entries"
    assert calls[3].peer == 1
    assert last("nccl-mismatch-1").state == "started", "retired, but not completed: it has timed out"


def test_a_batch_over_nccl_is_done_when_its_closing_entry_is() -> None:
    """Recorded on an H100: sends and receives in a batch, and the parts of an uneven all_gather, stay "scheduled"."""
    told = groups("nccl-h100-idle-0")["default_pg"]
    assert {call.state for call in told.calls} == {"completed"}
    assert (told.issued, told.completed) == (9, 9)
    assert [(call.seq, call.op, call.sizes) for call in told.calls if call.op not in ("send", "recv")] == [
        (1, "all_reduce", [[16]]),
        (2, "all_reduce", [[16]]),
        (3, "all_reduce", [[16]]),
        (4, "all_gather", [[5], [6]]),
        (5, "all_gather_into_tensor", [[16]]),
        (6, "reduce_scatter_tensor", [[16]]),
        (7, "broadcast", [[16]]),
        (8, "barrier", [[1]]),
        (9, "all_reduce_coalesced", [[4], [4]]),
    ]
    sent = [(call.seq, call.op, call.peer) for call in told.calls if call.op in ("send", "recv")]
    assert sent == [(1, "send", 1), (1, "recv", 1), (2, "send", 1), (2, "recv", 1), (3, "send", 1)]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_device_has_not_completed_is_the_one_pending(rank: int) -> None:
    """The device of rank 1 was busy with a kernel before the tenth collective, which both had issued."""
    told = groups(f"nccl-h100-pending-{rank}")["default_pg"]
    assert [(call.seq, call.op) for call in told.calls if call.state != "completed"] == [(10, "all_reduce")]
    assert (told.issued, told.completed) == (10, 9)


def test_a_batch_that_is_not_closed_or_not_done_is_pending() -> None:
    dump: dict[str, Any] = json.loads(read("nccl-h100-idle-0"))
    closing = [index for index, entry in enumerate(dump["entries"]) if entry["profiling_name"] == "nccl:coalesced"]
    dump["entries"] = dump["entries"][: closing[1] + 1]
    dump["entries"][-1] |= {"state": "scheduled", "retired": False}
    for last_entries in (dump["entries"], dump["entries"][:-1]):
        trace = parse_trace(json.dumps(dump | {"entries": last_entries}).encode())
        (told,) = join(None, trace, at_ns=lambda ns: ns / 1e9, last=100)
        assert [(call.seq, call.op) for call in told.calls if call.state != "completed"] == [(2, "send"), (2, "recv")]
        assert told.completed == 3, "the collectives before it are done"


def test_an_older_version_is_read() -> None:
    assert groups("nccl-old-0")["default_pg"].issued == 3


@pytest.mark.parametrize(
    ("data", "trouble"),
    [
        (b"", "can't be read"),
        (b"not json", "can't be read"),
        (b"[]", "can't be read"),
        (b'{"entries": 3}', "can't be read"),
        (b"{" * 100_000, "can't be read"),
        (b'{"entries": [{"a": "\xff\xfe"}]}', "1 entries"),
        (b"{}", ""),
        (b'{"version": "9.0", "entries": [], "pg_config": [1], "new": {"a": null}}', ""),
        (b'{"version": "9.0", "entries": [{}, 3, null, {"process_group": []}]}', "4 entries"),
        (read("gloo-calls-0")[:-500], "can't be read"),
    ],
)
def test_what_can_t_be_read_is_said(data: bytes, trouble: str) -> None:
    trace = parse_trace(data)
    assert trace.entries == []
    assert (trouble in trace.trouble) if trouble else trace.trouble == ""


def test_an_entry_of_another_shape_is_left_out_alone() -> None:
    dump: dict[str, Any] = json.loads(read("gloo-skip-0"))
    dump["entries"][1]["collective_seq_id"] = "two"
    dump["entries"][2] = {"process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "seq_id": 3}
    trace = parse_trace(json.dumps(dump).encode())
    assert [entry.seq for entry in trace.entries] == [1, 3, 4]
    assert "1 entries" in trace.trouble
    assert dump["version"] in trace.trouble


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    parse_trace(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted(json.loads(read("gloo-skip-0"))["entries"][0])


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.sampled_from(["entries", "pg_config", "version"]), JSON)
def test_no_json_raises(changes: dict[str, Any], key: str, value: Any) -> None:
    dump = json.loads(read("gloo-skip-0"))
    dump["entries"][-1].update(changes)
    dump["entries"].append(changes)
    join(None, parse_trace(json.dumps(dump).encode()), at_ns=float)
    dump[key] = value
    join(None, parse_trace(json.dumps(dump).encode()), at_ns=float)


def test_a_group_of_the_same_name_starts_anew() -> None:
    dump = json.loads(read("gloo-skip-0"))
    dump["entries"] += dump["entries"][:2]
    [told] = join(None, parse_trace(json.dumps(dump).encode()), at_ns=float)
    assert (told.issued, len(told.calls)) == (2, 2)


# The server ---------------------------------------------------------------------------------------------


@contextmanager
def server(path: Path, *answers: bytes, hangs: bool = False) -> Iterator[str]:
    """Answer one connection after another with these bytes; then stay silent, if hangs."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    over = threading.Event()

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                try:
                    connection.sendall(answer)
                except OSError:
                    pass
                if hangs:
                    over.wait(60)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def http(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nContent-Type: x\r\n\r\n".encode() + body


def ask(path: str, timeout_s: float = 5.0) -> bytes:
    return request(path, "GET", "/handler/", time.monotonic() + timeout_s)


def test_an_answer_is_read_whole(tmp_path: Path) -> None:
    body = os.urandom(3_000_000)
    with server(tmp_path / "s", http(body)) as path:
        assert ask(path) == body


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "ended early"),
        (b"HTTP/1.1 200 OK\r\n", "ended early"),
        (http(b"short", length=1000), "ended early"),
        (http(b"", status="404 Not Found"), "status 404"),
        (http(b"", length=100_000_000), "95 MB long"),
        (b"hello\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nbody without a length", "no HTTP"),
        (b"x" * 100_000, "no HTTP"),
    ],
)
def test_a_bad_answer_is_refused(tmp_path: Path, answer: bytes, error: str) -> None:
    with server(tmp_path / "s", answer) as path, pytest.raises(ValueError, match=error):
        ask(path)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", http(b"part", length=1000)])
def test_a_silent_server_is_left(tmp_path: Path, answer: bytes) -> None:
    with server(tmp_path / "s", answer, hangs=True) as path:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            ask(path, timeout_s=0.2)
        assert time.monotonic() - began < 30


def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ask(str(tmp_path / "none"))


@contextmanager
def listening(path: str) -> Iterator[tuple[int, int]]:
    """A listener of this process, as (descriptor, inode)."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        yield listener.fileno(), os.fstat(listener.fileno()).st_ino


def test_both_memories_are_asked_for_where_there_are_two(tmp_path: Path) -> None:
    names = http(json.dumps(["ping", "dump_nccl_trace_json", "fr_trace_json"]).encode())
    answers = [names, http(read("gloo-skip-0")), http(read("nccl-mismatch-0"))]
    with listening(str(tmp_path / "own")) as own, server(tmp_path / "s", *answers) as path:
        trace = fetch_trace(path, os.getpid(), own, 5.0)
    assert {entry.backend for entry in trace.entries} == {"gloo", "nccl"}
    assert trace.members == {"0": [0, 1], "1": [0, 1]}


@pytest.mark.parametrize(
    ("names", "error"), [(b'["ping"]', "no flight recorder"), (b"{}", "could not be read"), (b"[1]", "could not be")]
)
def test_a_server_without_a_recorder_is_said(tmp_path: Path, names: bytes, error: str) -> None:
    own, answers = listening(str(tmp_path / "own")), server(tmp_path / "s", http(names))
    with own as listener, answers as path, pytest.raises(TraceError, match=error):
        fetch_trace(path, os.getpid(), listener, 5.0)


def test_nobody_connects_where_the_descriptor_is_another(tmp_path: Path) -> None:
    pid = os.getpid()
    with listening(str(tmp_path / "s")) as (fd, inode):
        assert find_obstacle(pid, fd, inode) == ""
        assert "has closed" in find_obstacle(pid, fd, inode + 1)
    assert "has closed" in find_obstacle(pid, fd, inode)
    with pytest.raises(TraceError, match="has closed"):
        fetch_trace(str(tmp_path / "s"), pid, (fd, inode), 1.0)
