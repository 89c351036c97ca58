"""How long a rank stands while its state is copied into memory that outlives it, beside torch.save into tmpfs."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.item import Bench, CannotMeasure, Figure
from benchmarks.job import SCRIPTS

MEGABYTES, QUICK_MEGABYTES = 512, 16
TURNS = 9
LIMIT_S = 300.0


class SnapshotItem:
    """One process with the hooks' own code, which does what a rank's call does when a copy is due."""

    name = "snapshots"
    title = "Copies of the state in memory"

    def measure(self, bench: Bench) -> list[Figure]:
        """Both in turn. Raises CannotMeasure where the process fails."""
        size_mb, turns = bench.choose(QUICK_MEGABYTES, MEGABYTES), bench.choose(2, TURNS)
        command = [sys.executable, str(SCRIPTS / "snapshot_copies.py"), str(size_mb), str(turns)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if ended.returncode != 0:
            raise CannotMeasure(f"snapshot_copies.py ended with {ended.returncode}: {ended.stderr[-500:]}")
        took = json.loads(ended.stdout)
        note = f"{size_mb} MB of tensors; torchrun: torch.save of the same to /dev/shm"
        return [
            Figure("rank stands for a copy of its state", "s", tuple(took["copy"]), tuple(took["saved"]), note=note),
            Figure("hooks.snapshot() when no copy is due", "µs", tuple(took["call"])),
        ]
