"""Train train.py as a Slurm job of three nodes and a spare; one node goes dark, and the spare takes its place.

    python on_slurm.py       # `make demo-slurm` does this

Slurm is a real one, of four nodes, started on this machine for the demo and ended after it: that takes root, and the
programs of Debian's packages slurm-wlm and munge. On a cluster, from this folder:

    guardctl sbatch --nodes=3 --spares=1 --submit -- train.py --update-at=0

Ends with 0 only where the lost node was found, named and drained, and training went on to its end without it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# In place of this folder, whose modules must be found as `examples.demo.…` only.
sys.path[0] = str(HERE.parents[1]) if sys.path[0] == str(HERE) else sys.path[0]

from examples.demo.run import (  # noqa: E402
    OUT,
    QUIET,
    RUNS,
    Unexpected,
    lost_words,
    read_incident,
    read_losses,
    require,
    seconds_between,
)
from tests.support.real import missing  # noqa: E402
from tests.support.slurmlab import SlurmLab  # noqa: E402

NODES, SPARES = 3, 1
PROGRAMS = Path(sys.executable).parent
DARK = "n2"
END_S = 300.0
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}


@dataclass(frozen=True)
class Story:
    """What is played."""

    lab: SlurmLab
    folder: Path
    """Has train.py and guardrun.toml; the job is submitted there."""
    script_args: Sequence[str] = ()
    dark_at: int = 50
    """Step after which the node goes dark."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of guardrun's, for the job."""
    say: Callable[[str], None] = print
    guardctl: Sequence[str] = (str(PROGRAMS / "guardctl"),)
    """Its script starts the guardrun beside it."""


@dataclass(frozen=True)
class Ending:
    """How it ended."""

    job: str
    run: Path
    folder: Path
    """Of the one incident."""
    incident: dict[str, Any]
    summary: dict[str, Any]
    drained: dict[str, str]
    """The dark node, as Slurm has it."""
    output: str


def play(story: Story) -> Ending:
    """Submit the job, let a node go dark, wait for the job's end.

    Raises Unexpected where it takes too long, or there is not exactly one incident.
    """
    environment = {**QUIET, **story.environment, "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin"}
    command = [
        "sbatch",
        f"--nodes={NODES}",
        f"--spares={SPARES}",
        "--nproc-per-node=1",
        "--cpus-per-task=1",
        "--submit",
    ]
    arguments = ["--", "train.py", "--update-at=0", *story.script_args]
    story.say(f"$ guardctl {' '.join([*command, *arguments])}")
    ask = [*story.guardctl, *command, "--json", *arguments]
    job = str(json.loads(story.lab.run(*ask, env=environment, cwd=story.folder).stdout)["job"])
    output = follow(story, job)
    run = story.folder / RUNS / f"slurm-{job}"
    folder, incident = read_incident(run)
    summary = json.loads((run / "summary.json").read_text())
    return Ending(job, run, folder, incident, summary, story.lab.node(DARK), output)


def follow(story: Story, job: str) -> str:
    """Say what the job prints until it has ended; stop the node on the way. Returns all that it printed."""
    seen, is_dark, has_ended = "", False, False
    deadline_s = time.monotonic() + END_S
    while not has_ended:
        has_ended = story.lab.job(job).get("JobState") in ENDED
        text = "".join(path.read_text() for path in sorted(story.folder.glob(f"*-{job}.out")))
        lines = text[len(seen) : text.rfind("\n") + 1]
        if lines:
            story.say(lines.rstrip("\n"))
            seen += lines
        if not is_dark and last_step(story.folder) >= story.dark_at:
            is_dark = True
            story.say(f"… {DARK} goes dark: whatever runs there stands still, and does not answer any more")
            story.lab.stop_node(DARK)
        if time.monotonic() >= deadline_s:
            raise Unexpected(f"job {job} has not ended within {END_S:.0f} s: {story.lab.job(job).get('JobState')}")
        time.sleep(0.2)
    return seen


def last_step(folder: Path) -> int:
    """The newest step that the script has reported; 0 before the first."""
    metrics = folder / OUT / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def check(ending: Ending) -> None:
    """Raise Unexpected, naming it, where anything is not as it must be."""
    incident, summary, reason = ending.incident, ending.summary, ending.drained["Reason"]
    culprits = [(culprit["rank"], culprit["node"]) for culprit in incident["culprits"]]
    found = (incident["kind"], incident["cause"], incident["action"])
    resumed = incident["resumed_from"] or {"step": 0}
    facts = {
        f"the incident is the loss of a node, which is isolated: {found}": found
        == ("node", "node_lost", "isolate_node"),
        f"{DARK}, and no other, is to blame: {culprits}": culprits == [(1, DARK)],
        "training got past where it stopped": incident["recovered"] is not None,
        "it resumed from a checkpoint": resumed["step"] > 0,
        f"{DARK} is drained: {ending.drained['State']}": "DRAIN" in ending.drained["State"],
        f"the reason names run, incident and node: {reason!r}": DARK in reason
        and reason.startswith(f"guardrun: slurm-{ending.job} incident {incident['id']} node_lost"),
        "the spare took the place": re.search(rf"without {DARK} and with n4\b", ending.output) is not None,
        "there is a report": (ending.folder / "report.html").is_file(),
        f"training ended well, after one restart: {summary['outcome']}, {summary['restarts']}": (
            (summary["outcome"], summary["restarts"]) == ("finished", 1)
        ),
    }
    require(facts)


def tell(ending: Ending) -> None:
    """Print what happened."""
    incident, summary = ending.incident, ending.summary
    resumed = incident["resumed_from"]
    losses = read_losses(HERE / OUT / "metrics.jsonl")
    found_s = seconds_between(incident["onset"], incident["detected"])
    mended_s = seconds_between(incident["detected"], incident["recovered"])
    print(f"""
What happened
  verdict   {incident["summary"]}
  found     {found_s:.0f} s after it went dark; past that step again {mended_s:.0f} s later
  drained   {DARK}, {ending.drained["State"]}: {ending.drained["Reason"]}
  replaced  by the spare, n4; nobody else's ranks moved
  resumed   {resumed["path"]} (step {resumed["step"]})
  loss      {losses.last_before[1]:.3f} at step {losses.last_before[0]} before
            {losses.first_after[1]:.3f} at step {losses.first_after[0]} after the restart
            {losses.final[1]:.3f} at step {losses.final[0]}, the end
  goodput   {summary["goodput"]:.0%}; lost: {lost_words(summary)}
  report    {os.path.relpath(ending.folder)}/report.html""")


def main() -> int:
    lacking = missing("slurm")
    if lacking:
        print(f"This demo starts a Slurm on this machine, as root: {lacking}.", file=sys.stderr)
        print("On a cluster: guardctl sbatch --nodes=3 --spares=1 --submit -- train.py --update-at=0", file=sys.stderr)
        return 2
    for left in (OUT, RUNS):
        shutil.rmtree(HERE / left, ignore_errors=True)
    for left in HERE.glob("*.out"):
        left.unlink()
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    print("Starting a Slurm of four nodes on this machine, n1 to n4", flush=True)
    lab = SlurmLab()
    try:
        ending = play(Story(lab, HERE, say=lambda text: print(text, flush=True)))
        check(ending)
        tell(ending)
    except (Unexpected, OSError, KeyError, AssertionError) as error:
        print(f"\nThe demo failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        lab.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
