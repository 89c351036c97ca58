"""Introductions by a real munged: who is admitted, and all that is not."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
import zmq

from guardrun.supervisor.fleet.rendezvous import introduction as module
from guardrun.supervisor.fleet.rendezvous import munge
from guardrun.supervisor.fleet.rendezvous.introduction import Introducer, IntroductionError, introduce
from guardrun.supervisor.fleet.rendezvous.join_file import JoinFile
from guardrun.supervisor.fleet.transport.curve import KeyPair, make_key_pair
from guardrun.supervisor.wire.listening_addresses import Listen
from tests.fleet.ends import opened
from tests.fleet.joins import made
from tests.support.munged import munged_of_its_own

RUN_KEY = "77.0"
HERE = Listen(addresses=["127.0.0.1"])
NOBODY = 65534


@pytest.fixture(scope="module", name="munged")
def a_munged() -> Iterator[str]:
    """A munged with a key of its own; its socket."""
    with munged_of_its_own() as socket_path:
        yield socket_path


class Reception:
    """An introducer in a loop of its own thread, and what it has admitted."""

    def __init__(self, munged: str) -> None:
        self.admitted: list[str] = []
        self.join = made()
        self.introducer = Introducer(0, RUN_KEY, self.join, self.admitted.append, listen=HERE, munge_socket=munged)
        self.port = self.introducer.port
        self.counters = self.introducer.counters
        self._is_over = False
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        poller = zmq.Poller()
        self.introducer.register(poller)
        while not self._is_over:
            self.introducer.read(dict(poller.poll(20)))
        self.introducer.close()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()

    def ask(self, credential: bytes) -> bytes:
        """What is said to whoever sends this."""
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=60)) as connection:
            connection.sendall(struct.pack("!I", len(credential)) + credential)
            answer = b""
            try:
                while part := connection.recv(4096):
                    answer += part
            except ConnectionResetError:
                pass
            return answer


@pytest.fixture
def reception(munged: str) -> Iterator[Reception]:
    opened_reception = Reception(munged)
    yield opened_reception
    opened_reception.close()


def question(public: str = "", run_key: str = RUN_KEY) -> bytes:
    return msgspec.json.encode({"run_key": run_key, "public": public or make_key_pair().public, "nonce": "0" * 32})


pytestmark = pytest.mark.real("munge")


def test_a_node_is_introduced_with_a_key_of_its_own(reception: Reception, munged: str) -> None:
    join, pair = introduce("127.0.0.1", reception.port, RUN_KEY, munge_socket=munged)
    assert join == msgspec.structs.replace(reception.join, client=None)
    assert reception.admitted == [pair.public]
    assert reception.counters.introduced == 1


def test_it_introduces_itself_where_it_is_to_and_at_more_when_asked(munged: str) -> None:
    """As one does for a node that was told another name for the head's host."""
    ends = zmq.Poller()
    join, admitted = made(), list[str]()
    listen = Listen(addresses=["127.0.0.1", "127.0.0.2"])
    introducer = Introducer(0, RUN_KEY, join, admitted.append, listen=listen, munge_socket=munged)
    introducer.register(ends)
    found: list[str] = []

    def ask() -> None:
        for address in ("127.0.0.3", "127.0.0.2", "127.0.0.1", "127.0.0.3"):
            try:
                introduce(address, introducer.port, RUN_KEY, munge_socket=munged)
                found.append(address)
            except IntroductionError as error:
                found.append(str(error).rpartition(": ")[2])
            if len(found) == 3:
                is_asked.wait(60)

    is_asked = threading.Event()
    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        introducer.read(dict(ends.poll(20)))
        if len(found) == 3 and not is_asked.is_set():
            assert introducer.listen_also(["127.0.0.1", "127.0.0.3"]) == ["127.0.0.3"]
            is_asked.set()
    introducer.close()
    assert found == ["Connection refused", "127.0.0.2", "127.0.0.1", "127.0.0.3"]
    assert len(admitted) == 3


def test_and_then_joins(munged: str) -> None:
    with opened() as ends:
        ends.open_hub()
        join = msgspec.structs.replace(made(), port=ends.hub.port, server_key=ends.server.public)
        introducer = Introducer(0, RUN_KEY, join, ends.hub.admit, listen=HERE, munge_socket=munged)
        introducer.register(ends.poller)
        results: list[tuple[JoinFile, KeyPair]] = []
        thread = threading.Thread(
            target=lambda: results.append(introduce("127.0.0.1", introducer.port, RUN_KEY, munge_socket=munged))
        )
        thread.start()
        while not results:
            introducer.read(dict(ends.poller.poll(20)))
        thread.join()
        introducer.close()
        found, pair = results[0]
        ends.open_link("a", keys=pair, port=found.port, server=found.server_key)
        ends.joined("a")


def test_many_at_once(reception: Reception, munged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge, "TIMEOUT_S", 60.0)
    asks = partial(introduce, "127.0.0.1", reception.port, RUN_KEY, timeout_s=120.0, munge_socket=munged)
    threads = [threading.Thread(target=asks) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(reception.admitted)) == 12


def test_a_credential_holds_once(reception: Reception, munged: str) -> None:
    credential = munge.encode(question(), os.geteuid(), munged)
    assert reception.ask(credential)
    assert reception.ask(credential) == b""
    assert (reception.counters.introduced, reception.counters.refused) == (1, 1)
    assert len(reception.admitted) == 1


