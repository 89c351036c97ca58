"""Daily life: small scripts (scripts/life/) that look like a hang for a while and are none, beside torchrun.

    python benchmarks/gym/life.py                        each script once under both; goes on where it was cut short
    python benchmarks/gym/life.py --only 'judge*'        some of them
    python benchmarks/gym/life.py --night 8              guardrun alone, in random order, until so many hours of jobs
    python benchmarks/gym/life.py --show --write-docs    the table of what was played into docs/gym-life.md

What torchrun finishes, guardrun must finish: the same exit status, the same files in out/, byte for byte, in one
attempt, with no incident, and nothing left running. The patience is a tenth of the default (`hang.scale`), and so is
the time for which a script looks like a hang. Ends with 1 where a script was harmed.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from benchmarks.docs import replace_between
from benchmarks.gym.launchers import GYM, ROOT, beside_python
from benchmarks.job import end_cat, free_port, start_cat
from benchmarks.machine import describe
from tests.support.guardrun_run import MARK, clean_environment
from tests.support.processes import Process, kill_marked, marked
from tests.support.waiting import wait_until

SCRIPTS = ROOT / "benchmarks" / "gym" / "scripts" / "life"
DOCS = ROOT / "docs" / "gym-life.md"
BEGIN = "<!-- life: begin (written by `python benchmarks/gym/life.py --write-docs`) -->"
END = "<!-- life: end -->"
SCALE = 0.1
SECONDS = 24.0
"""For how long a script looks like a hang: four minutes, where the patience is as long as it is by default."""
CAP_S = 400.0
"""For a whole run; torch's own timeouts are longer."""
SETTLE_S = 10.0
"""After a launcher's end, before what is left counts as left: a script may leave an upload behind."""
END_GRACE_S = 30.0
TAIL_CHARS = 4000
LAUNCHERS = ("torchrun", "guardrun")


@dataclass(frozen=True)
class Life:
    """A script, and what its first lines say of it."""

    name: str
    what: str
    ranks: int = 2
    needs: tuple[str, ...] = ()
    """Packages beside torch's own."""
    status: int = 0
    """That torchrun ends with."""

    @property
    def path(self) -> Path:
        return SCRIPTS / f"{self.name}.py"

    @property
    def is_able(self) -> bool:
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


class Played(msgspec.Struct, kw_only=True):
    """A line of the results: one script under one launcher."""

    name: str
    launcher: str
    date: str
    seconds: float
    took_s: float = 0.0
    status: int | None = None
    """None: it had not ended after CAP_S."""
    files: dict[str, str] = {}
    """Of out/: path → SHA-256."""
    restarts: int = 0
    incidents: list[str] = []
    told: int = 0
    """Stalls that were told, and ended by themselves."""
    left: list[str] = []
    load_1m: float = 0.0
    output_tail: str = ""


def read_life(path: Path) -> Life:
    """What a script says of itself. Raises ValueError where it does not."""
    text = path.read_text()
    what = (ast.get_docstring(ast.parse(text)) or "").strip().partition("\n")[0]
    if not what:
        raise ValueError(f"{path}: no docstring that says what it does")
    said = dict(re.findall(r"^# (ranks|needs|status): (.+)$", text, re.MULTILINE))
    needs = tuple(name.strip() for name in said.get("needs", "").split(",") if name.strip())
    return Life(path.stem, what, int(said.get("ranks", 2)), needs, int(said.get("status", 0)))


def read_lives() -> list[Life]:
    """All of them, by name."""
    return [read_life(path) for path in sorted(SCRIPTS.glob("*.py"))]


def command_of(launcher: str, life: Life) -> list[str]:
    """How a user would start it."""
    own = [f"--guard-hang-scale={SCALE}"] if launcher == "guardrun" else []
    ranks = f"--nproc-per-node={life.ranks}"
    return [str(beside_python(launcher)), *own, ranks, f"--master-port={free_port()}", str(life.path)]


