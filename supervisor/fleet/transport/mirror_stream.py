"""Copies of ranks' states on their way to another node's memory: one encrypted connection, one copy after the other.

    Begin  ▶  whose copy, its record; refused where there is no room for it
    Data   ▶  its bytes, in order; WINDOW of them may be unanswered
    End    ▶  taken if size and checksum are the record's

Each end has a thread of its own, which runs at a low priority, as do ZeroMQ's threads that encrypt for it. Only the key
that the head has named is let in. Who is too slow or says nonsense is hung up on; the sender comes again by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import msgspec
import zmq

from guardrun.hooks.wire.snapshot_index import Record, pack_record, parse_record
from guardrun.supervisor.base.background_work import be_nice
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.fleet.transport.curve import (
    CurveAuthenticator,
    KeyPair,
    make_dealer,
    make_key_pair,
    make_router,
)
from guardrun.supervisor.fleet.transport.envelopes import DECODE_ERRORS
from guardrun.supervisor.wire.listening_addresses import Listen, bind_to

CHUNK_BYTES = 1 << 20
WINDOW = 4
HANDSHAKE_MS = 5_000
ANSWER_S = 15.0
AGAIN_S = 2.0
POLL_MS = 100
END_S = 2.0


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    pass


class Begin(_Frame, frozen=True, tag=1):
    """A copy follows."""

    attempt: int
    global_rank: int
    page: bytes
    """Its record."""


class Data(_Frame, frozen=True, tag=2):
    """A part of it."""

    data: bytes


class End(_Frame, frozen=True, tag=3):
    """That was all of it."""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """To each of these."""

    why: str = ""
    """Why it is not taken; empty: it is."""


class Store(Protocol):
    """Where copies are kept; called on the receiver's thread."""

    def begin(self, attempt: int, global_rank: int, record: Record) -> str:
        """Why there is no place for a copy; empty: there is, and what follows is for it."""

    def put(self, data: bytes) -> str:
        """Bytes of it; likewise."""

    def end(self) -> str:
        """That was all: keep it. Why not; empty: it is whole."""