@pytest.mark.parametrize(
    "payload",
    [
        question(run_key="78.0"),
        question(public="short"),
        b"",
        b"\xff",
        b"[]",
        b"[" * 5000,
        question()[:-1] + b',"x":1}',
    ],
    ids=["another run", "no key", "nothing", "no text", "a list", "deep", "more"],
)
def test_what_asks_for_something_else_is_told_nothing(reception: Reception, munged: str, payload: bytes) -> None:
    assert reception.ask(munge.encode(payload, os.geteuid(), munged)) == b""
    assert (reception.admitted, reception.counters.refused) == ([], 1)


@pytest.mark.parametrize("credential", [b"MUNGE:AwQFAADIS7WUxAiD28Nf:", b"MUNGE::", b"x" * 100, b"-" * 16384])
def test_a_forged_credential_is_told_nothing(reception: Reception, credential: bytes) -> None:
    assert reception.ask(credential) == b""
    assert (reception.admitted, reception.counters.refused) == ([], 1)


@pytest.mark.real("root")
def test_another_users_credential_is_told_nothing(reception: Reception, munged: str) -> None:
    credential = subprocess.run(
        ["munge", f"--socket={munged}", f"--restrict-uid={os.geteuid()}"],
        input=question(),
        capture_output=True,
        check=True,
        user=NOBODY,
    ).stdout.strip()
    assert reception.ask(credential) == b""
    assert (reception.admitted, reception.counters.refused) == ([], 1)


def test_a_credential_for_another_user_or_of_long_ago_cannot_be_read(munged: str) -> None:
    with pytest.raises(munge.MungeError, match=r"[Uu]nauthorized"):
        munge.decode(munge.encode(b"x", NOBODY, munged), munged)
    old = subprocess.run(
        ["munge", f"--socket={munged}", "--ttl=1"], input=b"x", capture_output=True, check=True
    ).stdout.strip()
    time.sleep(2.1)  # munge counts in whole seconds
    with pytest.raises(munge.MungeError, match=r"[Ee]xpired"):
        munge.decode(old, munged)


def test_strangers_that_hold_the_line_are_in_nobodys_way(
    reception: Reception, munged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 20)
    strangers = [socket.create_connection(("127.0.0.1", reception.port)) for _ in range(60)]
    try:
        strangers[-1].sendall(b"\0\0\1")
        introduce("127.0.0.1", reception.port, RUN_KEY, munge_socket=munged)
        assert reception.counters.crowded_out >= 40
    finally:
        for stranger in strangers:
            stranger.close()


def test_who_is_late_or_says_too_much_is_cut_off(reception: Reception, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "PATIENCE_S", 0.3)
        with closing(socket.create_connection(("127.0.0.1", reception.port), timeout=60)) as silent:
            silent.sendall(b"\0\0")
            assert silent.recv(10) == b""
    for data in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\2" + b"xxx", b"GET / HTTP/1.1\r\n\r\n"):
        with closing(socket.create_connection(("127.0.0.1", reception.port), timeout=60)) as stranger:
            stranger.sendall(data)
            try:
                assert stranger.recv(10) == b""
            except ConnectionResetError:
                pass
    assert (reception.counters.late, reception.counters.refused) == (1, 4)


def test_a_node_says_why_it_was_not_introduced(reception: Reception, munged: str) -> None:
    with pytest.raises(IntroductionError, match="does not want us"):
        introduce("127.0.0.1", reception.port, "78.0", munge_socket=munged)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        with pytest.raises(IntroductionError, match="no answer in time"):
            introduce("127.0.0.1", port, RUN_KEY, munge_socket=munged, timeout_s=0.5)
    with pytest.raises(IntroductionError, match="refused"):
        introduce("127.0.0.1", port, RUN_KEY, munge_socket=munged)
    with pytest.raises(IntroductionError, match="munge: "):
        introduce("127.0.0.1", reception.port, RUN_KEY, munge_socket=f"{munged}-not-there")


def test_a_coordinator_that_is_none_is_not_believed(munged: str) -> None:
    """Whoever has taken its port knows the user's uid, and can show credentials: of another question, or its own."""
    replies = [
        munge.encode(msgspec.json.encode({"nonce": "old", "join": msgspec.to_builtins(made())}), os.geteuid(), munged),
        munge.encode(b"{}", os.geteuid(), munged),
        b"MUNGE:AAAA:",
        b"",
    ]
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            for reply in replies:
                connection, _ = server.accept()
                with closing(connection):
                    connection.recv(65536)
                    connection.sendall(struct.pack("!I", len(reply)) + reply)

        thread = threading.Thread(target=serve)
        thread.start()
        for _ in replies:
            with pytest.raises(IntroductionError):
                introduce("127.0.0.1", server.getsockname()[1], RUN_KEY, munge_socket=munged)
        thread.join()


def test_a_munge_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "munge"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(munge, "TIMEOUT_S", 0.5)
    with pytest.raises(munge.MungeError, match="no answer"):
        munge.encode(b"", 0)
    slow.unlink()
    with pytest.raises(munge.MungeError, match="no program munge"):
        munge.encode(b"", 0)
