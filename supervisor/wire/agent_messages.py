"""What the node agent and those who ask it say to each other: frames over one Unix stream socket.

A frame is its length in four bytes, big-endian, then one msgpack-encoded struct. The agent knows who is at the other
end by SO_PEERCRED, never by what is said. Facts are for everybody; acts are for root, and for the owner of the job
that they concern. Whoever connects says Hello first; Welcome, or Refused with the reason, is the answer. Both name the
newest protocol that they speak and the oldest that they still do: the lower of the two newest holds.

`…_s` are CLOCK_MONOTONIC seconds of the node, unless a name says `wall`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.framing import frame
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Readout

PROTOCOL = 1
OLDEST_PROTOCOL = 1

SOCKET_VARIABLE = "GUARDRUN_AGENT_SOCKET"
SOCKET = Path("/run/guardrun/agent.sock")

MAX_TO_AGENT_BYTES = 64 * 1024
MAX_FROM_AGENT_BYTES = 8 * 1024 * 1024

_PEER = struct.Struct("3i")
"""struct ucred of socket(7): pid, uid, gid."""


def socket_path(environ: Mapping[str, str]) -> Path:
    """Where the node's agent listens, if there is one."""
    return Path(environ.get(SOCKET_VARIABLE) or SOCKET)


def root_socket_path(path: Path) -> Path:
    """Root's own door beside the socket that everybody may connect to: nobody else can crowd it."""
    return path.with_suffix(".root")


class _Wire(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


# To the agent ---------------------------------------------------------------------------------------------------


class Hello(_Wire, frozen=True, kw_only=True, tag="hello"):
    """First on every connection."""

    protocol: int
    oldest: int
    version: str
    """guardrun's, for the agent's log."""
    program: str = ""
    """`guardrund`, `guardctl`, …: likewise."""


class RegisterJob(_Wire, frozen=True, kw_only=True, tag="register_job"):
    """A job runs here. Its owner is who owns the launcher's process; nobody but they, and root, may say so."""

    run_id: str
    run_dir: str
    launcher_pid: int
    launcher_start: int
    """starttime of /proc/PID/stat: with the pid, it names one process for good."""
    token: str
    """Marks the run's processes in their environment (GUARDRUN_TOKEN)."""


class EndJob(_Wire, frozen=True, kw_only=True, tag="end_job"):
    """The run is over: what of it is still there is nobody's."""

    run_id: str


class Subscribe(_Wire, frozen=True, kw_only=True, tag="subscribe"):
    """From now on, be told: all that is known at once, then what changes, at most once a second."""

    facts: bool = True
    findings: bool = True


class Ask(_Wire, frozen=True, kw_only=True, tag="ask"):
    """A question to the agent: a verb with its arguments, and the data of its answer.

    `status`   {} → {agent, sensors, clients, history, …}
    `facts`    {} → {readouts, findings}: the latest of every sensor
    `jobs`     {} → {jobs}: who runs here, and what dead ones left behind
    `history`  {since_wall_s, until_wall_s, subject, name, what, limit, has_samples} → {samples, entries, rows, trouble}
    `isolate`  {cause, reason, evidence, evidence_wall_s, until_wall_s, run_id, incident, is_automatic} → {quarantine,
               why}: what holds now, and why it was not done; an act
    `release`  {reason, run_id, is_overriding} → likewise
    `note`     {subject, name, text, data} → {}: a line for the history, by root
    """

    id: int
    """The answer bears it."""
    verb: str
    arguments: dict[str, Any] = {}


# From the agent -------------------------------------------------------------------------------------------------


class Welcome(_Wire, frozen=True, kw_only=True, tag="welcome"):
    """The answer to Hello, where both speak a common protocol."""

    protocol: int
    """Spoken from now on."""
    version: str
    node: str
    pid: int
    quarantine: dict[str, Any] = {}
    """`holding`: the isolations that hold; `troubles`: what could not be read. Empty: neither."""


class Facts(_Wire, frozen=True, kw_only=True, tag="facts"):
    """The readouts since the last Facts: of each sensor the latest samples, and all that has happened meanwhile."""

    at_s: float
    readouts: list[Readout]
    is_whole: bool = False
    """All that is known, instead of what is new."""


class Findings(_Wire, frozen=True, kw_only=True, tag="findings"):
    """What began, changed or is over since the last Findings."""

    at_s: float
    findings: list[Finding]
    is_whole: bool = False
    """All that hold now: one that is not in it is over."""


class QuarantineIs(_Wire, frozen=True, kw_only=True, tag="quarantine_is"):
    """The node's quarantine has changed; also for who subscribed to findings."""

    quarantine: dict[str, Any] = {}
    """As in Welcome."""


class Answer(_Wire, frozen=True, kw_only=True, tag="answer"):
    """The answer to an Ask, by its id; what data holds is said there, verb by verb."""

    id: int
    data: dict[str, Any] = {}


class Refused(_Wire, frozen=True, kw_only=True, tag="refused"):
    """Why not, in one sentence for a person."""

    id: int = -1
    """The Ask's; -1: of what was said before, Hello first of all."""
    why: str = ""


ToAgent = Hello | RegisterJob | EndJob | Subscribe | Ask
FromAgent = Welcome | Facts | Findings | QuarantineIs | Answer | Refused

TO_AGENT: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(known_type(ToAgent))
FROM_AGENT: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(known_type(FromAgent))


class Peer(NamedTuple):
    """Who is at the other end of a Unix socket, as the kernel says."""

    pid: int
    uid: int
    gid: int


def read_peer(connection: socket.socket) -> Peer:
    """Raises OSError where the socket has no peer."""
    return Peer(*_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)))


def agree(protocol: int, oldest: int) -> int:
    """The protocol to speak with a peer that offers these. Raises ValueError with the words to refuse it with."""
    chosen = min(protocol, PROTOCOL)
    if chosen >= max(oldest, OLDEST_PROTOCOL):
        return chosen
    if protocol < OLDEST_PROTOCOL:
        raise ValueError(f"the other side speaks protocol {protocol}; {OLDEST_PROTOCOL} is the oldest spoken here")
    raise ValueError(f"the other side wants protocol {oldest} or newer; {PROTOCOL} is the newest spoken here")


def pack(message: ToAgent | FromAgent) -> bytes:
    """One frame."""
    return frame(encode_msgpack(message))
