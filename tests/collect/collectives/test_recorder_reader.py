"""When a recorder is asked for what, by the requests that a server of ours hears."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire.board import MAGIC, Field, Milestone
from guardrun.supervisor.collect.collectives import recorder_reader as rr
from guardrun.supervisor.collect.collectives.calls_page import CallsPage
from guardrun.supervisor.collect.collectives.flight_recorder import TraceError
from guardrun.supervisor.collect.collectives.recorder_reader import RecorderReader, RecorderReaders
from tests.collect.collectives.dumps import dump, entry

NUMBERS, ENTRIES, HOST = (
    "/handler/dump_nccl_trace_json?includecollectives=false",
    "/handler/dump_nccl_trace_json",
    "/handler/fr_trace_json",
)


class Board:
    """A rank's board, as the supervisor has it."""

    def __init__(self) -> None:
        self.words = [0] * len(Field)
        self.words[Field.MAGIC], self.words[Field.GROUPS] = MAGIC, 1
        self.words[Field.HEART_NS] = time.monotonic_ns()

    def read(self) -> list[int]:
        return list(self.words)

    def write(self, field: Field, value: int) -> None:
        self.words[field] = value


class Server:
    """torch's worker server: what it was asked, and whether the board told of it meanwhile."""

    def __init__(self, path: str, board: Board) -> None:
        self.path, self._board = path, board
        self.counts: dict[str, list[int]] = {"0": [10, -1, 9]}
        self.handlers: Any = ["fr_trace_json", "dump_nccl_trace_json"]
        self.asked: list[str] = []
        self.announced: list[bool] = []
        self.is_silent = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.page = CallsPage(1, [], [], self._listener.fileno(), os.fstat(self._listener.fileno()).st_ino, "")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                target = connection.recv(65536).split()[1].decode()
                if target == "/handler/":
                    body: Any = self.handlers
                else:
                    self.asked.append(target)
                    self.announced.append(self._board.words[Field.READING_NS] > 0)
                    if self.is_silent.is_set() and target == ENTRIES:
                        self._over.wait(60)
                        return
                    body = self._dump(target)
                data = json.dumps(body).encode()
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    def _dump(self, target: str) -> dict[str, Any]:
        names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        status = {
            group: {name: str(number) for name, number in zip(names, told, strict=True)}
            for group, told in self.counts.items()
        }
        dump: dict[str, Any] = {"version": "2.10", "pg_config": {}, "pg_status": {} if target == HOST else status}
        entry = {"process_group": ["0", ""], "profiling_name": "nccl:all_reduce", "collective_seq_id": 10}
        return dump if target == NUMBERS else dump | {"entries": [entry] if target == ENTRIES else []}


