"""Ranks of scripts/train.py as processes of their own, with nothing of guardrun's around them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.support.guardrun_run import MARK, clean_environment
from tests.support.ports import free_ports
from tests.support.processes import kill_marked
from tests.support.waiting import LEAST_S

SCRIPT = Path(__file__).parent / "scripts" / "train.py"

LIGHT = {"EMU_SPIN": "0"}
"""Waits that leave the cores to others. torch's own patience is as by default: it ends no rank that is held up."""
QUICK = {
    **LIGHT,
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
    "TORCH_NCCL_COORD_CHECK_MILSEC": "200",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "6",
}
"""torch's own patience, for tests of what its watchdog says. A rank's monitor has to see what another one has written
into the store before that one ends, and its store with it."""


class Ranks:
    """One job; `close` ends what is left of it."""

    def __init__(self, folder: Path, *arguments: str, ranks: int = 2, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        port = free_ports(1)[0]
        self.processes = []
        for rank in range(ranks):
            environment = clean_environment(self._mark, {**QUICK, **(env or {})})
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), MARK: self._mark}
            with open(folder / f"out{rank}.txt", "wb") as out:
                process = subprocess.Popen(
                    [sys.executable, str(SCRIPT), "--out", str(folder), *arguments],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            self.processes.append(process)

    def output(self, rank: int) -> str:
        """What a rank has written to stdout and stderr so far."""
        return (self.folder / f"out{rank}.txt").read_text(errors="replace")

    def wait(self, rank: int, timeout_s: float = 60.0) -> int:
        """Wait for a rank's end; its exit code, negative for a signal's. Raises AssertionError with its output."""
        try:
            return self.processes[rank].wait(max(timeout_s, LEAST_S))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} has not ended:\n{self.output(rank)}") from None

    def told(self, rank: int) -> dict[str, Any]:
        """What a rank wrote when it had trained to its end. Raises AssertionError where it did not."""
        code = self.wait(rank)
        assert code == 0, f"rank {rank} ended with {code}:\n{self.output(rank)}"
        told: dict[str, Any] = json.loads((self.folder / f"rank{rank}.json").read_text())
        return told

    def close(self) -> None:
        kill_marked(MARK, self._mark)
        for process in self.processes:
            process.wait(60)