def play(
    life: Life, launcher: str, folder: Path, *, seconds: float = SECONDS, stop: threading.Event | None = None
) -> Played:
    """Play a script in a folder that is made anew, and removed. Its processes are ended whatever happens."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "t").mkdir(parents=True)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    seen = Played(name=life.name, launcher=launcher, date=date, seconds=seconds, load_1m=round(os.getloadavg()[0], 2))
    mark = uuid.uuid4().hex
    extra: dict[str, str | None] = {
        "TMPDIR": str(folder / "t"),
        "XDG_RUNTIME_DIR": None,
        "GUARDRUN_DIR": str(folder / "runs"),
        "LIFE_SECONDS": f"{seconds:g}",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    began_s = time.monotonic()
    cat, output = start_cat(folder / "output.txt")  # as people do: guardrun … 2>&1 | tee log
    with output:
        process = subprocess.Popen(
            command_of(launcher, life),
            cwd=folder,
            env=clean_environment(mark, extra),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, stop or threading.Event())
        seen.status = process.poll()
        seen.took_s = round(time.monotonic() - began_s, 1)
        seen.left = [str(one) for one in _left(mark)]
    finally:
        kill_marked(MARK, mark)
        process.wait(10)
        end_cat(cat)
    seen.output_tail = (folder / "output.txt").read_text(errors="replace")[-TAIL_CHARS:]
    seen.files = digest(folder / "out")
    if launcher == "guardrun":
        _read_run(seen, folder / "runs" / "latest")
    shutil.rmtree(folder, ignore_errors=True)
    return seen


def _wait(process: subprocess.Popen[bytes], stop: threading.Event) -> None:
    """For its end; after CAP_S it is left to be killed. Ends it as a person would once stop is set."""
    until_s = time.monotonic() + CAP_S
    while process.poll() is None and time.monotonic() < until_s:
        if stop.wait(0.1):
            process.send_signal(signal.SIGTERM)
            process.wait(END_GRACE_S)


def _left(mark: str) -> list[Process]:
    """What is alive of it, once it has had the time that an upload may take."""
    try:
        wait_until(lambda: not marked(MARK, mark), SETTLE_S, "the last of its processes")
    except TimeoutError:
        pass
    return marked(MARK, mark)


def digest(folder: Path) -> dict[str, str]:
    """Relative path → SHA-256 of every file below."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _read_run(seen: Played, run_dir: Path) -> None:
    for path in sorted(run_dir.glob("incidents/*/incident.json")):
        incident = json.loads(path.read_text())
        # What else is told, of slow steps and long collections, is advice.
        if incident["kind"] in ("hang", "crash") and incident["cause"] != "gc_pause":
            seen.incidents.append(incident["summary"])
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except OSError:
        seen.incidents.append("no summary.json")
        return
    seen.restarts, seen.told = summary["restarts"], len(summary.get("stalls", ()))


def harms(life: Life, ours: Played, theirs: Played | None) -> list[str]:
    """How guardrun's run differs from torchrun's, in words. theirs: None: only what the script declares is known.

    What torchrun does not finish may be tried once more; guardrun ends with the rank's own code, where torchrun has 1.
    """
    found = []
    ends_badly = life.status != 0
    if ours.status is None or (ours.status != 0) != ends_badly:
        found.append(f"exit status {ours.status}, not {life.status}")
    if ours.restarts > ends_badly:
        found.append(f"restarted {ours.restarts} times")
    if len(ours.incidents) > 2 * ends_badly:
        found += [f"incident: {summary}" for summary in ours.incidents]
    if theirs is not None and theirs.files != ours.files:
        names = sorted({*theirs.files, *ours.files})
        found.append(f"other files: {', '.join(n for n in names if theirs.files.get(n) != ours.files.get(n))}")
    if ours.left and not (theirs is not None and theirs.left):
        found.append(f"left running: {'; '.join(ours.left)}")
    return found


def troubles(life: Life, theirs: Played) -> list[str]:
    """Why torchrun's run is no measure: the script itself is wrong, or the machine was too slow for it."""
    found = [] if theirs.status == life.status else [f"torchrun ended it with {theirs.status}, not {life.status}"]
    return found if theirs.files else [*found, "no files in out/"]


# Results -----------------------------------------------------------------------------------------------


