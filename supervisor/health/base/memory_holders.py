"""Processes that hold device memory, as one value of a sample: `4242=512000000 4243=?`. Pure."""

from __future__ import annotations

MAX_HOLDERS = 256
"""Of one device; with MPS there are tens."""


def write_holders(held: dict[int, int | None]) -> str:
    """Bytes by pid; None where the driver does not say how many. Beyond MAX_HOLDERS the smallest are left out."""
    by_size = sorted(held.items(), key=lambda pair: -(pair[1] or 0))[:MAX_HOLDERS]
    return " ".join(f"{pid}={'?' if used is None else used}" for pid, used in sorted(by_size))


def parse_holders(text: str) -> dict[int, int | None]:
    """Bytes by pid, of what write_holders wrote. Raises ValueError at anything else."""
    held: dict[int, int | None] = {}
    for pair in text.split():
        pid, sign, used = pair.partition("=")
        if not sign:
            raise ValueError(f"not a pid with its bytes: {pair!r}")
        held[int(pid)] = None if used == "?" else int(used)
    return held
