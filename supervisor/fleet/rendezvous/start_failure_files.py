"""Files by which a guardrun that starts nothing tells those that wait for it: refused_start.py, join_rejections.py.

The user's alone, beside the join file. Times are of two hosts' wall clocks. What was said after the reader's guardrun
was started holds at once. What was said within a minute before may be of the start before this one, which the user has
mended: it holds if it still stands when who said it, started together with the reader, would have taken it back.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.fleet.protocol.lease import boot_s
from guardrun.supervisor.fleet.rendezvous.join_file import JoinError, read_own, replace_own

SCHEMA = 1
STALE_S = 60.0
"""Said so long before a node began: of an earlier start. Clocks may be apart by as much."""
RESTART_S = 15.0
"""How much later than a node, ready to join, another may have read its command line that was started with it."""
MAX_TEXT_CHARS = 4000


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Why a guardrun does not take part."""

    schema: int = SCHEMA
    key: str
    """The job's, as in FleetFile."""
    names: list[str] = []
    """The head's, where each host may have one for this key."""
    text: str
    """For a person: what guardrun said there."""
    exit_code: int
    said_wall_s: float


SaidT = TypeVar("SaidT", bound=Said)


def write_said(path: Path, said: Said) -> None:
    """Say it, in place of what was said before. Raises OSError, JoinError where the place belongs to others."""
    replace_own(path, encode_json(msgspec.structs.replace(said, text=said.text[:MAX_TEXT_CHARS])))


def take_back_said(path: Path) -> None:
    """What was said of an earlier start is over. What others have put there stays."""
    with suppress(OSError, JoinError):
        read_own(path)
        path.unlink(missing_ok=True)


def read_said(path: Path, kind: type[SaidT]) -> SaidT | None:
    """None where there is none, or none that may be believed."""
    try:
        said = msgspec.json.decode(read_own(path), type=kind)
    except (JoinError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return said if said.schema == SCHEMA and 0 < said.exit_code < 256 else None


class Began(NamedTuple):
    """A node's start, by its wall clock."""

    started_s: float
    """Of its guardrun's process."""
    ready_s: float
    """Torch was imported, the command line read: it looked for a head."""


def began(launcher_start: int, ready_wall_s: float) -> Began:
    """launcher_start: as the kernel has it, clock ticks since this host booted; 0: not known."""
    if not launcher_start:
        return Began(ready_wall_s, ready_wall_s)
    age_s = boot_s() - launcher_start / os.sysconf("SC_CLK_TCK")
    return Began(min(time.time() - age_s, ready_wall_s), ready_wall_s)


def holds(said_s: float, node: Began, now_wall_s: float, led_wall_s: float = 0.0) -> bool:
    """Whether a node goes by what was said then. led_wall_s: when a head wrote the join file; 0: none has."""
    if said_s <= led_wall_s or not node.started_s - STALE_S <= said_s <= now_wall_s + STALE_S:
        return False
    return said_s >= node.started_s or now_wall_s >= node.ready_s + RESTART_S
