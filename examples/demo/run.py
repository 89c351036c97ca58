"""Run train.py under guardrun, let rank 1 hang once, and tell from the run directory what happened.

    python run.py            # `make demo` does this

Ends with 0 only where the hang was found, explained and mended, and training went on to its end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RUNS = Path("guardrun-runs")
OUT = Path("out")
# Said once a process, between the lines that matter: torchrun's banner about the threads it allows each rank, and
# torch's about NumPy, which nothing here uses. What the caller has set stays.
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore:Failed to initialize NumPy:UserWarning"}


class Unexpected(Exception):
    """The run did not show what the demo is there to show."""


def count_ranks() -> int:
    """One rank a GPU, 2 to 8; 2 without GPUs."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 2
    return max(2, min(8, listing.count("GPU ")))


def run_training(ranks: int) -> tuple[int, float]:
    """Run guardrun with its output on this terminal; returns its exit status and how long it took, in seconds."""
    program = Path(sys.executable).with_name("guardrun")
    command = [str(program), f"--nproc_per_node={ranks}", "train.py"]
    print(f"$ cd {os.path.relpath(HERE, os.environ.get('PWD', '.'))}\n$ guardrun {' '.join(command[1:])}\n", flush=True)
    began = time.monotonic()
    status = subprocess.run(command, cwd=HERE, env=training_environment(), check=False).returncode
    return status, time.monotonic() - began


def training_environment() -> dict[str, str]:
    """This process's, without what would lead the run elsewhere or make it continue another; and quiet."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN_")}
    return QUIET | inherited


def read_incident(run: Path) -> tuple[Path, dict[str, Any]]:
    """The one incident of the run: its folder and incident.json. Raises Unexpected where there isn't exactly one."""
    folders = sorted((run / "incidents").glob("*/"))
    if len(folders) != 1:
        raise Unexpected(f"{len(folders)} incidents in {run}, not 1: {', '.join(folder.name for folder in folders)}")
    return folders[0], json.loads((folders[0] / "incident.json").read_text())


@dataclass(frozen=True)
class Losses:
    """The script's own figures around the stop, as (step, loss)."""

    last_before: tuple[int, float]
    first_after: tuple[int, float]
    final: tuple[int, float]


def read_losses(metrics: Path) -> Losses:
    """Find where the steps jump back: there the second attempt begins. Raises Unexpected where they never do."""
    points = [(entry["step"], entry["loss"]) for entry in map(json.loads, metrics.read_text().splitlines())]
    for before, after in pairwise(points):
        if after[0] <= before[0]:
            return Losses(last_before=before, first_after=after, final=points[-1])
    raise Unexpected(f"{metrics} shows no second attempt")


def seconds_between(first: str, second: str) -> float:
    """Seconds from one of incident.json's times to another."""
    parse = datetime.fromisoformat
    return (parse(second.replace("Z", "+00:00")) - parse(first.replace("Z", "+00:00"))).total_seconds()


def check(incident: dict[str, Any], folder: Path, losses: Losses, summary: dict[str, Any]) -> None:
    """Raise Unexpected, naming it, where anything is not as it must be."""
    culprits = [culprit["rank"] for culprit in incident["culprits"]]
    facts = {
        "the incident is a hang of a blocked rank": (incident["kind"], incident["cause"]) == ("hang", "rank_blocked"),
        "rank 1, and no other, is to blame": culprits == [1],
        "the sentence names the function": "fetch_vocabulary_update" in incident["summary"],
        "guardrun restarted the attempt": incident["action"] == "restart",
        "it resumed from a checkpoint": incident["resumed_from"] is not None,
        "training got past where it stopped": incident["recovered"] is not None,
        "stacks were kept": any((folder / "stacks").iterdir()),
        "there is a report": (folder / "report.html").is_file(),
        "the loss went on down": losses.final[1] < losses.last_before[1],
        "the summary counts two attempts": len(summary["attempts"]) == 2,
    }
    require(facts)


def require(facts: Mapping[str, bool]) -> None:
    """Raise Unexpected where any does not hold, naming it."""
    wrong = [fact for fact, holds in facts.items() if not holds]
    if wrong:
        raise Unexpected("not so: " + "; ".join(wrong))


def lost_words(summary: dict[str, Any]) -> str:
    """What time was lost to, by summary.json."""
    return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in summary["lost_s"].items() if seconds >= 0.5)


def tell(run: Path, status: int, took_s: float) -> None:
    """Print what happened, and check it.

    Raises Unexpected, or OSError and KeyError where files or fields are missing.
    """
    if status != 0:
        raise Unexpected(f"guardrun ended with {status}")
    folder, incident = read_incident(run)
    summary = json.loads((run / "summary.json").read_text())
    losses = read_losses(HERE / OUT / "metrics.jsonl")
    check(incident, folder, losses, summary)
    resumed = incident["resumed_from"]
    found_s = seconds_between(incident["onset"], incident["detected"])
    mended_s = seconds_between(incident["detected"], incident["recovered"])
    here = os.path.relpath(folder)
    print(f"""
What happened
  verdict   {incident["summary"]}
  found     {found_s:.0f} s after it stopped; past that step again {mended_s:.0f} s later
  resumed   {resumed["path"]} (step {resumed["step"]})
  loss      {losses.last_before[1]:.3f} at step {losses.last_before[0]} before the hang
            {losses.first_after[1]:.3f} at step {losses.first_after[0]} after the restart
            {losses.final[1]:.3f} at step {losses.final[0]}, the end
  goodput   {summary["goodput"]:.0%} of {took_s:.0f} s; lost: {lost_words(summary)}
  stacks    {here}/stacks/
  report    {here}/report.html""")


def main() -> int:
    for left in (OUT, RUNS):
        shutil.rmtree(HERE / left, ignore_errors=True)
    status, took_s = run_training(count_ranks())
    try:
        tell(HERE / RUNS / "latest", status, took_s)
    except (Unexpected, OSError, KeyError) as error:
        print(f"\nThe demo failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
