"""NCCL's own account of its communicators, by its RAS socket: it answers while the host side of a job is stuck.

The protocol is lines of text on TCP (NCCL's src/ras/client.cc and client_support.cc): a handshake, from 2.28 on
a format, then STATUS, which is answered until the server closes the connection. Several jobs of a node share
the port: what is told of processes that aren't ours is left out, where it can be told (in JSON).
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Set

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.engine.model.looks import Reading

PORT = 28028
VARIABLE = "NCCL_RAS_ADDR"
PROTOCOL = 2
"""The server says its own, and ignores ours (client_support.cc)."""
LIMIT_S = 4.0
"""A look waits for it no longer."""
NEEDS_S = 20.0
"""So long NCCL may take: for the connections, then the communicators, 5 s until it looks whose connection is delayed,
and as long again for those behind others (ras_internal.h, RAS_COLLECTIVE_LEG_TIMEOUT and its EXTRA). Who asks for less
(its command TIMEOUT) hears nothing of ranks that do not answer, and only these make it take so long."""
FACTOR_VARIABLE = "NCCL_RAS_TIMEOUT_FACTOR"
MAX_FACTOR = 30
STALE_S = 60.0
"""An answer that nobody came for is as good as none: ranks have gone on since."""
MAX_BYTES = 4 * 1024 * 1024
MAX_LINE_BYTES = 4096
MAX_READINGS = 8


class _Rank(msgspec.Struct):
    rank: int
    pid: int = -1
    collective_counts: dict[str, int] = {}


class _Missing(msgspec.Struct):
    rank: int
    pid: int = -1


class _Communicator(msgspec.Struct):
    hash: str = ""
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_Missing] = []


class _Status(msgspec.Struct):
    communicators: list[_Communicator] = []


def read_address(text: str) -> tuple[str, int]:
    """Where the socket is, of NCCL_RAS_ADDR; empty: where NCCL has it by default. Raises ValueError."""
    if not text:
        return "localhost", PORT
    parts = re.fullmatch(r"\[?([^\[\]]+?)\]?:(\d{1,5})", text.strip())
    if parts is None:
        raise ValueError(f"{VARIABLE}={text} is no host:port")
    return parts[1], int(parts[2])


def ask_ras(address: tuple[str, int], limit_s: float = LIMIT_S) -> str:
    """What NCCL says of its communicators: JSON, before 2.28 text for a person.

    Raises OSError (TimeoutError after limit_s), ValueError where something else answers.
    """
    deadline = time.monotonic() + limit_s
    with socket.create_connection(address, timeout=max(0.01, limit_s)) as connection:
        talk = _Talk(connection, deadline)
        if not talk.ask(f"CLIENT PROTOCOL {PROTOCOL}").upper().startswith("SERVER PROTOCOL "):
            raise ValueError("what answers is not NCCL")
        talk.ask("SET FORMAT json")  # An error where it knows only text.
        talk.send("STATUS")
        return talk.read_to_end()


class _Talk:
    """Lines to and fro, within a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._heard = b""

    def ask(self, line: str) -> str:
        self.send(line)
        while b"\n" not in self._heard:
            if not self._hear() or len(self._heard) > MAX_LINE_BYTES:
                raise ValueError("what answers is not NCCL")
        answer, _, self._heard = self._heard.partition(b"\n")
        return answer.decode("utf-8", "replace").strip()

    def send(self, line: str) -> None:
        self._limit()
        self._connection.sendall(line.encode() + b"\n")

    def read_to_end(self) -> str:
        while self._hear():
            if len(self._heard) > MAX_BYTES:
                raise ValueError(f"its answer is longer than {MAX_BYTES >> 20} MB")
        return self._heard.decode("utf-8", "replace")

    def _hear(self) -> bool:
        self._limit()
        part = self._connection.recv(1 << 16)
        self._heard += part
        return bool(part)

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._connection.settimeout(left)


