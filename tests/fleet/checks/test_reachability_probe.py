"""The listener of a check: it answers whoever brings the check's token, and nobody else; calls say why they failed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from guardrun.supervisor.fleet.checks import reachability_probe as echoes
from guardrun.supervisor.fleet.checks.reachability_probe import CALL_BYTES, TOKEN_BYTES, Echo, call

TOKEN = os.urandom(TOKEN_BYTES)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is there may take its time to answer."""
    monkeypatch.setattr(echoes, "CONNECT_S", 60.0)


@pytest.fixture
def echo() -> Iterator[Echo]:
    opened = Echo("n1", TOKEN, keep_s=30.0)
    yield opened
    opened.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_call_is_answered_and_timed(echo: Echo, address: str) -> None:
    met = call("n1", address, echo.port, TOKEN)
    assert not met.error and 0 < met.took_s < 10.0


def test_many_call_at_once(echo: Echo) -> None:
    errors: list[str] = []
    threads = [
        threading.Thread(target=lambda: errors.append(call("n1", "127.0.0.1", echo.port, TOKEN).error))
        for _ in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [""] * 100


def test_a_name_that_means_another_host_is_told(echo: Echo) -> None:
    assert call("n2", "127.0.0.1", echo.port, TOKEN).error == "n1 answers there: the name means another host here"


def test_strangers_are_hung_up_on_without_a_word(echo: Echo) -> None:
    for said in (os.urandom(CALL_BYTES), b"GET / HTTP/1.1\r\n\r\n", TOKEN[:-1] + bytes([TOKEN[-1] ^ 1]) + b"x" * 8):
        with socket.create_connection(("127.0.0.1", echo.port), timeout=60.0) as stranger:
            stranger.sendall(said)
            try:
                assert stranger.recv(100) == b""
            except ConnectionResetError:
                pass
    assert not call("n1", "127.0.0.1", echo.port, TOKEN).error


def test_silent_callers_are_dropped_and_disturb_nobody(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echoes, "IDLE_S", 0.3)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", echo.port), 60.0)) for _ in range(20)]
        assert not call("n1", "127.0.0.1", echo.port, TOKEN).error
        assert all(one.recv(1) == b"" for one in silent)


def test_no_more_callers_than_are_bounded(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echoes, "MOST_CALLERS", 2)
    with ExitStack() as stack:
        callers = [stack.enter_context(socket.create_connection(("127.0.0.1", echo.port), 60.0)) for _ in range(3)]
        assert callers[2].recv(1) == b""


def test_it_ends_by_itself() -> None:
    short = Echo("n1", TOKEN, keep_s=0.0)
    deadline_s = time.monotonic() + 60.0
    while "refused" not in (error := call("n1", "127.0.0.1", short.port, TOKEN).error):
        assert time.monotonic() < deadline_s, error
    short.close()


def test_why_a_call_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echoes, "CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        assert "no answer from 127.0.0.1 within" in call("n1", "127.0.0.1", port, TOKEN).error
    assert call("n1", "127.0.0.1", port, TOKEN).error == "127.0.0.1: Connection refused"
    told = call("n1", "no-such-host.invalid", port, TOKEN).error
    assert told.startswith("its name no-such-host.invalid is not resolved:")


def test_something_else_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            caller, _ = other.accept()
            with caller:
                caller.recv(CALL_BYTES)
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 300)

        thread = threading.Thread(target=answer)
        thread.start()
        assert call("n1", "127.0.0.1", other.getsockname()[1], TOKEN).error == "something else answers there"
        thread.join()
