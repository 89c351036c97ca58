"""The command: play cases, several at a time, and print what was found, beside what was to be found."""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gym.launchers import ROOT
from benchmarks.gym.numeric.cases import DECOYS, DRIFT, FAULTS, Case, Fault
from benchmarks.job import free_port
from benchmarks.machine import describe
from tests.support.guardrun_run import MARK, clean_environment
from tests.support.processes import kill_marked

SCRIPTS = ROOT / "benchmarks" / "gym" / "scripts" / "numeric"
AT = (300, 400)
STEP_S = 0.01
LIMIT_S = 600.0


@dataclass
class Seen:
    """What came of one case."""

    case: Case
    at: int
    """The step at which it was planted."""
    status: int | None = None
    """None: it did not end in time."""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    took_s: float = 0.0

    @property
    def first(self) -> dict[str, Any] | None:
        return self.incidents[0] if self.incidents else None

    def misses(self) -> list[str]:
        """What is not as it should be, in words; empty where all is."""
        found = [] if self.status == 0 else [f"exit status {self.status}"]
        first = self.first
        if not isinstance(self.case, Fault):
            return found + [f"{one['cause']}: {one['summary']}" for one in self.incidents]
        if first is None:
            return [*found, "not found"]
        if first["cause"] not in self.case.causes:
            found.append(f"cause {first['cause']}")
        culprits = tuple(sorted(one["rank"] for one in first["culprits"]))
        if culprits != self.case.culprits:
            found.append(f"culprits {list(culprits)}")
        at = 1 if self.case.at_start else self.at
        if first["cause"] in DRIFT:
            agreed = first["evidence"]["agreed_step"]
            if not agreed < at <= first["step"]:
                found.append(f"between steps {agreed} and {first['step']}, not {at}")
        elif abs(first["step"] - at) > self.case.slack:
            found.append(f"step {first['step']}, not {at}")
        if any(one["action"] != "none" for one in self.incidents):
            found.append("something was done about it")
        return found


def play(case: Case, seed: int, step_s: float = STEP_S) -> Seen:
    """In a folder of its own; its processes are ended whatever happens. step_s: what each step sleeps, besides."""
    seen = Seen(case, random.Random(f"{seed} {case.name}").randint(*AT))
    folder = Path(tempfile.mkdtemp(prefix="gym-"))
    mark = uuid.uuid4().hex
    extra = {
        "GUARDRUN_DIR": str(folder / "runs"),
        "TMPDIR": str(folder),
        "XDG_RUNTIME_DIR": None,
        "PYTHONPATH": str(ROOT),
    }
    flags = [f"--nproc-per-node={case.ranks}", f"--master-port={free_port()}"]
    program = str(Path(sys.executable).with_name("guardrun"))
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [program, *flags, str(SCRIPTS / case.script), case.name, str(seen.at), str(case.steps), str(step_s)],
            cwd=folder,
            env=clean_environment(mark, extra),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        seen.status = process.wait(LIMIT_S + case.steps * step_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        kill_marked(MARK, mark)
        process.wait(10)
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("runs/latest/incidents/*/incident.json"))]
    seen.incidents = [one for one in records if one["kind"] in ("numeric", "memory", "hang", "crash")]
    seen.output = (folder / "output.txt").read_text(errors="replace")
    shutil.rmtree(folder, ignore_errors=True)
    return seen


def as_markdown(played: Sequence[Seen]) -> str:
    """The table: a line a case, and above it the sums."""
    faults = [seen for seen in played if isinstance(seen.case, Fault)]
    decoys = [seen for seen in played if not isinstance(seen.case, Fault)]
    right = sum(not seen.misses() for seen in faults)
    lines = [
        f"{sum(seen.first is not None for seen in faults)} of {len(faults)} faults found, {right} with the right "
        f"cause, rank and step; {sum(bool(seen.misses()) for seen in decoys)} of {len(decoys)} decoys reported.",
        "",
        "| case | what | reported | of whom | step, planted at | falls short |",
        "|---|---|---|---|---|---|",
    ]
    for seen in played:
        first = seen.first
        at = 1 if isinstance(seen.case, Fault) and seen.case.at_start else seen.at
        whom = ", ".join(f"rank {one['rank']}" for one in first["culprits"]) or "nobody" if first else ""
        step = f"{first['step']}, {at}" if first else ""
        if first and first["cause"] in DRIFT:
            step = f"{first['evidence']['agreed_step']}–{step}"
        short = "; ".join(seen.misses()).replace("|", "\\|")
        cells = [f"`{seen.case.name}`", seen.case.what, first["cause"] if first else "–", whom, step, short]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Play and print. Returns 0 where all was as it should be."""
    parser = argparse.ArgumentParser(description="trainings whose numbers go wrong, and others, under guardrun")
    parser.add_argument("--only", action="append", metavar="GLOB", help="cases by name; several with several --only")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="chooses the step of each planting")
    parser.add_argument("--jobs", type=int, default=3, metavar="J", help="cases at a time; default %(default)s")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="the decoys alone, each for so long, by longer steps"
    )
    arguments = parser.parse_args(argv)
    cases = [
        case
        for case in (DECOYS if arguments.minutes else (*FAULTS, *DECOYS))
        if not arguments.only or any(fnmatch.fnmatchcase(case.name, glob) for glob in arguments.only)
    ]
    if not cases:
        parser.error(f"no case matches; there are {', '.join(case.name for case in (*FAULTS, *DECOYS))}")

    def one(case: Case) -> Seen:
        began_s = time.monotonic()
        step_s = arguments.minutes * 60.0 / case.steps if arguments.minutes else STEP_S
        seen = play(case, arguments.seed, step_s)
        seen.took_s = time.monotonic() - began_s
        said = seen.first["summary"] if seen.first else "nothing reported"
        print(f"{seen.took_s:6.0f} s  {case.name:28} {said}", file=sys.stderr, flush=True)
        for miss in seen.misses():
            print(f"          FALLS SHORT: {miss}", file=sys.stderr, flush=True)
        if seen.status != 0:
            print(seen.output[-3000:], file=sys.stderr, flush=True)
        return seen

    with ThreadPoolExecutor(arguments.jobs) as pool:
        played = list(pool.map(one, cases))
    print(f"{describe()}, python benchmarks/gym/numbers.py {' '.join(argv if argv is not None else sys.argv[1:])}")
    print(f"{len(played)} trainings, {sum(seen.took_s for seen in played) / 3600:.1f} hours of them\n")
    print(as_markdown(played))
    return 1 if any(seen.misses() for seen in played) else 0
