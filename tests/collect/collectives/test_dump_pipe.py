"""torch's own dump: asked for by a pipe that the process itself has open, and read without building what it names."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.collect.collectives.dump_pipe import MAX_VALUES, convert_dump, dump_by_pipe, find_pipe
from guardrun.supervisor.collect.collectives.flight_recorder import parse_counts, parse_trace
from guardrun.supervisor.collect.collectives.process_groups import join
from tests.collect.collectives.dumps import dump, entry


def test_a_dump_says_what_the_server_would_have_said() -> None:
    data = convert_dump(dump(entry(1, "completed"), entry(2, "scheduled")))
    assert b"train.py" not in data
    [told] = join(None, parse_trace(data), at_ns=float)
    assert (told.backend, told.ranks, told.issued, told.completed) == ("nccl", [0, 1], 2, 1)
    assert told.calls[1].sizes == [[4, 3]]
    assert parse_counts(data) == {"0": [2, -1, 1]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


SHARED: list[Any] = [0] * 1000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        dump(entry(1, "completed"))[:-10],
        pickle.dumps([1]),
        pickle.dumps({"entries": [Path("/x")]}),
        pickle.dumps({"entries": nested(20)}),
        pickle.dumps({"entries": [SHARED] * MAX_VALUES}),
    ],
    ids=["empty", "torn", "no dump", "an object", "deep", "large where it is written out"],
)
def test_what_torch_does_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # of every sort
        convert_dump(data)


def test_a_dump_is_waited_for_until_it_is_whole(tmp_path: Path) -> None:
    stem, prefix = f"{tmp_path}/pipe-0-3-", f"{tmp_path}/dump-"
    os.mkfifo(f"{stem}3.pipe")
    fd = os.open(f"{stem}3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    old, new = dump(entry(1, "completed")), dump(entry(1, "completed"), entry(2, "scheduled"))
    Path(f"{prefix}3").write_bytes(old)  # what the watchdog wrote earlier

    def monitor() -> None:
        while not os.read(fd, 128):
            time.sleep(0.01)
        with open(f"{prefix}3", "wb") as file:
            file.write(new[:100])
            file.flush()
            time.sleep(0.2)
            file.write(new[100:])

    thread = threading.Thread(target=monitor)
    thread.start()
    try:
        data = dump_by_pipe(os.getpid(), stem, prefix, time.monotonic() + 20)
        assert data is not None
        assert len(parse_trace(data).entries) == 2
        thread.join()
        assert dump_by_pipe(os.getpid(), stem, prefix, time.monotonic() + 0.2) is None, "nobody writes one"
    finally:
        thread.join()
        os.close(fd)


def test_a_pipe_that_the_process_has_not_open_is_not_asked(tmp_path: Path) -> None:
    """A child of the rank's makes groups, and with them a pipe of the same name."""
    stem = f"{tmp_path}/pipe-"
    os.mkfifo(f"{stem}0.pipe")
    assert find_pipe(os.getpid(), stem) == ""
    fd = os.open(f"{stem}0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert find_pipe(os.getpid(), stem) == f"{stem}0.pipe"
        os.unlink(f"{stem}0.pipe")
        os.mkfifo(f"{stem}0.pipe")
        assert find_pipe(os.getpid(), stem) == ""
    finally:
        os.close(fd)
    assert dump_by_pipe(os.getpid(), stem, stem, time.monotonic() + 1) is None