class Looks:
    """Looks at one rank, a while apart without waiting for it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rr, "LEAST_GAP_S", 0.0)
        monkeypatch.setattr(rr, "FETCH_S", 30.0)  # on a busy machine it takes longer than it may
        self.board = Board()
        self.server = Server(str(path), self.board)
        self.reader = RecorderReader()

    def look(self, **page: Any) -> rr.Reading:
        self.server.asked.clear()
        self.board.words[Field.HEART_NS] = time.monotonic_ns()
        return self.reader.read(os.getpid(), self.board, self.server.page._replace(**page), self.server.path, 60.0)

    @property
    def asked_of_device(self) -> list[str]:
        return [target for target in self.server.asked if target != HOST]


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    looks = Looks(tmp_path / "s", monkeypatch)
    yield looks
    looks.server.close()


def test_entries_are_asked_for_where_two_looks_agree(looks: Looks) -> None:
    first = looks.look()
    assert looks.server.asked == [HOST, NUMBERS]
    assert (first.counts, first.trouble) == ({"0": [10, -1, 9]}, rr.FIRST)
    second = looks.look()
    assert looks.asked_of_device == [NUMBERS, ENTRIES]
    assert second.trace is not None
    assert [(entry.op, entry.seq) for entry in second.trace.entries] == [("all_reduce", 10)]
    assert second.trouble == ""
    # A capture that begins waits for these alone; afterwards for nothing.
    assert looks.server.announced == [False, False, False, False, True]
    assert looks.board.words[Field.READING_NS] == 0


def move_device(looks: Looks) -> None:
    looks.server.counts = {"0": [10, -1, 10], "1": [4, -1, 3]}


def move_host(looks: Looks) -> None:
    looks.board.words[Field.GROUP_SEQ] += 1


def capture(looks: Looks) -> None:
    looks.board.words[Field.CAPTURES] = 1


@pytest.mark.parametrize(
    ("change", "trouble"), [(move_device, rr.MOVED), (move_host, rr.MOVED), (capture, rr.CAPTURING)]
)
def test_none_are_where_something_moves_or_a_graph_is_captured(
    looks: Looks, change: Callable[[Looks], None], trouble: str
) -> None:
    looks.look()
    change(looks)
    try:
        told = looks.look().trouble
    except TraceError as error:
        told = str(error)
    assert looks.asked_of_device == [NUMBERS]
    assert told == trouble
    assert looks.board.words[Field.READING_NS] == 0
    looks.board.words[Field.CAPTURES] = 0
    looks.look()
    assert looks.asked_of_device == [NUMBERS, ENTRIES], "it has come to rest"


def test_none_are_where_torch_has_no_watchdog(looks: Looks) -> None:
    for _ in range(3):
        told = looks.look(entries_trouble="torch waits for NCCL by itself")
        assert looks.asked_of_device == [NUMBERS]
    assert told.trouble == "torch waits for NCCL by itself"


def test_a_device_that_did_not_answer_is_never_asked_again(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    looks.look()
    monkeypatch.setattr(rr, "FETCH_S", 3.0)
    looks.server.is_silent.set()
    assert looks.look().trouble == rr.SILENT
    assert looks.asked_of_device == [NUMBERS, ENTRIES]


def test_a_check_of_health_that_goes_on_hides_nothing(looks: Looks) -> None:
    """A thread of the script's own, in a group of its own: what training waits in is the same."""
    looks.server.counts["1"] = [7, -1, 7]
    looks.look()
    looks.server.counts["1"] = [8, -1, 8]
    looks.look()
    assert looks.asked_of_device == [NUMBERS, ENTRIES]
    looks.server.counts["1"] = [9, -1, 8]
    assert looks.look().trouble == rr.MOVED
    assert looks.asked_of_device == [NUMBERS]


def test_where_no_device_has_a_call_nothing_is_asked_of_it(looks: Looks) -> None:
    """gloo in a torch that was built with NCCL."""
    looks.server.counts = {}
    for _ in range(3):
        told = looks.look()
        assert (told.counts, told.trouble) == ({}, "")
        assert told.trace is not None
        assert looks.server.asked == [HOST, NUMBERS]


def test_another_process_of_the_rank_is_looked_at_anew(looks: Looks) -> None:
    looks.look()
    looks.reader._pid = 1
    assert looks.look().trouble == rr.FIRST


def test_two_looks_at_once_are_one(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's watchdog counts every 100 ms: two answers within that are equal whatever happens."""
    monkeypatch.setattr(rr, "LEAST_GAP_S", 600.0)
    for _ in range(3):
        assert looks.look().trouble == rr.FIRST
        assert looks.asked_of_device == [NUMBERS]


def test_nobody_connects_where_the_descriptor_is_another(looks: Looks) -> None:
    with pytest.raises(TraceError, match="has closed"):
        looks.look(recorder_inode=looks.server.page.recorder_inode + 1)
    assert looks.server.asked == []


@pytest.mark.parametrize(
    ("handlers", "error"), [(["ping"], "no flight recorder"), ({}, "not be read"), ([1], "not be")]
)
def test_a_server_without_a_recorder_is_said(looks: Looks, handlers: Any, error: str) -> None:
    looks.server.handlers = handlers
    with pytest.raises(TraceError, match=error):
        looks.look()


# Without a server ---------------------------------------------------------------------------------------------------

NO_SERVER = CallsPage(1, [], [], -1, 0, "")


def test_a_server_is_waited_for_once_and_only_where_it_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rr, "SERVER_S", 0.2)
    monkeypatch.setattr(rr, "HEART_STALE_NS", 600 * 10**9)
    board, reader = Board(), RecorderReader()
    reader.ask_for_server(board.read(), board)
    assert board.words[Field.SERVER_ASKED] == 1

    def wait_s() -> float:
        began = time.monotonic()
        reader.wait_for_server(board, 60.0)
        return time.monotonic() - began

    assert wait_s() >= 0.2
    monkeypatch.setattr(rr, "SERVER_S", 60.0)
    assert wait_s() < 30, "once"
    for field, value in (
        (Field.GROUPS, 0),
        (Field.MILESTONES, int(Milestone.ENDED)),
        (Field.HEART_NS, 1),  # long ago
        (Field.SERVER_GIVEN, 1),
    ):
        board, reader = Board(), RecorderReader()
        board.words[Field.SERVER_ASKED] = 1
        board.words[field] = value
        assert wait_s() < 30, field


