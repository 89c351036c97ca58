"""How a node's warm process is (docs/warm-ranks.md): the launcher leaves it in the socket folder, for whoever asks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type

WARM_FILE = "warm.json"
MAX_BYTES = 64 * 1024


class WarmState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one node."""

    state: str
    """importing, ready, given up."""
    why: str = ""
    """It was given up."""
    memory_mb: int = 0
    """Proportional set size once it was ready, in MiB."""
    modules: int = 0
    """That it has imported."""


def read_warm_state(sockets: Path) -> WarmState | None:
    """None: there is none, or it can't be read."""
    try:
        with (sockets / WARM_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=known_type(WarmState))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