class MirrorReceiver:
    """Listens until it is closed."""

    def __init__(self, listen: Listen, store: Store) -> None:
        """Raises OSError where it cannot listen."""
        self.keys = make_key_pair()
        self._store = store
        self._decoder: msgspec.msgpack.Decoder[Begin | Data | End] = msgspec.msgpack.Decoder(
            known_type(Begin | Data | End)
        )
        self._is_over = False
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._authenticator: CurveAuthenticator | None = None
        self.port = 0
        # The context's threads are made by this one, and are as low in priority.
        self._thread = threading.Thread(target=self._run, args=(listen,), name="guardrun-mirror-in", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def admit(self, key: str) -> None:
        """Who holds it may come."""
        if self._authenticator is not None:
            self._authenticator.admit(key)

    def close(self) -> None:
        """Listen no more."""
        self._is_over = True
        self._thread.join(END_S)

    def _run(self, listen: Listen) -> None:
        be_nice()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        authenticator = self._authenticator = CurveAuthenticator(context)
        router = make_router(context, self.keys, HANDSHAKE_MS)
        router.set(zmq.RCVHWM, 2 * WINDOW)

        def bind(address: str, port: int) -> int:
            host = f"[{address}]" if ":" in address else address or "*"
            try:
                router.bind(f"tcp://{host}:{port or '*'}")
            except zmq.ZMQError as error:
                raise OSError(error.errno, str(error)) from None
            return int(router.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

        try:
            try:
                self.port = bind_to(listen, 0, bind, lambda: None)
            except OSError as error:
                self._error = error
            self._ready.set()
            if self._error is None:
                self._serve(router, authenticator)
        except Exception:
            log.exception("mirror_failed")
        finally:
            router.close(linger=0)
            authenticator.close()
            context.term()

    def _serve(self, router: zmq.Socket[bytes], authenticator: CurveAuthenticator) -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(authenticator.socket, zmq.POLLIN)
        owner = b""
        """Whose copy is on its way."""
        while not self._is_over:
            ready = dict(poller.poll(POLL_MS))
            if authenticator.socket in ready:
                authenticator.answer()
            if router not in ready:
                continue
            route, *frames = router.recv_multipart()
            try:
                frame = self._decoder.decode(frames[0] if len(frames) == 1 else b"")
            except DECODE_ERRORS:
                continue
            if isinstance(frame, Begin):
                record = parse_record(frame.page)
                owner = route if record is not None else b""
                why = self._store.begin(frame.attempt, frame.global_rank, record) if record else "it has no record"
            elif route != owner:
                why = "another copy has begun"
            else:
                why = self._store.put(frame.data) if isinstance(frame, Data) else self._store.end()
            with suppress(zmq.ZMQError):  # it is gone
                router.send_multipart([route, msgspec.msgpack.encode(Reply(why[:200]))], zmq.NOBLOCK)


class Outgoing(Protocol):
    """A copy that is to be sent."""

    attempt: int
    global_rank: int
    record: Record
    """As it is to be kept there."""

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, as far as they are still those of the record. Raises OSError."""


Copy = TypeVar("Copy", bound=Outgoing)


class MirrorSender(Generic[Copy]):
    """Sends what is due until it is closed."""

    def __init__(
        self,
        place: tuple[str, int],
        keys: KeyPair,
        server_key: str,
        *,
        due: Callable[[], Copy | None],
        done: Callable[[Copy, str], object],
        bytes_per_s: float,
    ) -> None:
        """place: address and port. due: called on its thread; None: nothing just now.

        done: gets why a copy was not taken; empty: it was.
        """
        self._place, self._keys, self._server_key = place, keys, server_key
        self._due, self._done, self._bytes_per_s = due, done, bytes_per_s
        self._end = threading.Event()
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(known_type(Reply))
        self._thread = threading.Thread(target=self._run, name="guardrun-mirror-out", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """It has given up: there is no way through."""
        return not self._thread.is_alive()

    def close(self, wait_s: float) -> None:
        """Send no more. wait_s: for its thread, at most."""
        self._end.set()
        if wait_s > 0:
            self._thread.join(wait_s)

    def _run(self) -> None:
        be_nice()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        host, port = self._place
        dealer = make_dealer(context, self._keys, self._server_key)
        dealer.set(zmq.SNDHWM, 2 * WINDOW)
        try:
            dealer.connect(f"tcp://{f'[{host}]' if ':' in host else host}:{port}")
            while not self._end.is_set():
                copy = self._due()
                if copy is None:
                    self._end.wait(POLL_MS / 1000)
                    continue
                why = self._send(dealer, copy)
                if why is None:
                    return
                self._done(copy, why)
        except (OSError, zmq.ZMQError) as error:
            log.info("mirror_broken", error=str(error))
        except Exception:
            log.exception("mirror_failed")
        finally:
            dealer.close(linger=0)
            context.term()

    def _send(self, dealer: zmq.Socket[bytes], copy: Outgoing) -> str | None:
        """Why it was not taken; None: nobody answers. Raises OSError, zmq.ZMQError."""
        if why := self._exchange(dealer, Begin(copy.attempt, copy.global_rank, pack_record(copy.record))):
            return why
        if why is None:
            return None
        began_s, sent, unanswered = time.monotonic(), 0, 0
        for chunk in copy.chunks():
            dealer.send(msgspec.msgpack.encode(Data(chunk)))
            sent, unanswered = sent + len(chunk), unanswered + 1
            while unanswered >= WINDOW:
                if (why := self._hear(dealer)) != "":
                    return why
                unanswered -= 1
            ahead_s = sent / self._bytes_per_s - (time.monotonic() - began_s)
            if self._end.is_set() or (ahead_s > 0 and self._end.wait(ahead_s)):
                return None
        for _ in range(unanswered):
            if (why := self._hear(dealer)) != "":
                return why
        return self._exchange(dealer, End())

    def _exchange(self, dealer: zmq.Socket[bytes], frame: Begin | End) -> str | None:
        dealer.send(msgspec.msgpack.encode(frame))
        return self._hear(dealer)

    def _hear(self, dealer: zmq.Socket[bytes]) -> str | None:
        until_s = time.monotonic() + ANSWER_S
        while time.monotonic() < until_s and not self._end.is_set():
            if dealer.poll(POLL_MS):
                with suppress(*DECODE_ERRORS):
                    return self._decoder.decode(dealer.recv()).why
        return None
