"""How far a run's journal got: all the launcher needs of it to continue the run."""

from __future__ import annotations

import json
from pathlib import Path

TAIL_BYTES = 256 * 1024
JOURNAL = "events.jsonl"


def parse_last_second(tail: bytes) -> float | None:
    """The engine's second (`t`) of the last whole line that has one. The last line may be torn, the first cut."""
    for line in reversed(tail.split(b"\n")):
        try:
            record = json.loads(line)
            return float(record["t"])
        except (ValueError, TypeError, KeyError):
            continue
    return None


def read_last_second(run_dir: Path) -> float:
    """The engine's second of the journal's last line, in the newest file that has one; 0 where there is none."""
    for name in (JOURNAL, f"{JOURNAL}.1"):
        try:
            with (run_dir / name).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                second = parse_last_second(file.read())
        except OSError:
            continue
        if second is not None:
            return second
    return 0.0