def test_what_stays_unread_is_said() -> None:
    board, reader = Board(), RecorderReader()
    board.words[Field.SERVER_ASKED] = 1

    def trouble(page: CallsPage = NO_SERVER) -> str:
        return reader.read(os.getpid(), board, page, "", 1.0).trouble

    assert trouble() == rr.NOT_YET
    board.words[Field.HEART_NS] = time.monotonic_ns() - 10 * 10**9
    assert trouble() == rr.GIL_HELD
    assert trouble(NO_SERVER._replace(recorder_trouble="too little room")) == "too little room"
    with pytest.raises(TraceError, match="too little room; torch's own dump waits for the GIL"):
        trouble(NO_SERVER._replace(recorder_trouble="too little room", pipe="/x/pipe-", dump="/x/dump-"))


def test_torch_s_own_dump_serves_where_there_is_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same rule, but that only the hooks tell whether the rank moves; one dump serves for a while."""
    monkeypatch.setattr(rr, "LEAST_GAP_S", 0.0)
    stem, prefix = f"{tmp_path}/pipe-", f"{tmp_path}/dump-"
    os.mkfifo(f"{stem}0.pipe")
    fd = os.open(f"{stem}0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    board, reader, over, dumped = Board(), RecorderReader(), threading.Event(), []
    page = NO_SERVER._replace(recorder_trouble="too little room", pipe=stem, dump=prefix)

    def monitor() -> None:
        while not over.wait(0.01):
            if os.read(fd, 128):
                dumped.append(board.words[Field.READING_NS] > 0)
                Path(f"{prefix}0").write_bytes(dump(entry(1, "completed"), entry(2, "scheduled")))

    def read() -> rr.Reading:
        board.words[Field.HEART_NS] = time.monotonic_ns()
        return reader.read(os.getpid(), board, page, "", 20.0)

    thread = threading.Thread(target=monitor)
    thread.start()
    try:
        with pytest.raises(TraceError, match=rr.FIRST):
            read()
        for _ in range(2):
            told = read()
            assert told.trace is not None
            assert [each.is_done for each in told.trace.entries] == [True, False]
            assert told.counts == {"0": [2, -1, 1]}
        assert dumped == [True]
        board.words[Field.PULSES] += 1
        with pytest.raises(TraceError, match=rr.MOVED):
            read()
        read()
        assert dumped == [True, True], "what was dumped before it moved is of no use"
        board.words[Field.CAPTURES], board.words[Field.PULSES] = 1, 0
        for trouble in (rr.MOVED, rr.CAPTURING):
            with pytest.raises(TraceError, match=trouble):
                read()
    finally:
        over.set()
        thread.join()
        os.close(fd)
    assert len(dumped) == 2


def test_readers_are_kept_over_looks_and_not_over_attempts() -> None:
    readers = RecorderReaders()
    first = readers.of(0, 1)
    assert readers.of(0, 1) is first
    assert readers.of(0, 2) is not first
    assert readers.of(1, 1) is not first
    assert readers.of(0, 1) is not first
