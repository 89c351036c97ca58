"""sd_notify and the journal's native protocol, against sockets of the kind that systemd listens at."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.systemd.journal import Journal, encode_field, field_name, is_journal
from guardrun.systemd.notify import Notifier, watchdog_s


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@guardrun-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind("\0" + address[1:] if address.startswith("@") else address)
        end.settimeout(60)
        yield end, address


def test_states_arrive_as_one_datagram_each(listener: tuple[socket.socket, str]) -> None:
    end, address = listener
    environ = {"NOTIFY_SOCKET": address, "OTHER": "1"}
    notifier = Notifier.take_from(environ)
    assert environ == {"OTHER": "1"}
    notifier.ready("two\nlines")
    assert end.recv(4096) == b"READY=1\nSTATUS=two lines"
    notifier.watchdog()
    assert end.recv(4096) == b"WATCHDOG=1"
    notifier.reloading()
    reloading, since = end.recv(4096).decode().splitlines()
    assert reloading == "RELOADING=1"
    assert since.startswith("MONOTONIC_USEC=")
    notifier.stopping()
    assert end.recv(4096).startswith(b"STOPPING=1\n")
    notifier.close()


def test_without_systemd_nothing_happens() -> None:
    notifier = Notifier.take_from({})
    assert not notifier.is_heard
    notifier.ready("")
    notifier.close()


def test_a_socket_that_nobody_reads_blocks_nobody(listener: tuple[socket.socket, str]) -> None:
    _, address = listener
    notifier = Notifier(address)
    for _ in range(10_000):
        notifier.watchdog()
    notifier.close()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdogs_period(environ: dict[str, str], expected: float) -> None:
    assert watchdog_s(environ, 7) == expected


def test_journal_entries_carry_fields_whatever_they_hold(tmp_path: Path) -> None:
    address = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(address)
        end.settimeout(60)
        journal = Journal("guardrund", address)
        journal.send("one\ntwo", "warning", {field_name("run id"): "a=b"})
        data = end.recv(65536)
        journal.close()
    assert data.startswith(b"MESSAGE\n" + struct.pack("<Q", 7) + b"one\ntwo\n")
    assert b"PRIORITY=4\n" in data
    assert b"GUARDRUN_RUN_ID=a=b\n" in data


def test_a_value_without_end_is_cut() -> None:
    assert len(encode_field("X", "y" * 100_000)) < 10_000


def test_only_the_stream_that_systemd_made_is_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("wb") as file:
        stat = os.fstat(file.fileno())
        assert is_journal(file.fileno(), {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"})
        assert not is_journal(file.fileno(), {"JOURNAL_STREAM": "1:2"})
        assert not is_journal(file.fileno(), {})
