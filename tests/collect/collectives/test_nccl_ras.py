"""NCCL's RAS socket, played by a server that speaks as NCCL's source does (src/ras/client_support.cc)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from guardrun.supervisor.collect.collectives.nccl_ras import ask_ras, parse_status, read_address, read_ras


def status(counts: dict[int, int], missing: tuple[int, ...] = ()) -> str:
    """As jsonWriteHeader and its like write it; rank R is process 100 + R."""
    ranks = [
        {
            "rank": rank,
            "host": "10.0.0.1",
            "pid": 100 + rank,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "abort_flag": False},
            "collective_counts": {"Broadcast": 3, "AllReduce": count},
        }
        for rank, count in counts.items()
    ]
    lost = [{"rank": rank, "host": "unknown", "pid": -1, "status": {"unresponsive": True}} for rank in missing]
    comm = {
        "hash": "0xabc",
        "secondary_hash": "0x1:0x2",
        "size": len(counts) + len(missing),
        "ranks_count": len(counts),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": lost,
    }
    return json.dumps({"nccl_version": "2.29.3", "communicators_count": 1, "communicators": [comm], "ras": {}})


@contextmanager
def ras(
    answer: str, *, knows_json: bool = True, hangs: bool = False, waits_for: threading.Event | None = None
) -> Iterator[tuple[str, int]]:
    """waits_for: it gathers its answer until then, as NCCL does where ranks do not answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, connection.makefile("rw", newline="\n") as lines:
            for line in lines:
                command = line.strip().lower()
                if command.startswith("client protocol "):
                    lines.write("SERVER PROTOCOL 2\n")
                elif command == "set format json" and knows_json:
                    lines.write("OK\n")
                elif command == "status":
                    if hangs:
                        over.wait(60)
                        return
                    if waits_for is not None:
                        waits_for.wait(10)
                    lines.write(answer)
                    return
                else:
                    lines.write(f"ERROR: Unknown command {line.strip()}\n")
                lines.flush()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[:2]
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_ranks_that_are_apart_are_named() -> None:
    with ras(status({0: 120, 1: 120, 2: 119})) as (host, port):
        text, readings = read_ras({100, 102}, {"NCCL_RAS_ADDR": f"{host}:{port}"})
    assert json.loads(text)["nccl_version"] == "2.29.3"
    [reading] = readings
    assert reading.is_odd
    assert reading.note == "AllReduce: ranks 0, 1 at 120, rank 2 at 119"
    assert reading.name == "NCCL communicator 0xabc of 3"


def test_a_rank_that_does_not_answer_is_named() -> None:
    [reading] = parse_status(status({0: 5, 1: 5}, missing=(2, 3)), {100})
    assert reading.note == "no answer from ranks 2, 3"
    assert reading.value == 2


def test_equal_ranks_and_other_jobs_are_nothing_odd() -> None:
    assert parse_status(status({0: 5, 1: 5}), {100}) == []
    assert parse_status(status({0: 5, 1: 6}), {7}) == []


def test_what_takes_nccl_longer_than_a_look_is_heard_by_the_next() -> None:
    """A rank that is stopped: NCCL waits 5 s for it, and as long again; a look has less."""
    gathered = threading.Event()
    with ras(status({0: 5, 1: 5}, missing=(2,)), waits_for=gathered) as (host, port):
        where = {"NCCL_RAS_ADDR": f"{host}:{port}"}
        text, [reading] = read_ras({100}, where, limit_s=0.05)
        assert (text, reading.is_odd) == ("", False)
        assert "NCCL may take 21 s" in reading.note
        read_ras({100}, where, limit_s=0.05)  # the question stands, and is not asked again: nobody would answer that
        gathered.set()
        text, [reading] = read_ras({100}, where, limit_s=10.0)
    assert json.loads(text)["communicators_count"] == 1
    assert reading.note == "no answer from rank 2"


def test_the_next_question_is_a_new_one() -> None:
    for count in (5, 6):
        with ras(status({0: 5, 1: count})) as (host, port):
            _, odd = read_ras({100}, {"NCCL_RAS_ADDR": f"{host}:{port}"}, limit_s=10.0)
        assert len(odd) == count - 5


def test_who_gives_nccl_more_time_has_guardrun_wait_as_well() -> None:
    never = threading.Event()
    with ras("", waits_for=never) as (host, port):
        where = {"NCCL_RAS_ADDR": f"{host}:{port}", "NCCL_RAS_TIMEOUT_FACTOR": "3"}
        _, [reading] = read_ras({100}, where, limit_s=0.0)
        never.set()
        read_ras({100}, where, limit_s=10.0)
    assert "NCCL may take 61 s" in reading.note


def test_an_older_nccl_answers_in_text() -> None:
    text = "NCCL version 2.27.3 compiled with CUDA 12.9\nJob summary\n"
    with ras(text, knows_json=False) as (host, port):
        assert read_ras({1}, {"NCCL_RAS_ADDR": f"{host}:{port}"}) == (text, [])


def test_silence_ends_in_time() -> None:
    began = time.monotonic()
    with ras("", hangs=True) as address, pytest.raises(TimeoutError):
        ask_ras(address, limit_s=0.3)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("answer", ['{"communicators": [{"ranks": [{"rank": "x"}]}]}', "{", '{"communicators": 3}'])
def test_an_answer_of_another_shape_is_said(answer: str) -> None:
    with ras(answer) as (host, port):
        _, [reading] = read_ras({1}, {"NCCL_RAS_ADDR": f"{host}:{port}"})
    assert "no answer" in reading.note
    assert not reading.is_odd


def test_something_else_on_the_port_is_no_nccl() -> None:
    def close_at_once() -> None:
        listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=close_at_once)
        thread.start()
        with pytest.raises((ValueError, OSError)):
            ask_ras(listener.getsockname()[:2], 2.0)
        thread.join()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("localhost", 28028)),
        ("localhost:5", ("localhost", 5)),
        ("[::1]:77", ("::1", 77)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize("text", ["localhost", ":1", "a:b"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        read_address(text)