def parse_status(text: str, pids: Set[int]) -> list[Reading]:
    """Communicators of these processes whose ranks are apart, or from which some are missing; bounded.

    Empty where all agree, and where the answer is text: that is for a person to read. Raises ValueError where it is
    JSON, but not as NCCL writes it.
    """
    if not text.lstrip().startswith("{"):
        return []
    status = msgspec.json.decode(text, type=known_type(_Status))
    readings: list[Reading] = []
    for known in status.communicators:
        if not pids & ({rank.pid for rank in known.ranks} | {missing.pid for missing in known.missing_ranks}):
            continue
        apart = _apart(known)
        if apart:
            note = "; ".join(apart)
            name = f"NCCL communicator {known.hash} of {known.size}"
            readings.append(
                Reading(name=name, value=float(len(known.ranks)), unit="ranks answered", is_odd=True, note=note)
            )
    return readings[:MAX_READINGS]


def _apart(known: _Communicator) -> list[str]:
    """In which operations its ranks are not equally far, in words."""
    said = []
    for op in sorted({op for rank in known.ranks for op in rank.collective_counts}):
        at: dict[int, list[int]] = defaultdict(list)
        for rank in known.ranks:
            at[rank.collective_counts.get(op, 0)].append(rank.rank)
        if len(at) > 1:
            order = sorted(at.items(), key=lambda pair: -len(pair[1]))
            said.append(f"{op}: " + ", ".join(f"{_ranks(ranks)} at {count}" for count, ranks in order[:4]))
    if known.missing_ranks:
        said.append(f"no answer from {_ranks([missing.rank for missing in known.missing_ranks])}")
    return said


def _ranks(ranks: list[int]) -> str:
    some = ", ".join(map(str, sorted(ranks)[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {some}"


class Inquiry:
    """One question to NCCL. It takes as long as it takes; who wants the answer comes back for it."""

    def __init__(self, address: tuple[str, int], limit_s: float) -> None:
        self._address, self._limit_s = address, limit_s
        self._answer: str | Exception = ""
        self._began_s = time.monotonic()
        self._done_s = 0.0
        self._done = threading.Event()
        threading.Thread(target=self._ask, name="guardrun-ras", daemon=True).start()

    def wait(self, wait_s: float) -> bool:
        """Whether it is answered, or has failed, within wait_s."""
        return self._done.wait(max(0.0, wait_s))

    @property
    def spent_s(self) -> float:
        """Since it was asked."""
        return time.monotonic() - self._began_s

    @property
    def is_stale(self) -> bool:
        """Its answer came so long ago that it says nothing of now."""
        return self._done.is_set() and time.monotonic() - self._done_s > STALE_S

    def result(self) -> str:
        """The answer. Raises what ask_ras raises."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def _ask(self) -> None:
        try:
            self._answer = ask_ras(self._address, self._limit_s)
        except (OSError, ValueError) as error:
            self._answer = error
        self._done_s = time.monotonic()
        self._done.set()


_inquiries: dict[tuple[str, int], Inquiry] = {}
"""Those whose answer nobody has heard yet."""
_lock = threading.Lock()


def read_ras(
    pids: Set[int], environ: Mapping[str, str] = os.environ, limit_s: float = LIMIT_S
) -> tuple[str, list[Reading]]:
    """NCCL's answer, and what is odd in it; where it doesn't answer, that is the one reading. Never raises.

    Waits at most limit_s. Where NCCL needs longer, the question stands, and whoever asks next is given its answer.
    """
    name = "NCCL's RAS socket"
    try:
        address = read_address(environ.get(VARIABLE, ""))
        needs_s = _needs_s(environ)
        with _lock:
            if (asked := _inquiries.get(address)) is None or asked.is_stale:
                asked = _inquiries[address] = Inquiry(address, needs_s)
        if not asked.wait(limit_s):
            note = f"no answer within {asked.spent_s:.0f} s; where ranks are stuck, NCCL may take {needs_s:.0f} s"
            return "", [Reading(name=name, value=0.0, note=note)]
        with _lock:
            if _inquiries.get(address) is asked:
                del _inquiries[address]
        text = asked.result()
        return text, parse_status(text, pids)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return "", [Reading(name=name, value=0.0, note=f"no answer: {error}")]


def _needs_s(environ: Mapping[str, str]) -> float:
    """NEEDS_S, or what the user has made of it; and a little for the way."""
    text = environ.get(FACTOR_VARIABLE, "")
    return NEEDS_S * (min(MAX_FACTOR, max(1, int(text))) if text.isdigit() else 1) + 1.0
