from __future__ import annotations

import json
import time

import msgspec
import pytest

from guardrun.hooks.wire.messages import MAX_TEXT_CHARS
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.ranks.exits import (
    STDERR_BYTES,
    STDERR_TAIL_BYTES,
    bound,
    parse_error_file,
    parse_raised,
    parse_tail,
    parse_traceback_frames,
)
from guardrun.supervisor.engine.failures.backend_words import read_words
from guardrun.supervisor.engine.failures.failure_causes import cause_of_log, last_words
from tests.collect.ranks.raised import FRAMES, RAISED, TRACEBACK

CLOCK = EngineClock(10.0, 2.0)


def test_the_clock_keeps_never_and_shifts_the_rest() -> None:
    assert CLOCK.at_ns(0) == 0.0
    assert CLOCK.at_ns(int(3.5e9)) == pytest.approx(11.5)
    assert EngineClock(5.0, time.monotonic()).now() == pytest.approx(5.0, abs=30)


def test_the_hooks_word_is_taken_whole() -> None:
    record = parse_raised(msgspec.json.encode(RAISED), CLOCK)
    assert record is not None
    assert (record.error, record.message, record.frames) == ("torch.OutOfMemoryError", "no room", FRAMES)
    assert record.at_s == pytest.approx(11.5)


def test_a_file_cut_anywhere_gives_what_it_holds() -> None:
    for keep in range(800):
        data = msgspec.json.encode(RAISED)[:keep]
        record = parse_raised(data, CLOCK)
        if b'"torch.OutOfMemoryError"' in data:
            assert record is not None and record.error == "torch.OutOfMemoryError", keep
        else:
            assert record is None or record.error in "torch.OutOfMemoryError", keep


def test_torch_elastics_file_in_both_forms() -> None:
    message = {"message": "ValueError: bad: value", "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "1732"}}
    record = parse_error_file(json.dumps({"message": message}).encode())
    assert record is not None
    assert (record.error, record.message, record.frames) == ("ValueError", "bad: value", FRAMES)
    assert record.at_s == 0
    record = parse_error_file(b'{"message": "torch.cuda.OutOfMemoryError: CUDA out of memory", "errorCode": 1}')
    assert record is not None
    assert (record.error, record.message) == ("torch.cuda.OutOfMemoryError", "CUDA out of memory")
    record = parse_error_file(b'{"message": "something went wrong: no type"}')
    assert record is not None and (record.error, record.message) == ("", "something went wrong: no type")
    record = parse_error_file(b'{"message": {"message": "KeyboardInterrupt"}}')
    assert record is not None and (record.error, record.message) == ("KeyboardInterrupt", "")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"3", b"{}", b'{"message": null}', b'{"message": {}}', b"\xff\xfe", b'{"message": {"message": 3}}'],
)
def test_a_file_that_tells_nothing_is_none(data: bytes) -> None:
    assert parse_error_file(data) is None
    assert parse_raised(data, CLOCK) is None


def test_a_cut_elastic_file_still_names_the_error() -> None:
    whole = json.dumps(
        {"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": TRACEBACK * 20}}}
    ).encode()
    record = parse_error_file(whole[: len(whole) // 2])
    assert record is not None and record.error == "ValueError"


def test_huge_texts_keep_both_ends() -> None:
    text = bound("a" * MAX_TEXT_CHARS + "b" * MAX_TEXT_CHARS)
    assert len(text) <= MAX_TEXT_CHARS and text.startswith("aaa") and text.endswith("bbb")
    record = parse_error_file(json.dumps({"message": "ValueError: " + "x" * 10**6}).encode())
    assert record is not None and len(record.message) <= MAX_TEXT_CHARS


def test_frames_are_those_of_the_last_traceback() -> None:
    assert parse_traceback_frames(TRACEBACK) == FRAMES
    assert parse_traceback_frames("no traceback") == []


def test_a_tail_begins_with_a_whole_line() -> None:
    assert parse_tail(b"short\n") == "short\n"
    data = b"first line\n" + b"x" * 10 + b"\n" + b"y" * 4090 + b"\n"
    assert parse_tail(data) == "y" * 4090 + "\n"
    assert parse_tail(b"z" * 9000) == "z" * 4096
    assert parse_tail("é".encode() * 3000).endswith("éé")


ECC = "[Rank 1] Watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
FRAMES_AFTER = "".join(
    f"frame #{number}: <unknown function> + 0x{number:x} (0x7f in libtorch.so)\n" for number in range(90)
)
DUMP = "".join(f'  File "/venv/lib/loader.py", line {number} in wait\n' for number in range(300))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", FRAMES_AFTER),
        ("epoch 3\n", f"Exception raised from run at P.cpp:1\n{FRAMES_AFTER}\nFatal Python error: Aborted\n\n{DUMP}"),
        ("terminate called after throwing an instance of 'E'\n  what():  an older one\n" + DUMP, DUMP[:3000]),
    ],
    ids=["a C++ stack", "a dump of all threads", "others before"],
)
def test_last_words_are_found_before_what_follows_them(before: str, after: str) -> None:
    text = f"{before}terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {ECC}\n{after}"
    tail = parse_tail(text.encode())
    assert last_words(tail).splitlines()[0] == ECC and tail.endswith(text[-3000:])
    told = cause_of_log(tail)
    assert told is not None and told.cause == "gpu_lost"
    assert len(tail) < 2 * STDERR_TAIL_BYTES


def test_what_a_watchdog_said_is_found_before_what_follows_it() -> None:
    """The stack of the collective that timed out is written in between, then C++'s own, 30 frames of each."""
    prefix = "[rank1]:[E1122 04:00:00 ProcessGroupNCCL.cpp:1794] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
    said = f"{prefix}Received a dump signal … Last enqueued NCCL work: 11, last completed NCCL work: 11.This is\n"
    tail = parse_tail(f"step 3\n{said}{FRAMES_AFTER}{DUMP}".encode())
    words = read_words(tail)
    assert (words.group, words.enqueued) == ("default_pg", 11)
    assert "step 3" not in tail and len(tail) < 2 * STDERR_TAIL_BYTES
    dead = f"{said}terminate called after throwing an instance of 'E'\n  what():  {ECC}\n{FRAMES_AFTER}{DUMP}"
    tail = parse_tail(dead.encode())
    assert read_words(tail).enqueued == 11 and last_words(tail).splitlines()[0] == ECC
    assert parse_tail(said.encode()) == said


def test_the_c_library_s_line_is_found_before_what_follows_it() -> None:
    tail = parse_tail(f"step 3\ndouble free or corruption (out)\n{DUMP}".encode())
    assert last_words(tail) == "double free or corruption (out)" and "step 3" not in tail
    far = parse_tail(f"free(): invalid pointer\n{'x' * STDERR_BYTES}".encode())
    assert last_words(far) == "", "beyond what is read"
    huge = parse_tail(f"Check failed: {'x' * 30_000}\n{DUMP}".encode())
    assert last_words(huge).startswith("Check failed: xxx") and len(huge) < 2 * STDERR_TAIL_BYTES
