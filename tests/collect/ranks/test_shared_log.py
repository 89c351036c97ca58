"""What is read back of a stderr that ranks share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from guardrun.supervisor.collect.ranks.exits import NO_WORDS, STDERR_BYTES, SharedLog, parse_words, read_words
from guardrun.supervisor.engine.failures.exception_chain import error_in_log
from guardrun.supervisor.engine.failures.failure_causes import cause_of_log, last_words

Holder = Callable[[IO[bytes] | int], int]


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Starts a process with that stderr; it ends when its stdin does."""
    with ExitStack() as stack:

        def hold(stderr: IO[bytes] | int) -> int:
            command = [sys.executable, "-S", "-c", "input()"]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr)
            )
            stack.callback(process.kill)
            return process.pid

        yield hold


def test_lines_that_name_a_rank_are_its_own() -> None:
    words = parse_words(
        b"loading\n[rank1]: Traceback (most recent call last):\n[rank0]:[W1 Heartbeat.cpp:7] late\n"
        b'[rank1]:   File "/a/train.py", line 3, in main\n[rank1]: ValueError: bad sample\n'
    )
    assert set(words.of_ranks) == {0, 1} and words.of_anybody == ""
    error = error_in_log(words.of_ranks[1])
    assert error is not None and (error.error, error.message) == ("ValueError", "bad sample")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoch 3\nfree(): invalid pointer\nepoch 4\n", "free(): invalid pointer"),
        ("train: a.c:7: f: Assertion `x > 0' failed.\n", "train: a.c:7: f: Assertion `x > 0' failed."),
        ("terminate called after throwing an instance of 'E'\n  what():  no more\nepoch 4\n", "no more\nepoch 4"),
        ("[rank0]: free(): invalid pointer\n", ""),
        ("all is well\n", ""),
        ("", ""),
    ],
)
def test_the_last_words_among_lines_that_name_nobody(text: str, said: str) -> None:
    assert last_words(parse_words(text.encode()).of_anybody) == said


def test_a_rank_that_cannot_be_is_none() -> None:
    words = parse_words(b"[rank" + b"9" * 5000 + b"]: free(): invalid pointer\n[rank2]: late\n")
    assert words.of_ranks == {2: "[rank2]: late"}


def test_words_in_several_lines_say_their_cause_and_what_others_say_later_is_not_theirs() -> None:
    said = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  an older one\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.29.7\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'\n"
        + "epoch 4\n" * 20
        + "Connection closed by peer\n"
    )
    words = parse_words(said.encode()).of_anybody
    told = cause_of_log(words)
    assert told is not None and told.cause == "cuda_oom"
    assert "older" not in words and "closed by peer" not in words


def test_the_end_of_the_very_file_is_read_wherever_it_lies_now(tmp_path: Path, holder: Holder) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"free(): of the last attempt\n")
    begin = path.stat().st_size
    with path.open("ab") as file:
        log = SharedLog(holder(file), begin)
    assert log.folder() == str(tmp_path)
    assert read_words(log) == NO_WORDS, "what was said before the attempt is not its own"
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"free(): of somebody else\n")
    with (tmp_path / "log.1").open("ab") as file:
        file.truncate(5 << 30)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(b"\nfree(): invalid pointer\n[rank3]: " + b"x" * STDERR_BYTES + b"\n[rank3]: end\n")
    words = read_words(log)
    assert set(words.of_ranks) == {3} and words.of_ranks[3].endswith("end") and len(words.of_ranks[3]) < STDERR_BYTES
    assert words.of_anybody == "", "beyond what is read"


def test_a_file_that_was_emptied_meanwhile_is_read_from_its_beginning(tmp_path: Path, holder: Holder) -> None:
    with (tmp_path / "log").open("ab") as file:
        log = SharedLog(holder(file), 10_000)
    (tmp_path / "log").write_bytes(b"free(): invalid pointer\n")
    assert read_words(log).of_anybody == "free(): invalid pointer"


def test_what_is_no_file_or_cannot_be_read_says_nothing(holder: Holder) -> None:
    assert read_words(SharedLog(holder(subprocess.PIPE), 0)) == NO_WORDS
    assert read_words(SharedLog(2**22 + 1, 0)) == NO_WORDS
    assert SharedLog(2**22 + 1, 0).folder() == ""
