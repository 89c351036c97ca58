"""How long ranks take from the order to stop an attempt to the next one's first line after its imports, warm and cold.

`python -m benchmarks.warm [--ranks 2 8] [--restarts 20]`: one run for each, whose ranks import torch, and transformers
and lightning where they are installed; `guardctl restart` ends each attempt. Prints medians, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

SCRIPT = """
import time
FIRST = time.time()
import torch
try:
    from transformers import AutoModelForCausalLM, Trainer
    import lightning
except ImportError:
    pass
IMPORTED = time.time()
import os
from guardrun import hooks
name = f"told-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
with open(name + ".part", "w") as file:
    file.write(f"{FIRST} {IMPORTED}")
os.rename(name + ".part", name)
while True:
    hooks.step()
    time.sleep(0.05)
"""
BIN = Path(sys.executable).parent
PATIENCE_S = 180.0
ENDS = ("warm_ready", "warm_given_up")


def wait_for(what: str, is_there: Any) -> None:
    """Raises TimeoutError."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > deadline_s:
            raise TimeoutError(what)
        time.sleep(0.02)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """guardrun.log, whose last line may be half written."""
    path = folder / "runs" / "latest" / "guardrun.log"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def measure(ranks: int, restarts: int, warm: str) -> tuple[list[float], list[float]]:
    """Per restart: from the order to the last rank's line after its imports; and the longest imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        environment = {**os.environ, "GUARDRUN_LAUNCHER_WARM": warm, "GUARDRUN_RESTART_MAX_RESTARTS": "1000"}
        environment |= {"GUARDRUN_RESTART_MAX_NO_PROGRESS": "1000", "OMP_NUM_THREADS": "1", "GUARDRUN_DIR": "runs"}
        command = [str(BIN / "guardrun"), f"--nproc-per-node={ranks}", "train.py"]
        with (folder / "out").open("wb") as out:
            run = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
        try:
            return measure_run(folder, environment, ranks, restarts, warm)
        finally:
            run.terminate()
            run.wait(60)


def measure_run(
    folder: Path, environment: dict[str, str], ranks: int, restarts: int, warm: str
) -> tuple[list[float], list[float]]:
    """Of a run that has been started."""
    took, imports = [], []
    for attempt in range(restarts + 1):
        told = [folder / f"told-{attempt}-{rank}" for rank in range(ranks)]
        wait_for(f"attempt {attempt}", lambda told=told: all(path.exists() for path in told))
        lines = [path.read_text().split() for path in told]
        log = read_log(folder)
        if attempt > 0:
            [ordered] = [line for line in log if line["event"] == "stop_began" and line.get("attempt") == attempt - 1]
            took.append(
                max(float(line[1]) for line in lines) - datetime.fromisoformat(ordered["timestamp"]).timestamp()
            )
            imports.append(max(float(line[1]) - float(line[0]) for line in lines))
        if attempt == 0 and warm == "auto":
            wait_for("a warm process", lambda: any(line["event"] in ENDS for line in read_log(folder)))
        if attempt < restarts:
            time.sleep(1.0)  # the supervisor has heard of the attempt
            command = [str(BIN / "guardctl"), "restart"]
            subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    given_up = [line["why"] for line in read_log(folder) if line["event"] == "warm_given_up"]
    if given_up:
        print(f"given up: {given_up[0]}")
    return took, imports


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--cold-restarts", type=int, default=3)
    arguments = parser.parse_args()
    for ranks in arguments.ranks:
        for warm, restarts in (("auto", arguments.restarts), ("false", arguments.cold_restarts)):
            took, imports = measure(ranks, restarts, warm)
            spread = f"{min(took):.2f} to {max(took):.2f}, {len(took)} restarts"
            print(
                f"{ranks} ranks, warm = {warm}: {statistics.median(took):.2f} s from the stop's order to the last "
                f"imports' end ({spread}), imports {statistics.median(imports):.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