class Results:
    """A file with a line of JSON for each run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def append(self, seen: Played) -> None:
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(seen) + b"\n")

    def read(self) -> list[Played]:
        """In their order; a line that was cut short is left out."""
        found = []
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            try:
                found.append(msgspec.json.decode(line, type=Played))
            except msgspec.DecodeError:
                continue
        return found


@dataclass(frozen=True)
class Outcome:
    """A script, with the last runs under both."""

    life: Life
    runs: tuple[Played, ...]
    """Under guardrun: all of them."""
    theirs: Played | None

    @property
    def harms(self) -> list[str]:
        return [words for run in self.runs for words in harms(self.life, run, self.theirs)]


def outcomes(lives: Sequence[Life], played: Sequence[Played]) -> list[Outcome]:
    """What came of each script that was played."""
    found = []
    for life in lives:
        own = [one for one in played if one.name == life.name]
        theirs = [one for one in own if one.launcher == "torchrun"]
        runs = tuple(one for one in own if one.launcher == "guardrun")
        if runs:
            found.append(Outcome(life, runs, theirs[-1] if theirs else None))
    return found


def as_markdown(found: Sequence[Outcome]) -> str:
    """The section of docs/gym-life.md."""
    runs = [run for outcome in found for run in outcome.runs]
    hours = sum(run.took_s for run in runs) / 3600
    harmed = [outcome for outcome in found if outcome.harms]
    lines = [
        f"- scripts: {len(found)}; harmed: {len(harmed)}",
        f"- jobs under guardrun: {len(runs)}, {hours:.1f} hours; stalls told that ended by themselves: "
        f"{sum(run.told for run in runs)}",
        "",
        "| script | what happens | ranks | torchrun s | guardrun s | told | harmed |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in found:
        life, last = outcome.life, outcome.runs[-1]
        theirs = f"{outcome.theirs.took_s:.0f}" if outcome.theirs else "–"
        harmed_words = "; ".join(outcome.harms) or "no"
        lines.append(
            f"| `{life.name}` | {life.what} | {life.ranks} | {theirs} | {last.took_s:.0f} | "
            f"{last.told or ''} | {harmed_words} |"
        )
    return "\n".join(lines) + "\n"


# The command -------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print, write; 0 where nothing was harmed."""
    arguments = _parse(argv)
    lives = [life for life in read_lives() if _is_wanted(life, arguments.only)]
    able = [life for life in lives if life.is_able]
    for life in lives:
        if life not in able:
            _tell(f"left out, for want of {', '.join(life.needs)}: {life.name}")
    results = Results(arguments.results)
    if arguments.fresh:
        arguments.results.unlink(missing_ok=True)
    if not arguments.show:
        turns = _night(able, arguments) if arguments.night else _once(able, results.read(), arguments)
        _play_all(turns, results, arguments)
    found = outcomes(able, results.read())
    text = as_markdown(found)
    print(text)
    if arguments.write_docs:
        about = f"`hang.scale = {SCALE:g}`, {SECONDS:g} s each, on {describe()}.\n\n"
        DOCS.write_text(replace_between(DOCS.read_text(), about + text, BEGIN, END))
        _tell(f"written: {os.path.relpath(DOCS)}")
    return 1 if any(outcome.harms for outcome in found) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="daily life: what looks like a hang and is none")
    parser.add_argument("--only", action="append", metavar="GLOB", help="scripts by name; several with several --only")
    parser.add_argument("--jobs", type=int, default=4, metavar="J", help="runs at a time; default %(default)s")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="chooses the order of a night")
    parser.add_argument("--night", type=float, default=0.0, metavar="HOURS", help="play until so many hours of jobs")
    parser.add_argument("--results", type=Path, default=GYM / "life.jsonl", metavar="FILE")
    parser.add_argument("--fresh", action="store_true", help="begin a new results file")
    parser.add_argument("--show", action="store_true", help="play nothing; show what the results file holds")
    parser.add_argument("--write-docs", action="store_true", help="also put the table into docs/gym-life.md")
    arguments = parser.parse_args(argv)
    if arguments.only and not any(_is_wanted(life, arguments.only) for life in read_lives()):
        parser.error(f"no script matches; there are {', '.join(life.name for life in read_lives())}")
    return arguments


def _is_wanted(life: Life, only: Sequence[str] | None) -> bool:
    return only is None or any(fnmatch.fnmatchcase(life.name, pattern) for pattern in only)


Turn = tuple[Life, str]


def _once(lives: Sequence[Life], played: Sequence[Played], arguments: argparse.Namespace) -> Iterator[Turn]:
    """Each script under both launchers, but for what has been played."""
    done = {(one.name, one.launcher) for one in played}
    turns = [(life, launcher) for life in lives for launcher in LAUNCHERS if (life.name, launcher) not in done]
    random.Random(arguments.seed).shuffle(turns)
    _tell(f"{len(turns)} runs, {len(done)} already in {os.path.relpath(arguments.results)}")
    return iter(turns)


def _night(lives: Sequence[Life], arguments: argparse.Namespace) -> Iterator[Turn]:
    """Under guardrun, round after round, each in an order of its own."""
    chance = random.Random(arguments.seed)
    left_s = arguments.night * 3600.0
    while left_s > 0:
        for life in chance.sample(lives, len(lives)):
            left_s -= SECONDS
            yield life, "guardrun"
            if left_s <= 0:
                return


def _play_all(turns: Iterator[Turn], results: Results, arguments: argparse.Namespace) -> None:
    """Some at a time. Leaves with the first exception, when all processes are ended."""
    stop, lock = threading.Event(), threading.Lock()

    def work(number: int) -> None:
        while not stop.is_set():
            with lock:
                turn = next(turns, None)
            if turn is None:
                return
            life, launcher = turn
            seen = play(life, launcher, GYM / "life" / f"{number}-{life.name}-{launcher}", stop=stop)
            if stop.is_set():
                return
            results.append(seen)
            wrong = troubles(life, seen) if launcher == "torchrun" else harms(life, seen, None)
            _tell(f"{seen.took_s:6.0f} s  {launcher:9} {life.name:32} {'; '.join(wrong) or 'as it should'}")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(work, number) for number in range(arguments.jobs)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
